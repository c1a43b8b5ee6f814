"""The memory of tensors while something runs, against what PyTorch's profiler reports of its allocator."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from plait.cost.live import LiveMemory

SIZE = 300
Case = tuple[Callable[[], object], list[Tensor]]  # what is run, and the tensors there before


def weight() -> nn.Parameter:
    made = nn.Parameter(torch.ones(SIZE, SIZE))
    made.grad = torch.ones_like(made)
    return made


def tied_weights() -> Case:
    tied, ids = weight(), torch.arange(3)
    return lambda: F.linear(F.embedding(ids, tied), tied).sum().backward(), [tied, ids]


def branches() -> Case:
    start = weight()

    def run() -> None:
        x = torch.sin(start)
        (x + torch.sigmoid(x) * torch.tanh(x)).square().sum().backward()

    return run, [start]


def convolution(dtype: torch.dtype = torch.float32) -> Case:
    layer, images = nn.Conv2d(64, 64, 3, padding=1, dtype=dtype), torch.ones(2, 64, 8, 8, dtype=dtype)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return lambda: layer(images).square().sum().backward(), [*layer.parameters(), images]


def convolution_in_float64() -> Case:
    return convolution(torch.float64)


def update() -> Case:
    parameter = weight()
    optimizer = torch.optim.AdamW([parameter])
    optimizer.step()
    return optimizer.step, [parameter, *optimizer.state[parameter].values()]


@pytest.mark.parametrize("make", [tied_weights, branches, convolution, convolution_in_float64, update])
def test_the_most_that_is_alive_is_what_the_allocator_reports(make: Callable[[], Case]) -> None:
    run, given = make()
    run()
    with LiveMemory([*given, *(tensor.grad for tensor in given if tensor.grad is not None)]) as live:
        run()
    assert live.now == 0
    assert live.peak == pytest.approx(profiled(run), rel=0.001)


def profiled(run: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    now = most = 0
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def test_on_meta_the_same_is_counted() -> None:
    def most(device: str) -> int:
        layer = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.LayerNorm(SIZE)).to(device)
        with LiveMemory(layer.parameters()) as live:
            layer(torch.ones(10, SIZE, device=device)).sum().backward()
        return live.peak

    assert most("meta") == most("cpu")
