"""Tensor groups trained: alone, with replicas, inside pipelines, clipped, and continued under another grid."""

import re
from pathlib import Path
from typing import Any

import pytest
import shared_cases
import torch
from comparison import (
    LIMIT,
    Case,
    assert_trains_like_one_device,
    fresh,
    job_case,
    make_plan,
    sizes,
    train_on_threads,
)
from torch import nn

from plait.errors import PlaitError
from plait.graph.sharding.choose import choose_split
from plait.jobs import load_job
from plait.plan import Plan, save_plan
from plait.run import OneDevice
from plait.run.checkpoint import load_tensors
from plait.run.session import run_plan
from plait.run.settings import Settings

GPT2 = "gpt2-tiny?layers=2&width=32&heads=4&sequence=12&dropout=0"
JOBS = {
    "gpt2": GPT2,
    "bert": "bert-tiny?layers=1&width=32&heads=4&sequence=24&dropout=0",
    "alexnet": "alexnet?width=0.0625&dropout=0&classes=10",
    "unet": "unet?image=16&width=0.25",
}


def grid(case: Case, layout: tuple[int, ...], tensor: tuple[int, ...], **options: Any) -> Plan:
    """A plan of such replicas and tensor groups, each stage with its own choice of what to split."""
    atoms = len(case.model.graph.atoms)
    edges = [atoms * i // len(layout) for i in range(len(layout) + 1)]
    splits = [
        choose_split(case.model, start, end, degree, latency=0.0, seconds_per_byte=1e-14)
        for start, end, degree in zip(edges, edges[1:], tensor, strict=False)
    ]
    assert all(bool(split) == (degree > 1) for split, degree in zip(splits, tensor, strict=True))
    return make_plan(case, layout, 3, tensor=tensor, splits=splits, **options)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(("layout", "tensor"), [((1,), (4,)), ((2,), (3,)), ((2, 1), (2, 2))], ids=str)
def test_a_grid_trains_like_one_device(name: str, layout: tuple[int, ...], tensor: tuple[int, ...]) -> None:
    case = job_case(JOBS[name])
    assert_trains_like_one_device(case, grid(case, layout, tensor))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [(1,), (2,), (1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("degree", [2, 4, 3])
@pytest.mark.parametrize("name", [*shared_cases.JOBS, *shared_cases.LIBRARY])
def test_every_model_on_every_grid(name: str, degree: int, layout: tuple[int, ...]) -> None:
    case = trained_case(name)
    assert_trains_like_one_device(case, grid(case, layout, (degree,) * len(layout)))


def trained_case(name: str) -> Case:
    """Without dropout, whose numbers depend on how replicas share the rows."""
    if name in shared_cases.JOBS:
        return job_case(re.sub(r"dropout=0\.\d", "dropout=0", shared_cases.JOBS[name]))
    model, batch = shared_cases.case_of(name)
    return Case(nn.Module(), model, (batch, batch))


@pytest.mark.parametrize(("layout", "tensor"), [((1, 1), (4, 1)), ((2, 1), (1, 3))], ids=str)
def test_stages_may_have_groups_of_different_sizes(layout: tuple[int, ...], tensor: tuple[int, ...]) -> None:
    case = job_case(JOBS["unet"])
    assert_trains_like_one_device(case, grid(case, layout, tensor))


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1"])
def test_schedules_of_groups(schedule: str) -> None:
    case = job_case(GPT2)
    assert_trains_like_one_device(case, grid(case, (1, 2), (2, 2), schedule=schedule))


def test_recomputation_exchanges_again() -> None:
    case = job_case(GPT2)
    assert_trains_like_one_device(case, grid(case, (1, 1), (2, 2), recompute=(0, 1)))


def test_the_norm_counts_what_is_whole_once() -> None:
    case, limit = job_case(GPT2), 0.05
    trainers = assert_trains_like_one_device(case, grid(case, (2, 1), (2, 2)), clip_norm=limit)
    norms = {trainer.last.gradient_norm for trainer in trainers}
    assert len(norms) == 1 and norms.pop() > 2 * limit


def test_nothing_split_is_correct_too() -> None:
    case = job_case(GPT2)
    assert_trains_like_one_device(case, make_plan(case, (2,), 3, tensor=(2,)))


def test_dropout_of_a_group_draws_one_devices_numbers() -> None:
    case = job_case("gpt2-tiny?layers=1&width=32&heads=4&sequence=12&dropout=0.3")
    assert_trains_like_one_device(case, grid(case, (1, 1), (2, 2)))


def test_every_rank_reports_the_loss_of_the_batch_once() -> None:
    case = job_case(GPT2)
    found, trainers = train_on_threads(case, grid(case, (1,), (3,)))
    one = OneDevice(fresh(case.model), lambda params: torch.optim.SGD(params, lr=0.01))
    expected = [one.step(batch, sizes(trainers[0].plan, batch)) for batch in case.batches]
    assert found.losses == pytest.approx(expected, rel=LIMIT)


def test_a_split_that_cannot_be_is_refused() -> None:
    case = job_case(GPT2)
    plan = make_plan(case, (1,), 3, tensor=(8,), splits=[{"blocks.0.attention.query_key_value.weight": 0}])
    with pytest.raises(
        PlaitError, match=r"query_key_value.weight over 8 devices, but it stays whole there: it comes in 4 parts"
    ):
        train_on_threads(case, plan)


# Real ranks


def launched(folder: Path, case: Case, plan: Plan, steps: int, **options: Any) -> list[float]:
    folder.mkdir()
    save_plan(plan, folder / "plan.json")
    settings = Settings(
        job=GPT2, plan=folder / "plan.json", steps=steps, batch_size=12, dtype="float64", timeout_seconds=60, **options
    )
    return run_plan(settings, plan, folder).losses


def test_ranks_train_under_one_grid_and_go_on_under_another(tmp_path: Path, warm_ranks: Any) -> None:
    case, job = job_case(GPT2), load_job(GPT2)
    first, second = grid(case, (1, 1), (2, 2)), grid(case, (1,), (3,))
    losses = launched(tmp_path / "first", case, first, 2, save=tmp_path / "saved", clip_norm=0.1)
    losses += launched(tmp_path / "second", case, second, 1, load=tmp_path / "saved", save=tmp_path / "end")
    batches = job.batches(12, 0)
    one = OneDevice(fresh(case.model), job.optimizer, clip_norm=0.1)
    expected = [one.step(next(batches), (4, 4, 4)) for _ in range(2)]
    one.clip_norm = None
    expected.append(one.step(next(batches), (4, 4, 4)))
    assert losses == pytest.approx(expected, rel=LIMIT, abs=0)
    shapes = {n: tuple(t.shape) for n, t in load_tensors(tmp_path / "end" / "model").items()}
    assert shapes == {n: tuple(p.shape) for n, p in one.parameters.items()}
    moments = load_tensors(tmp_path / "end" / "optimizer")
    name = "blocks.0.attention.query_key_value.weight"
    assert moments[f"{name}/exp_avg"].shape == one.parameters[name].shape
