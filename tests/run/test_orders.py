"""Any order of actions, several stages on a rank, split backwards and recomputation train like one device."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from comparison import Case, adamw, assert_trains_like_one_device, job_case, make_case, make_plan, take_rows
from host_clusters import hosts
from lanes import random_lanes
from test_exactness import JOBS, case_of
from test_left_out import Dropped
from torch import Tensor, nn

from plait.cost import WITHOUT_A_SWITCH
from plait.plan import Plan
from plait.program import Op

DROPOUT = "gpt2-tiny?layers=2&width=32&heads=2&sequence=16&dropout=0.3"
SEVERAL = {
    "interleaved": ((0, 1, 0, 1), (1, 1)),
    "interleaved over replicas": ((0, 1, 0, 1), (2, 2)),
    "v": ((0, 1, 2, 3, 3, 2, 1, 0), (1, 1, 1, 1)),
    "v over replicas": ((0, 1, 1, 0), (2, 2)),
    "neighbours": ((0, 0, 1, 1, 1), (2, 1)),
    "all on one": ((0, 0, 0), (1,)),
}


def plan_in_random_order(
    case: Case, kind: str, micro_batches: int, *, split: Any = (), recompute: Any = (), seed: int = 0, **options: Any
) -> Plan:
    placement, layout = SEVERAL[kind]
    lanes = random_lanes(placement, micro_batches, split=split, seed=seed)
    return make_plan(
        case, layout, micro_batches, placement=placement, lanes=lanes, schedule="own", recompute=recompute, **options
    )


@pytest.mark.parametrize("kind", SEVERAL)
@pytest.mark.parametrize("name", ["gpt2", "unet"])
def test_several_stages_on_a_rank_train_like_one_device(name: str, kind: str) -> None:
    case, micro_batches = case_of(name)
    assert_trains_like_one_device(case, plan_in_random_order(case, kind, micro_batches))


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, "all on one") for name in JOBS] + [("unet", "interleaved over replicas"), ("gpt2", "v")],
)
def test_backwards_in_halves_train_like_one_device(name: str, kind: str) -> None:
    case, micro_batches = case_of(name)
    assert_trains_like_one_device(case, plan_in_random_order(case, kind, micro_batches, split=range(8)))


@pytest.mark.parametrize("seed", range(2))
def test_any_order_of_actions_trains_like_one_device(seed: int) -> None:
    case = job_case(JOBS["bert"][0])
    assert_trains_like_one_device(case, plan_in_random_order(case, "v", 6, split=(1, 2, 5), seed=seed))


def test_weights_are_put_off_only_where_the_schedule_goes_back_in_halves() -> None:
    case = job_case(JOBS["gpt2"][0])
    trainers = assert_trains_like_one_device(case, plan_in_random_order(case, "interleaved", 3, split=(1, 2)))
    found = {index: _puts_weights_off(stage.code.module) for t in trainers for index, stage in t.stages.items()}
    assert found == {0: False, 1: True, 2: True, 3: False}


def _puts_weights_off(module: torch.fx.GraphModule) -> bool:
    return any(node.target == "weight_gradients" for node in module.graph.nodes)


def test_a_value_comes_to_a_rank_once_however_many_stages_use_it() -> None:
    case = job_case(JOBS["unet"][0])
    plan = plan_in_random_order(case, "interleaved", 3)
    program = assert_trains_like_one_device(case, plan)[0].program(plan.batch_size)
    for instructions in program.ranks:
        received = [(i.name, i.gradient, i.micro_batch) for i in instructions if i.op is Op.RECV]
        assert len(received) == len(set(received))
    assert {hand_over.source for hand_over in program.hand_overs} != {0}, "some stage passes on what it received"


def test_weights_tied_between_stages_of_one_rank_are_one_tensor() -> None:
    case = job_case(JOBS["gpt2"][0])
    plan = make_plan(case, (1, 1), 3, placement=(0, 1, 0), lanes=random_lanes((0, 1, 0), 3, split=(0, 2)))
    trainer = assert_trains_like_one_device(case, plan)[0]
    (tied,) = [bucket for bucket in trainer.program(plan.batch_size).buckets if bucket.tied]
    assert (tied.parameters, tied.ranks) == (("token_embedding.weight",), (0,))
    first, last = (trainer.stages[index].code.named_parameters()["token_embedding.weight"] for index in (0, 2))
    assert first is last


@pytest.mark.parametrize("rows", [7, 2, 1])
def test_a_short_last_batch_follows_the_same_order(rows: int) -> None:
    case = job_case(JOBS["gpt2"][0])
    batches = [case.batches[0], take_rows(case.batches[1], 0, rows)]
    plan = plan_in_random_order(case, "interleaved over replicas", 3, split=range(4), recompute=(1, 2))
    assert_trains_like_one_device(case, plan, batches=batches)


# Recomputation


@pytest.mark.parametrize("split", [(), range(8)], ids=["whole", "halves"])
@pytest.mark.parametrize("recompute", [range(8), (1, 2)], ids=["all", "some"])
@pytest.mark.parametrize(("name", "kind"), [("unet", "interleaved over replicas"), ("gpt2", "v")])
def test_recomputing_trains_like_one_device(name: str, kind: str, recompute: Any, split: Any) -> None:
    case, micro_batches = case_of(name)
    assert_trains_like_one_device(
        case, plan_in_random_order(case, kind, micro_batches, split=split, recompute=recompute)
    )


@pytest.mark.parametrize("recompute", [(), range(8)], ids=["kept", "recomputed"])
def test_dropout_draws_one_devices_masks(recompute: Any) -> None:
    case = job_case(DROPOUT)
    assert_trains_like_one_device(case, plan_in_random_order(case, "v", 3, split=range(8), recompute=recompute))


def test_a_layer_left_out_stays_left_out_when_recomputed_or_put_off() -> None:
    torch.manual_seed(0)
    case = make_case(Dropped(), [(torch.randn(6, 4),) for _ in range(8)])
    plan = plan_in_random_order(case, "all on one", 2, split=range(3), recompute=(0, 1))
    assert_trains_like_one_device(case, plan, optimizer=adamw)


class Careless(nn.Module):
    """Counts its calls in Python, so it stays in one piece, and keeps a mean of its inputs, which it also uses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) / 3)
        self.register_buffer("mean", torch.zeros(6))
        self.calls: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().sum()) > 1e9:
            self.calls.append(0.0)
        with torch.no_grad():
            self.mean.mul_(0.5).add_(x.mean(0), alpha=0.5)
        return (x - self.mean) @ self.weight


def test_a_module_in_one_piece_finds_its_buffers_as_they_were() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), Careless(), nn.Tanh(), nn.Linear(6, 2))
    batches = [(torch.randn(8, 6), torch.randn(8, 2)) for _ in range(2)]
    case = make_case(module, batches, lambda outputs, batch: F.mse_loss(outputs, batch[1]))
    assert any("one piece" in bind for atom in case.model.graph.atoms for bind in atom.binds)
    plan = plan_in_random_order(case, "all on one", 4, split=(0, 1, 2), recompute=(0, 1, 2))
    assert_trains_like_one_device(case, plan)


# Ways to sum gradients


@pytest.mark.parametrize("sizes", [(2, 2), (3, 1), (4,), (1, 1, 2)], ids=str)
@pytest.mark.parametrize("sync", WITHOUT_A_SWITCH)
def test_every_way_to_sum_gradients_is_exact(sync: str, sizes: tuple[int, ...]) -> None:
    case = job_case(JOBS["gpt2"][0])
    plan = make_plan(case, (4,), 3, cluster=hosts(*sizes), sync=sync, bucket_bytes=4000)
    assert_trains_like_one_device(case, plan, clip_norm=0.1)


@pytest.mark.parametrize("sync", WITHOUT_A_SWITCH)
def test_weights_tied_over_hosts_are_summed_any_way(sync: str) -> None:
    case = job_case(JOBS["gpt2"][0])
    assert_trains_like_one_device(case, make_plan(case, (2, 1, 2), 3, cluster=hosts(2, 3), sync=sync))
