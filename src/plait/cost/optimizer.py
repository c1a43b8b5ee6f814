"""What an optimiser keeps and takes, found by stepping it on parameters of known sizes."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from plait.cost.clock import now
from plait.cost.costs import OptimizerCost
from plait.cost.live import LiveMemory
from plait.cost.tensors import tensors_in

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

_LARGE, _SMALL = 1 << 18, 16  # numbers per parameter
_MANY = 16


def optimizer_cost(factory: OptimizerFactory, *, device: torch.device | str = "cpu") -> OptimizerCost:
    """State bytes per parameter byte, and the time of a step, for the optimiser `factory` makes.

    Three steps tell the parts of the time: one small parameter, many small ones, one large one.
    """
    _, one = _step(factory, 1, _SMALL, device)
    _, many = _step(factory, _MANY, _SMALL, device)
    state, large = _step(factory, 1, _LARGE, device)
    per_tensor = max(many - one, 0.0) / (_MANY - 1)
    size = _LARGE * torch.get_default_dtype().itemsize
    return OptimizerCost(
        state_bytes_per_byte=state / size,
        seconds_per_byte=max(large - one, 0.0) / size,
        seconds_fixed=max(one - per_tensor, 0.0),
        seconds_per_tensor=per_tensor,
        step_bytes_per_byte=_step_bytes(factory, device) / size,
    )


def _step_bytes(factory: OptimizerFactory, device: torch.device | str) -> int:
    """The most a step takes besides its state, for one parameter."""
    optimizer = _stepped(factory, 1, _LARGE, device)
    with LiveMemory(tensors_in([optimizer.param_groups, [list(s.values()) for s in optimizer.state.values()]])) as live:
        optimizer.step()
    return live.peak


def _stepped(factory: OptimizerFactory, count: int, numbers: int, device: torch.device | str) -> torch.optim.Optimizer:
    """An optimiser after its first step, which makes its state."""
    parameters = [nn.Parameter(torch.zeros(numbers, device=device)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = factory(parameters)
    optimizer.step()
    return optimizer


def _step(factory: OptimizerFactory, count: int, numbers: int, device: torch.device | str) -> tuple[int, float]:
    """State bytes of the first parameter, and seconds of clearing the gradients and stepping."""
    optimizer = _stepped(factory, count, numbers, device)
    first = optimizer.param_groups[0]["params"][0]
    state = optimizer.state[first].values()
    kept = sum(t.numel() * t.element_size() for t in state if isinstance(t, Tensor) and t.numel() == numbers)
    times = []
    for _ in range(5):
        start = now(device)
        first.grad.zero_()  # a bucket's gradients are cleared as one tensor
        optimizer.step()
        times.append(now(device) - start)
    return kept, min(times)
