"""`plait plan` as an answer: bounds, comparison, reasons, what if, orders of micro-batches from and to files."""

import csv
import json
from pathlib import Path

import pytest
from command_line import CommandLine, Outcome

from plait.plan import load_plan
from plait.search.baselines import BASELINES

HOSTS = """
[[hosts]]
name = "node"
count = 2
devices = [{{ kind = "v100", count = 2{memory} }}]
in_host = {{ bandwidth = "12 GB/s", latency = "5 us" }}
uplink = {{ bandwidth = "1 Gbit/s", latency = "20 us" }}
"""
BATCH = ("--batch", 64, "--profile-batch", 8)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a profile, two hosts of two cards, and the same with little memory."""
    numbers = "forward_compute_time=4.0, backward_compute_time=8.0, activation_size=8192.0, parameter_size=4194304.0"
    nodes = [f"node{i} -- Linear(8, 8) -- {numbers}" for i in range(8)]
    (tmp_path / "graph.txt").write_text("\n".join([*nodes, *(f"\tnode{i} -- node{i + 1}" for i in range(7))]))
    (tmp_path / "hosts.toml").write_text(HOSTS.format(memory=""))
    (tmp_path / "small.toml").write_text(HOSTS.format(memory=', memory = "60 MB"'))
    return tmp_path


@pytest.fixture
def planned(plait: CommandLine, files: Path):
    def run(*words: object, cluster: str = "hosts.toml", budget: float = 0.3) -> Outcome:
        given = ("plan", "--profile", "graph.txt", "--cluster", cluster, "--budget", budget, *BATCH)
        return plait(*given, *words)

    return run


@pytest.fixture
def data(planned):
    def run(*words: object, **choices: object) -> dict:
        outcome = planned(*words, "--json", **choices)
        assert outcome.code == 0, outcome.error
        return json.loads(outcome.out)

    return run


def test_the_object_holds_all_of_the_answer(data) -> None:
    found = data()
    assert found["bound_seconds"] <= found["partition_bound_seconds"] <= found["step_seconds"]
    assert found["bound"]["name"] and found["partition_bound"]["where"]
    assert {"planning_seconds", "micro_batches", "schedule", "sync"} <= set(found)
    assert (found["baselines"], found["what_if"]) == ({}, [])
    stages = found["stages"]
    assert [name for stage in stages for name in stage["atoms"]] == [f"node{i} Linear" for i in range(8)]
    used = [name for stage in stages for name in stage["devices"]]
    assert sorted({*used, *found["idle_devices"]}) == ["node0/gpu0", "node0/gpu1", "node1/gpu0", "node1/gpu1"]
    assert all(stage["data"] == len(stage["devices"]) and stage["tensor"] == 1 for stage in stages)
    assert all(stage["peak_memory_bytes"] > 0 and stage["recompute"] in (True, False) for stage in stages)


def test_what_is_fixed_holds(data) -> None:
    found = data("--replicas", "2,1", "--micro-batches", 4, "--schedule", "1f1b", "--recompute", "--sync", "ring")
    assert [stage["data"] for stage in found["stages"]] == [2, 1]
    assert (found["micro_batches"], found["schedule"], found["sync"]) == (4, "1f1b", "ring")
    assert all(stage["recompute"] for stage in found["stages"])
    assert len(found["idle_devices"]) == 1
    assert not any(stage["recompute"] for stage in data("--stages", 2, "--no-recompute")["stages"])


def test_what_is_waited_for_is_told_by_rank_and_cause(data, planned) -> None:
    choices = ("--replicas", "4", "--micro-batches", 1)
    exposed = data(*choices)["exposed"]  # sums of 33.5 MB over 1 Gbit/s take 268 ms, all that is computed 192 ms
    assert len(exposed) == 4
    assert all(rank["exposed_seconds"]["gradient"] >= 0.268 - 0.192 for rank in exposed)
    said = planned(*choices).out
    assert "Exposed communication" in said and "gradient" in said and "hideable" in said
    assert "wait for gradient sums cannot be hidden" in " ".join(said.split())


def test_people_are_told_bounds_and_idle_devices(planned) -> None:
    said = " ".join(planned("--replicas", "1,1").out.split())
    assert "no plan at all can beat" in said and "no order of micro-batches can beat" in said
    assert "2 of 4 devices are left idle" in said


def test_classical_planners_are_compared_by_name(data, planned) -> None:
    assert list(data("--compare", "gpipe,pipedream")["baselines"]) == ["gpipe", "pipedream"]
    every = data("--compare", "all")
    assert set(every["baselines"]) == set(BASELINES)
    assert all(seconds is None or seconds >= every["bound_seconds"] for seconds in every["baselines"].values())
    assert "x as fast" in planned("--compare", "gpipe").out


def test_a_planner_without_room_is_told_how_much_it_lacks(data, planned) -> None:
    assert data("--compare", "data-parallel", cluster="small.toml")["baselines"] == {"data-parallel": None}
    said = " ".join(planned("--compare", "data-parallel", "--explain", "plans", cluster="small.toml").out.split())
    assert "data-parallel: does not fit in memory: about" in said and "MiB too much" in said


def test_reasons_name_the_bottleneck_and_why_each_rival_loses(data, planned) -> None:
    found = data("--explain", "plans", "--compare", "gpipe", "--stages", 2, budget=2.0)
    assert " of the step" in found["bottleneck"]
    assert "gpipe" in found["reasons"] and any(name.startswith("2 (") for name in found["reasons"])
    assert "Bottleneck: " in planned("--explain", "plans").out


def test_what_if_plans_again_for_the_changed_cluster(data, planned) -> None:
    found = data("--what-if", "uplink=100 Gbit/s", "--what-if", "hosts=1, memory=1 MB")
    faster, too_small = found["what_if"]
    assert faster["change"] == "uplink=100 Gbit/s"
    assert faster["times_faster"] == pytest.approx(found["step_seconds"] / faster["step_seconds"])
    assert faster["times_faster"] >= 1 and faster["bound_seconds"] > 0
    assert (too_small["step_seconds"] is None and "MiB" in too_small["why"]) or "GiB" in too_small["why"]
    said = planned("--what-if", "devices=a100").out
    assert "as it is" in said and "devices=a100" in said


def test_an_exported_order_is_taken_back(data, files: Path) -> None:
    found = data("--stages", 2, "--micro-batches", 4, "--export-schedule", "order.csv")
    with (files / "order.csv").open() as file:
        assert len(list(csv.reader(file))) == 2
    again = data("--schedule", "order.csv")
    assert (again["schedule"], again["micro_batches"], len(again["stages"])) == ("order", 4, len(found["stages"]))
    assert load_plan(files / "plan.json").lanes
    assert again["step_seconds"] >= again["partition_bound_seconds"]


def test_a_named_schedule_is_exported_too(data, files: Path) -> None:
    data("--stages", 2, "--micro-batches", 2, "--schedule", "gpipe", "--export-schedule", "order.csv")
    assert (files / "order.csv").read_text().split() == ["0F0,0F1,0B0,0B1", "1F0,1F1,1B0,1B1"]
