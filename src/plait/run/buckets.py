"""Gradient buckets: parameters whose gradients lie in one flat tensor and are updated by one optimiser."""

from collections.abc import Mapping, Set
from functools import partial

import torch
from torch import Tensor, nn

from plait.cost import OptimizerFactory
from plait.program import Bucket


class GradientBucket:
    """The gradients of `bucket`'s parameters are views of `flat`, so a sum over ranks needs no copying.

    Behind them `flat` counts, for each of the parameters a step may leave out (`skippable`), how often it got a
    gradient. Summed over the ranks with the rest, it tells which were left out everywhere: their gradient is none
    rather than zero, and optimisers let such parameters be.
    """

    def __init__(
        self,
        bucket: Bucket,
        parameters: Mapping[str, nn.Parameter],
        optimizer: OptimizerFactory,
        skippable: Set[str] = frozenset(),
    ) -> None:
        self.bucket = bucket
        self.parameters = {name: parameters[name] for name in bucket.parameters}
        first = next(iter(self.parameters.values()))
        size = sum(p.numel() for p in self.parameters.values())
        counted = [name for name in self.parameters if name in skippable]
        self.flat = torch.zeros(size + len(counted), dtype=first.dtype, device=first.device)
        self.gradients = self.flat[:size]
        self._counts = {name: self.flat[size + index] for index, name in enumerate(counted)}
        offset = 0
        for name, parameter in self.parameters.items():
            parameter.grad = self.flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
            if name in self._counts:
                parameter.register_post_accumulate_grad_hook(partial(_count, self._counts[name]))
        self.optimizer = optimizer(list(self.parameters.values()))
        self.scheduler: torch.optim.lr_scheduler.LRScheduler | None = None  # goes on with each step of this bucket

    def clear(self) -> None:
        self.flat.zero_()

    def step(self) -> None:
        held = {name: self.parameters[name].grad for name in self.left_out()}
        for name in held:
            self.parameters[name].grad = None
        self.optimizer.step()
        for name, gradient in held.items():
            self.parameters[name].grad = gradient
        if self.scheduler is not None:
            self.scheduler.step()

    def left_out(self) -> list[str]:
        """Parameters that got no gradient in this step, on any rank."""
        return [name for name, count in self._counts.items() if count == 0]

    def squared_norm(self) -> Tensor:
        return torch.linalg.vector_norm(self.gradients, dtype=torch.float64).square()


def _count(count: Tensor, _: Tensor) -> None:
    count.add_(1)
