"""Real processes over gloo: the launcher, the worker and the transport give one device's numbers too."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from comparison import GPT2, LIMIT, Case, fresh, job_case, make_case, make_plan, sgd, sizes
from host_clusters import hosts

from plait.cli.verify import largest_difference
from plait.cluster import Aggregator
from plait.errors import PlaitError
from plait.graph import build_graph
from plait.jobs import load_job
from plait.plan import Plan, save_plan
from plait.program import Op, compile_program
from plait.run import OneDevice
from plait.run.checkpoint import load_tensors
from plait.run.session import run_plan
from plait.run.settings import Settings
from plait.switch import native
from plait.switch.daemon import Switch

DROPOUT = "gpt2-tiny?layers=2&width=32&heads=2&sequence=16&dropout=0.3"


@pytest.mark.parametrize("layout", [(2, 2), (3, 2)], ids=str)
def test_a_launched_run_trains_like_one_device(tmp_path: Path, warm_ranks: Any, layout: tuple[int, ...]) -> None:
    case, job = job_case(GPT2), load_job(GPT2)
    plan = make_plan(case, layout, 3)
    save_plan(plan, tmp_path / "plan.json")
    results = tmp_path / "results"
    settings = Settings(
        job=GPT2,
        plan=tmp_path / "plan.json",
        steps=3,
        batch_size=plan.batch_size,
        dtype="float64",
        clip_norm=0.1,
        timeout_seconds=60,
        gradients=results,
    )
    record = run_plan(settings, plan, tmp_path)
    one = OneDevice(fresh(case.model), job.optimizer, clip_norm=0.1)
    batches = job.batches(plan.batch_size, 0)
    expected = [one.step(batch, sizes(plan, batch)) for batch in (next(batches) for _ in range(3))]
    assert record.losses == pytest.approx(expected, rel=LIMIT, abs=0)
    found = load_tensors(results / "model")
    gradients = {n.removeprefix("gradient/"): t for n, t in found.items() if n.startswith("gradient/")}
    state = {n.removeprefix("value/"): t for n, t in found.items() if n.startswith("value/")}
    assert largest_difference(gradients, one.gradients()) <= LIMIT
    # Adam makes steps of the rounding in a gradient that is really zero (a key's bias): compared at the model's scale.
    assert largest_difference(state, weights(one), floor=1.0) <= LIMIT
    check_record(record, plan, case)


def weights(one: OneDevice) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in one.parameters.items()}


def check_record(record: Any, plan: Plan, case: Case) -> None:
    """What ranks told about the run is complete: time, memory and a timeline with every computation in order."""
    assert len(record.seconds) == 3
    assert set(record.memory_bytes) == set(range(plan.num_ranks))
    program = compile_program(plan, case.model.graph)
    timeline = record.timeline(program)
    for rank, instructions in enumerate(program.ranks):
        computed = [f"{i.stage}{i.op}{i.micro_batch}" for i in instructions if i.op in (Op.F, Op.B)]
        assert [label for label in timeline.compute_order(rank) if "STEP" not in label] == computed
    assert 0 < timeline.step_seconds < 60


# Dropout: these runs share one set of processes


MASKS = """
import torch
from torch import nn
import torch.nn.functional as F

class Masks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.second = nn.Linear(16, 1)

    def forward(self, x, y):
        return F.mse_loss(self.second(F.dropout(self.first(x), 0.5)), y)

def model():
    return Masks()

def batches(batch_size):
    while True:
        yield {"x": torch.ones(batch_size, 4), "y": torch.zeros(batch_size, 1)}
"""


@pytest.fixture(scope="module")
def dropout_case() -> Case:
    return job_case(DROPOUT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, dropout_case: Case) -> Callable[[str], list[Any]]:
    """By name of a run, what each rank saw of it."""
    folder = tmp_path_factory.mktemp("runs")
    masks_file = folder / "masks.py"
    masks_file.write_text(MASKS)
    masks_case = make_case(load_job(str(masks_file)).model(), [next(load_job(str(masks_file)).batches(8, 0))])
    after_dropout = next(i for i, a in enumerate(masks_case.model.graph.atoms) if "dropout" in "".join(a.nodes)) + 1
    plans = {
        "whole": make_plan(dropout_case, (1, 1, 1, 1), 3),
        "split": make_plan(dropout_case, (2, 2), 3),
        "uneven": make_plan(dropout_case, (2, 2), 3, boundaries=[5]),
        "masks": make_plan(masks_case, (2, 2), 2, boundaries=[after_dropout]),
    }
    for name, plan in plans.items():
        save_plan(plan, folder / f"{name}.json")
    wanted = {
        "whole": {"plan": "whole", "job": DROPOUT, "seed": 3, "save": str(folder / "whole")},
        "split": {"plan": "split", "job": DROPOUT, "seed": 0},
        "split again": {"plan": "split", "job": DROPOUT, "seed": 0},
        "split at odds": {"plan": "split", "others' plan": str(folder / "uneven.json"), "job": DROPOUT, "seed": 0},
        "split otherwise": {"plan": "split", "job": DROPOUT, "seed": 1},
        "masks": {"plan": "masks", "job": str(masks_file), "seed": 0, "watch": True},
    }
    listed = [{**run, "plan": str(folder / f"{run['plan']}.json")} for run in wanted.values()]
    (folder / "runs.json").write_text(json.dumps(listed))
    script = Path(__file__).with_name("several_runs.py")
    done = subprocess.run(
        [sys.executable, script, folder], capture_output=True, text=True, timeout=120, cwd=script.parent, check=False
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(4)]
    found = {name: [results[number] for results in ranks] for number, name in enumerate(wanted)}
    found["folder"] = [folder]
    return found.__getitem__


def losses(run: Sequence[Any]) -> list[float]:
    seen = [rank["losses"] for rank in run]
    assert all(own == seen[0] for own in seen), "ranks disagree about the loss"
    return seen[0]


def test_with_whole_micro_batches_dropout_is_one_devices(runs, dropout_case: Case) -> None:
    plan = make_plan(dropout_case, (1, 1, 1, 1), 3)
    one = OneDevice(fresh(dropout_case.model), sgd, seed=3)
    expected = [one.step(batch, sizes(plan, batch)) for batch in dropout_case.batches]
    assert losses(runs("whole")) == pytest.approx(expected, rel=LIMIT, abs=0)
    state = load_tensors(runs("folder")[0] / "whole" / "model")
    assert largest_difference(state, weights(one)) <= LIMIT
    undropped = OneDevice(fresh(job_case(GPT2).model), sgd)
    assert abs(undropped.step(dropout_case.batches[0], (4, 4, 4)) - expected[0]) > 1e-6, "nothing was dropped"


def test_with_split_rows_the_same_seed_gives_the_same_numbers(runs) -> None:
    assert losses(runs("split")) == losses(runs("split again"))


def test_ranks_that_planned_for_themselves_follow_rank_0(runs) -> None:
    assert losses(runs("split at odds")) == losses(runs("split"))


def test_another_seed_gives_other_masks(runs) -> None:
    assert losses(runs("split"))[0] != losses(runs("split otherwise"))[0]


def test_replicas_draw_different_masks(runs) -> None:
    first, second = (torch.tensor(runs("masks")[rank]["outputs"]["0"][0]) == 0 for rank in (0, 1))
    assert first.shape == second.shape == (2, 16)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1]), "rows of one replica have masks of their own"
    assert 0.2 < torch.cat([first, second]).double().mean() < 0.8


@cache
def in_float32() -> Case:
    """A switch sums 32 bits."""
    job = load_job(GPT2)
    torch.manual_seed(0)
    module, batch = job.model(), next(job.batches(12, 0))
    return Case(module, build_graph(module, batch, loss=job.loss, name="case"), (batch,))


def summed_by_a_switch() -> Plan:
    """Two replicas in hosts of their own, around a switch that sums packets."""
    found = hosts(1, 1, aggregators=(Aggregator("switch", 64, 8896, 0.98),))
    return make_plan(in_float32(), (2,), 2, cluster=found, sync="passing")


@pytest.mark.skipif(native.missing() is not None, reason=str(native.missing()))
def test_a_launched_run_sums_gradients_by_a_switch(tmp_path: Path, warm_ranks: Any, monkeypatch: Any) -> None:
    plan, job = summed_by_a_switch(), load_job(GPT2)
    save_plan(plan, tmp_path / "plan.json")
    settings = Settings(
        job=GPT2, plan=tmp_path / "plan.json", steps=3, batch_size=plan.batch_size, dtype="float32", timeout_seconds=60
    )
    with Switch(key="of the test") as switch:
        monkeypatch.setenv("PLAIT_SWITCH", "{}:{}".format(*switch.address))
        monkeypatch.setenv("PLAIT_JOB_KEY", "of the test")
        record = run_plan(settings, plan, tmp_path)
        assert switch.status()["counters"]["completed"] > 0
    one = OneDevice(fresh(in_float32().model), job.optimizer)
    batches = job.batches(plan.batch_size, 0)
    expected = [one.step(batch, sizes(plan, batch)) for batch in (next(batches) for _ in range(3))]
    assert record.losses == pytest.approx(expected, rel=1e-5)


def test_a_plan_that_needs_a_switch_is_refused_where_none_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("PLAIT_SWITCH", raising=False)
    plan = summed_by_a_switch()
    settings = Settings(job=GPT2, plan=tmp_path / "plan.json", steps=1, batch_size=plan.batch_size)
    with pytest.raises(PlaitError, match=r"passing sums are off: no aggregating switch is named: set PLAIT_SWITCH to"):
        run_plan(settings, plan, tmp_path)
