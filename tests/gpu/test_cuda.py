"""On a machine with a GPU: `pytest -m gpu tests/gpu`. One is enough: two ranks then share it through host memory."""

import json
import time
from pathlib import Path

import pytest
import torch

import plait
from plait.cluster import load_cluster
from plait.cost import estimate_costs
from plait.graph import build_graph
from plait.jobs import load_job
from plait.plan import save_plan
from plait.plan.batches import describe
from plait.run.reference import OneDevice
from plait.run.session import run_plan
from plait.run.settings import Settings
from plait.run.worker import build_model, job_batches
from plait.search import Wishes, find_plans

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; run by hand on such a machine"),
]

JOB = "gpt2-tiny?layers=2&width=64&heads=2&sequence=32&dropout=0"


@pytest.mark.parametrize("replicas", [(1, 1), (2,)])
def test_two_ranks_on_gpus_train_like_one_cpu(tmp_path: Path, replicas: tuple[int, ...]) -> None:
    job = load_job(JOB)
    cluster = load_cluster("local:2")
    assert all(device.kind.backend == "cuda" for device in cluster.devices)
    settings = Settings(job=JOB, plan=tmp_path / "plan.json", steps=3, batch_size=8, dtype="float64")
    example = next(job_batches(job, settings))
    model = build_graph(build_model(job, settings), example, name=JOB)
    costs = estimate_costs(model, example, cluster, job.optimizer, largest_rows=4, use_cache=False)
    wishes = Wishes(replicas=replicas, micro_batches=2)
    plan = find_plans(model.graph, costs, cluster, batch_size=8, wishes=wishes, batch=describe(example)).best.plan
    save_plan(plan, settings.plan)
    record = run_plan(settings, plan, tmp_path)
    one = OneDevice(build_graph(build_model(job, settings), example, name=JOB), job.optimizer)
    batches = job_batches(job, settings)
    expected = [one.step(next(batches), (4, 4)) for _ in range(3)]
    assert record.losses == pytest.approx(expected, rel=1e-9)
    assert json.loads((tmp_path / "settings.json").read_text())["dtype"] == "float64"


def test_spans_are_those_of_the_gpu() -> None:
    """The host has long gone on when the GPU is done, so its clock would see next to no computation."""
    job = load_job("gpt2-tiny?layers=4&width=512&heads=8&sequence=256&dropout=0")
    model, batch = job.model(), next(job.batches(32, 0))
    plan = plait.plan(model, batch, cluster="local:1", loss=job.loss, micro_batches=2)
    trainer = plait.parallelize(model, plan, optimizer=job.optimizer, loss=job.loss)
    try:
        for _ in range(4):
            start = time.perf_counter()
            trainer.step(batch)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
        assert 0.6 * seconds < trainer.metrics["compute"] < 1.1 * seconds
    finally:
        trainer.close()


def test_planning_leaves_the_model_where_it_was() -> None:
    job = load_job(JOB)
    model = job.model()
    plait.plan(model, next(job.batches(8, 0)), cluster="local:1", loss=job.loss)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_a_model_on_the_gpu_is_planned_with_a_batch_on_the_host() -> None:
    job = load_job(JOB)
    batch = next(job.batches(8, 0))
    plan = plait.plan(job.model().cuda(), batch, cluster="local:1", loss=job.loss, micro_batches=2)
    trainer = plait.parallelize(job.model().cuda(), plan, optimizer=job.optimizer, loss=job.loss)
    try:
        losses = [trainer.step(batch) for _ in range(5)]
        assert losses[-1] < losses[0]
    finally:
        trainer.close()
