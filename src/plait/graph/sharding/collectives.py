"""The steps from one layout to another, as nodes of a stage's code: each knows what its backward exchanges.

| function     | from      | to       | forward    | backward   |
| ------------ | --------- | -------- | ---------- | ---------- |
| `summed`     | `PARTIAL` | `WHOLE`  | all-reduce | nothing    |
| `copied`     | `WHOLE`   | `COPIED` | nothing    | all-reduce |
| `gathered`   | `Split`   | `WHOLE`  | all-gather | nothing    |
| `own_part`   | `WHOLE`   | `Split`  | nothing    | all-gather |

All devices of a group run the same nodes in the same order, backward too, so that their calls meet.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from plait.graph.sharding.layout import own_cells


class TensorGroup(Protocol):
    """The devices that share a stage's layers, as one of them sees it."""

    index: int
    degree: int

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Tensors of one shape, in the order of the devices."""
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor: ...


def summed(group: TensorGroup, x: Tensor) -> Tensor:
    result: Tensor = _Summed.apply(group, x)
    return result


def copied(group: TensorGroup, x: Tensor) -> Tensor:
    result: Tensor = _Copied.apply(group, x)
    return result


def gathered(group: TensorGroup, x: Tensor, dim: int, cells: int, unit: int) -> Tensor:
    result: Tensor = _Gathered.apply(group, x, dim, cells, unit)
    return result


def own_part(group: TensorGroup, x: Tensor, dim: int, cells: int, unit: int) -> Tensor:
    result: Tensor = _OwnPart.apply(group, x, dim, cells, unit)
    return result


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, group: TensorGroup, x: Tensor) -> Tensor:
        return group.all_reduce(x)

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Any:
        return None, gradients[0]


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: TensorGroup, x: Tensor) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, ctx.group.all_reduce(gradients[0])


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: TensorGroup, x: Tensor, dim: int, cells: int, unit: int) -> Tensor:
        ctx.group, ctx.how = group, (dim, cells, unit)
        return gather(group, x, dim, cells, unit)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, take_part(ctx.group.index, ctx.group.degree, gradients[0], *ctx.how), None, None, None


class _OwnPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: TensorGroup, x: Tensor, dim: int, cells: int, unit: int) -> Tensor:
        ctx.group, ctx.how = group, (dim, cells, unit)
        return take_part(group.index, group.degree, x, dim, cells, unit)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, gather(ctx.group, gradients[0], *ctx.how), None, None, None


def take_part(index: int, degree: int, whole: Tensor, dim: int, cells: int, unit: int) -> Tensor:
    """Device `index`'s cells, in memory of their own with the dimensions in the whole tensor's order."""
    first, count = own_cells(cells, degree, index)
    parted = whole.unflatten(dim, (-1, cells, unit))
    dim %= whole.dim()
    return parted.narrow(dim + 1, first, count).clone(memory_format=torch.preserve_format).flatten(dim, dim + 2)


def gather(group: TensorGroup, part: Tensor, dim: int, cells: int, unit: int) -> Tensor:
    """The whole tensor from all devices' parts; those are sent as large as the largest."""
    dim %= part.dim()
    _, own = own_cells(cells, group.degree, group.index)
    _, most = own_cells(cells, group.degree, 0)
    mine = part.unflatten(dim, (-1, own, unit))
    if own < most:
        missing = list(mine.shape)
        missing[dim + 1] = most - own
        mine = torch.cat([mine, mine.new_zeros(missing)], dim + 1)
    parts = group.all_gather(mine.contiguous())
    counts = [own_cells(cells, group.degree, index)[1] for index in range(group.degree)]
    cut = [other.narrow(dim + 1, 0, count) for other, count in zip(parts, counts, strict=True)]
    return torch.cat(cut, dim + 1).flatten(dim, dim + 2)
