"""A job file: `plait train examples/custom_model.py --cluster local:2 --steps 50`."""

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

batch_size = 64


class Residual(nn.Module):
    """A perceptron with skip connections; nothing in it knows of stages."""

    def __init__(self, width: int = 64, depth: int = 4, classes: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, classes)

    def forward(self, points: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(points))
        for block in self.blocks:
            hidden = hidden + torch.tanh(block(hidden))
        return self.last(hidden)


def model() -> nn.Module:
    return Residual()


def batches(batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Points in the plane, labelled by their quadrant."""
    while True:
        points = torch.randn(batch_size, 2)
        yield points, (points > 0).long() @ torch.tensor([1, 2])


def loss(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(outputs, batch[1])


def optimizer(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=3e-3)
