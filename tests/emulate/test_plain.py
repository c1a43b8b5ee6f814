"""Plans as plain PyTorch runs them: which it has words for, and a run of each kind on the bed."""

from pathlib import Path

import pytest

from plait.emulate.dilation import Dilation
from plait.emulate.plain import check_plain, plain_task
from plait.emulate.testbed import emulate_plain
from plait.errors import PlaitError
from plait.plan import Plan
from plait.search import evaluate

CROWDED = 0.3  # a shared machine may be busy


@pytest.mark.parametrize(
    ("wishes", "why"),
    [
        ({"stages": 2, "schedule": "zb-h1"}, "no schedule 'zb-h1'"),
        ({"stages": 2, "replicas": (1, 2), "schedule": "1f1b"}, "equally many devices"),
        ({"stages": 2, "replicas": (2, 2), "schedule": "1f1b", "recompute": True}, "does not recompute"),
    ],
)
def test_what_plain_pytorch_cannot_express_is_refused_with_the_fix(small, wishes: dict[str, object], why: str) -> None:
    with pytest.raises(PlaitError, match=why) as refusal:
        check_plain(small.plan(**wishes))
    assert "Plan with --schedule 1f1b" in str(refusal.value)


def test_layers_have_the_time_and_the_bytes_of_the_plans_stages(small) -> None:
    plan, prepared = small.plan(stages=2, replicas=(2, 2), schedule="1f1b"), small.prepared
    task = plain_task(plan, prepared.graph, prepared.costs, Dilation(time=10.0, payload=4.0, mtu=1500))
    assert sorted(rank for ranks in task.pipelines for rank in ranks) == [0, 1, 2, 3]
    for rank, (stage,) in enumerate(task.stages):
        (index,) = (number for number in range(2) if rank in plan.stage_ranks(number))
        kind = plan.cluster.devices[plan.devices[rank]].kind.name
        start, end = plan.stages[index].start, plan.stages[index].end
        rows = plan.batch_size // plan.micro_batches // 2
        own = prepared.costs.seconds(kind, "forward", start, end, rows) * 10.0
        assert sum(layer.forward for layer in stage.layers) == pytest.approx(own)
        held = sum(p.num_bytes for p in plan.cut(prepared.graph)[index].parameters if p.trainable)
        assert sum(layer.parameter_bytes for layer in stage.layers) == pytest.approx(held / 4.0, rel=1e-3)


def test_data_parallelism_runs_as_distributed_data_parallel(machine, small, tmp_path: Path) -> None:
    seconds = run(small, small.plan(stages=1, replicas=(4,), recompute=False), tmp_path)
    assert seconds > 0.0


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_pipeline_runs_as_pytorchs_own(machine, small, replicas: int, tmp_path: Path) -> None:
    plan = small.plan(stages=2, replicas=(replicas,) * 2, schedule="1f1b", recompute=False)
    simulated = evaluate(plan, small.prepared.graph, small.prepared.costs).step_seconds
    assert run(small, plan, tmp_path) > simulated * (1 - CROWDED)


def run(small, plan: Plan, folder: Path) -> float:
    prepared = small.prepared
    return min(emulate_plain(plan, prepared.graph, prepared.costs, folder, num_steps=3, force=True))
