"""Layers that a step leaves out altogether: their parameters get no gradient, and the optimiser lets them be."""

import pytest
import torch
from comparison import Case, adamw, assert_trains_like_one_device, make_case, make_plan, train_alone, train_on_threads
from torch import Tensor, nn


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if torch.rand([]) < 0.7:
                continue
            x = x + layer(x).tanh()
        return self.norm(x).square().mean() + x.square().mean()


@pytest.fixture(scope="module")
def case() -> Case:
    torch.manual_seed(0)
    return make_case(Dropped(), [(torch.randn(6, 4),) for _ in range(8)])


@pytest.mark.parametrize("layout", [(1, 1, 1), (1, 1, 1, 1), (1,)], ids=str)
def test_adamw_trains_like_one_device(case: Case, layout: tuple[int, ...]) -> None:
    plan = make_plan(case, layout, 2)
    assert_trains_like_one_device(case, plan, optimizer=adamw)


def test_some_step_leaves_a_layer_out_and_adamw_leaves_it_alone(case: Case) -> None:
    plan = make_plan(case, (1,), 2)
    one, two = (train_alone(case, plan, optimizer=adamw, batches=case.batches[:n]) for n in (1, 2))
    left_out = {n for n in one.state if "layers" in n} - set(two.gradients)
    assert left_out
    assert all(torch.equal(one.state[name], two.state[name]) for name in left_out)


def test_replicas_that_drop_on_their_own_train_the_same_every_time(case: Case) -> None:
    plan = make_plan(case, (2, 1), 2)
    first, _ = train_on_threads(case, plan, optimizer=adamw)
    again, _ = train_on_threads(case, plan, optimizer=adamw)
    assert all(torch.equal(first.state[name], again.state[name]) for name in first.state)
