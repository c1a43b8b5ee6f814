"""`import plait`: plan and train from a script."""

import runpy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from comparison import LIMIT, difference, make_case, make_plan, sgd, train_alone, train_on_threads
from torch import Tensor, nn

import plait
from plait.errors import PlaitError
from plait.program import parse_instruction
from plait.run.executor import StepResult

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def own_cost_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def loss(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(outputs, batch[1])


BATCH = (torch.ones(8, 6), torch.zeros(8, 2))


def test_a_plan_is_for_the_cluster_and_batch_asked_for() -> None:
    plan = plait.plan(make_model(), BATCH, cluster="local:3", batch_size=24, loss=loss, replicas=(2, 1), name="mine")
    assert (plan.model, plan.batch_size, plan.num_ranks) == ("mine", 24, 3)
    assert [stage.replicas for stage in plan.stages] == [2, 1]
    assert plan.predicted_seconds > 0
    fixed = plait.plan(make_model(), BATCH, cluster="local:2", loss=loss, stages=2, micro_batches=4, schedule="gpipe")
    assert (len(fixed.stages), fixed.micro_batches, fixed.schedule, fixed.batch_size) == (2, 4, "gpipe", 8)


def test_a_plan_for_cards_elsewhere_needs_no_card() -> None:
    cluster = EXAMPLES / "clusters" / "two-hosts.toml"
    plan = plait.plan(make_model(), BATCH, cluster=cluster, batch_size=64, loss=loss)
    assert plan.predicted_seconds > 0


def test_a_planned_model_trains_like_one_device() -> None:
    torch.manual_seed(1)
    batches = [(torch.randn(8, 6), torch.randn(8, 2)) for _ in range(2)]
    case = make_case(make_model(), batches, loss)
    plan = plait.plan(make_model().double(), case.batches[0], cluster="local:4", loss=loss, replicas=(2, 2))
    assert plan.fingerprint == make_plan(case, (2, 2), 1).fingerprint
    found, _ = train_on_threads(case, plan)
    assert difference(found, train_alone(case, plan)) <= LIMIT


def test_one_rank_trains_without_a_launcher() -> None:
    plan = plait.plan(make_model(), BATCH, cluster="local:1", loss=loss, micro_batches=2)
    trainer = plait.parallelize(make_model(), plan, loss=loss, optimizer=sgd)
    try:
        model = make_model()
        first = loss(model(BATCH[0]), BATCH).item()
        losses = [trainer.step(BATCH) for _ in range(20)]
        assert losses[0] == pytest.approx(first, rel=1e-5)
        assert losses[-1] < losses[0]
        exposed = {"exposed_gradient", "exposed_activation", "exposed_tied"}
        assert set(trainer.metrics) == {"loss", "compute", "wait", *exposed}
        assert all(trainer.metrics[name] == 0.0 for name in exposed)
        waits = {"AWAIT s0.0": (1.0, 3.0), "AWAIT tied.0": (3.0, 4.0), "F s0 m1 rows 0:4": (4.0, 4.5)}
        trainer.last = StepResult(records=[("wait", parse_instruction(what), *at) for what, at in waits.items()])
        assert [trainer.metrics[name] for name in sorted(exposed)] == [0.5, 2.0, 1.0]
    finally:
        trainer.close()
    assert not dist.is_initialized()


def test_a_plan_of_several_ranks_needs_a_launcher() -> None:
    plan = plait.plan(make_model(), BATCH, cluster="local:2", loss=loss, stages=2)
    with pytest.raises(PlaitError, match=r"started alone. Start it with `torchrun --nproc-per-node 2"):
        plait.parallelize(make_model(), plan, loss=loss, optimizer=sgd)
    assert not dist.is_initialized()


def test_another_model_than_the_plans_is_refused() -> None:
    plan = plait.plan(make_model(), BATCH, cluster="local:1", loss=loss)
    with pytest.raises(PlaitError, match="the plan was made for"):
        plait.parallelize(nn.Linear(6, 2), plan, loss=loss, optimizer=sgd)


def test_the_api_example_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "api.py"), run_name="__main__")
    losses = [float(line.rsplit(" ", 1)[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 5 and losses[-1] < losses[0] / 2
