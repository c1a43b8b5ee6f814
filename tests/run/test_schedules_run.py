"""Every schedule and every way to sum gradients in real processes over gloo, which all runs here share."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from comparison import GPT2, LIMIT, Case, fresh, job_case, make_plan, sgd, sizes
from host_clusters import hosts

from plait.cost import WITHOUT_A_SWITCH, AtomCost, Costs, OptimizerCost
from plait.plan import Plan, save_plan
from plait.program import compile_program
from plait.run import OneDevice
from plait.schedule import RECIPES, positions_for
from plait.simulate import simulate

RANKS, MICRO_BATCHES = 4, 6
STAGES = {"line": 1, "loop": 2, "vee": 2}  # at each position


def plan_for(case: Case, schedule: str) -> Plan:
    positions = positions_for(schedule, RANKS, STAGES[RECIPES[schedule].placement])
    place = {stage: position for position, stages in enumerate(positions) for stage in stages}
    placement = [place[stage] for stage in range(len(place))]
    return make_plan(case, (1,) * RANKS, MICRO_BATCHES, placement=placement, recompute=(0,), schedule=schedule)


@pytest.fixture(scope="module")
def case() -> Case:
    return job_case(GPT2)


@pytest.fixture(scope="module")
def plans(case: Case) -> dict[str, Plan]:
    summed = {s: make_plan(case, (RANKS,), 3, cluster=hosts(3, 1), sync=s, bucket_bytes=9000) for s in WITHOUT_A_SWITCH}
    return {**{name: plan_for(case, name) for name in RECIPES}, **summed}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, plans: dict[str, Plan]) -> Callable[[str], list[Any]]:
    """By schedule or way to sum, what each rank saw of its run."""
    folder = tmp_path_factory.mktemp("runs")
    for name, plan in plans.items():
        save_plan(plan, folder / f"{name}.json")
    listed = [{"plan": str(folder / f"{name}.json"), "job": GPT2, "seed": 0} for name in plans]
    (folder / "runs.json").write_text(json.dumps(listed))
    script = Path(__file__).with_name("several_runs.py")
    done = subprocess.run(
        [sys.executable, script, folder], capture_output=True, text=True, timeout=150, cwd=script.parent, check=False
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    found = {name: [results[number] for results in ranks] for number, name in enumerate(plans)}
    return found.__getitem__


@pytest.mark.parametrize("name", [*RECIPES, *WITHOUT_A_SWITCH])
def test_a_run_has_the_losses_of_one_device(case: Case, plans: dict[str, Plan], runs: Any, name: str) -> None:
    one = OneDevice(fresh(case.model), sgd)
    expected = [one.step(batch, sizes(plans[name], batch)) for batch in case.batches]
    for rank in runs(name):
        assert rank["losses"] == pytest.approx(expected, rel=LIMIT, abs=0)


@pytest.mark.parametrize("name", RECIPES)
def test_ranks_compute_in_the_simulated_order(case: Case, plans: dict[str, Plan], runs: Any, name: str) -> None:
    graph = case.model.graph
    costs = Costs(
        graph.fingerprint,
        {"cpu": (AtomCost(1e-3, 0.0, 2e-3, 0.0, 0.0, 0.0, 1e-3, 0.0),) * len(graph.atoms)},
        {"cpu": OptimizerCost(0.0, 0.0, 1e-3)},
    )
    timeline = simulate(compile_program(plans[name], graph), plans[name], costs)
    for rank, seen in enumerate(runs(name)):
        assert seen["order"] == timeline.compute_order(rank)
