"""What an optimiser keeps and takes, found by stepping it once on a parameter of known size."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from plait.cost.clock import now
from plait.cost.costs import OptimizerCost

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

_NUMBERS = 1 << 18


def optimizer_cost(factory: OptimizerFactory, *, device: torch.device | str = "cpu") -> OptimizerCost:
    """State bytes per parameter byte, and the time of a step, for the optimiser `factory` makes."""
    parameter = nn.Parameter(torch.zeros(_NUMBERS, device=device))
    parameter.grad = torch.ones_like(parameter)
    optimizer = factory([parameter])
    optimizer.step()
    state = optimizer.state[parameter].values()
    kept = sum(t.numel() * t.element_size() for t in state if isinstance(t, Tensor) and t.numel() == _NUMBERS)
    times = []
    for _ in range(5):
        start = now(device)
        optimizer.step()
        times.append(now(device) - start)
    size = parameter.numel() * parameter.element_size()
    return OptimizerCost(kept / size, min(times) / size, 0.0)
