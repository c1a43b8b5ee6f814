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

    Gradients of one rank alone are `apart` where that is allowed: as in a plain loop, what the first micro-batch adds
    becomes the parameter's gradient rather than being added to zeros, which is less to do where weights are large for
    the batch. Backwards in halves want the zeros: they add products to them without making the product first.

    A parameter that all ranks of a tensor group have whole counts in norms on one of them: `counted` are those that do
    here.
    """

    def __init__(
        self,
        bucket: Bucket,
        parameters: Mapping[str, nn.Parameter],
        optimizer: OptimizerFactory,
        skippable: Set[str] = frozenset(),
        *,
        apart: bool = False,
        counted: Set[str] | None = None,
    ) -> None:
        self.bucket = bucket
        self.parameters = {name: parameters[name] for name in bucket.parameters}
        self._counted = set(bucket.parameters) if counted is None else counted
        self.apart = apart and len(bucket.ranks) == 1
        self.optimizer = optimizer(list(self.parameters.values()))
        self.scheduler: torch.optim.lr_scheduler.LRScheduler | None = None  # goes on with each step of this bucket
        self._counts: dict[str, Tensor] = {}
        if not self.apart:
            self._put_together(skippable)

    def _put_together(self, skippable: Set[str]) -> None:
        first = next(iter(self.parameters.values()))
        size = sum(p.numel() for p in self.parameters.values())
        counted = [name for name in self.parameters if name in skippable]
        self.flat = torch.zeros(size + len(counted), dtype=first.dtype, device=first.device)
        self.gradients = self.flat[:size]
        self._counts |= {name: self.flat[size + index] for index, name in enumerate(counted)}
        offset = 0
        for name, parameter in self.parameters.items():
            parameter.grad = self.flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
            if name in self._counts:
                parameter.register_post_accumulate_grad_hook(partial(_count, self._counts[name]))

    def clear(self) -> None:
        if not self.apart:
            self.flat.zero_()
            return
        for parameter in self.parameters.values():
            parameter.grad = None

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
        if self.apart:
            return [name for name, parameter in self.parameters.items() if parameter.grad is None]
        return [name for name, count in self._counts.items() if count == 0]

    def squared_norm(self) -> Tensor:
        gradients = self._gradients()
        if self._counted != self.parameters.keys():
            held = [parameter.grad for name, parameter in self.parameters.items() if name in self._counted]
            gradients = [gradient for gradient in held if gradient is not None]
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
        return torch.stack(norms).square().sum() if norms else torch.zeros((), dtype=torch.float64)

    def scale(self, factor: float) -> None:
        for gradient in self._gradients():
            gradient.mul_(factor)

    def _gradients(self) -> list[Tensor]:
        if not self.apart:
            return [self.gradients]
        return [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]


def _count(count: Tensor, _: Tensor) -> None:
    count.add_(1)
