"""A job whose ranks misbehave on order: FRAGILE="RANK PLACE CALL ACTION", as in "2 forward 5 raise"."""

import os
import signal
import time
from collections import Counter

import torch
from torch import Tensor, nn

WIDTH = 8
batch_size = 8
_calls: Counter[str] = Counter()


def misbehave(place: str) -> None:
    order = os.environ.get("FRAGILE", "").split()
    if len(order) != 4 or order[:2] != [os.environ.get("RANK"), place]:
        return
    _calls[place] += 1
    if _calls[place] != int(order[2]):
        return
    if order[3] == "raise":
        raise ValueError(f"{place} is fragile")
    time.sleep(0.4)  # long enough that the position is known
    if order[3] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if order[3] == "leave":
        os._exit(0)
    time.sleep(3600)


@torch.library.custom_op("fragile::pass_on", mutates_args=())
def pass_on(x: Tensor) -> Tensor:
    misbehave("forward")
    return x.clone()


@pass_on.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _backward(ctx: object, gradient: Tensor) -> Tensor:
    misbehave("backward")
    return gradient.clone()


pass_on.register_autograd(_backward)


class Fragile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = pass_on(layer(x)).tanh()
        return (x - y).square().mean()


def model() -> nn.Module:
    return Fragile()


def batches(batch_size: int):
    while True:
        misbehave("batches")
        yield {"x": torch.randn(batch_size, WIDTH), "y": torch.randn(batch_size, WIDTH)}


class FragileOptimizer(torch.optim.SGD):
    def step(self, closure=None):
        misbehave("optimizer")
        return super().step(closure)


def optimizer(params):
    return FragileOptimizer(params, lr=0.1)
