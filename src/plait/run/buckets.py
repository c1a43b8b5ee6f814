"""Gradient buckets: parameters whose gradients lie in one flat tensor and are updated by one optimiser."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from plait.cost import OptimizerFactory
from plait.program import Bucket


class GradientBucket:
    """The gradients of `bucket`'s parameters are views of `flat`, so a sum over ranks needs no copying."""

    def __init__(self, bucket: Bucket, parameters: Mapping[str, nn.Parameter], optimizer: OptimizerFactory) -> None:
        self.bucket = bucket
        self.parameters = {name: parameters[name] for name in bucket.parameters}
        first = next(iter(self.parameters.values()))
        size = sum(p.numel() for p in self.parameters.values())
        self.flat = torch.zeros(size, dtype=first.dtype, device=first.device)
        offset = 0
        for parameter in self.parameters.values():
            parameter.grad = self.flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
        self.optimizer = optimizer(list(self.parameters.values()))

    def clear(self) -> None:
        self.flat.zero_()

    def step(self) -> None:
        self.optimizer.step()

    def squared_norm(self) -> Tensor:
        return torch.linalg.vector_norm(self.flat, dtype=torch.float64).square()
