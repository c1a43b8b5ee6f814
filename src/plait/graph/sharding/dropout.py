"""Dropout on a part of a tensor, alone or inside attention, with the numbers one device would draw for that part."""

import torch
from torch import Tensor

from plait.graph.randomness import Randomness, seeded
from plait.graph.sharding.collectives import TensorGroup, take_part
from plait.graph.sharding.layout import own_cells


def dropout_of_part(
    randomness: Randomness,
    number: int,
    group: TensorGroup,
    x: Tensor,
    probability: float,
    dim: int,
    cells: int,
    unit: int,
) -> Tensor:
    """Dropout as the random node of this number does it."""
    return x * seeded(randomness, number, mask_of_part, group, x, probability, dim, cells, unit)


def mask_of_part(group: TensorGroup, x: Tensor, probability: float, dim: int, cells: int, unit: int) -> Tensor:
    """What PyTorch multiplies a tensor by, of which `x` is this device's part."""
    _, own = own_cells(cells, group.degree, group.index)
    shape = list(x.shape)
    shape[dim] = shape[dim] // own * cells
    order = sorted(range(x.dim()), key=x.stride, reverse=True)  # numbers are drawn in the order of memory
    ones = torch.empty_permuted(shape, order, dtype=x.dtype, device=x.device).fill_(1.0)
    mask = torch.ops.aten.dropout.default(ones, probability, True)
    return take_part(group.index, group.degree, mask, dim, cells, unit)


def attention_of_part(
    randomness: Randomness,
    number: int,
    group: TensorGroup,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    probability: float,
    is_causal: bool,
    scale: float | None,
    grouped: bool,
    dim: int,
    cells: int,
    unit: int,
) -> Tensor:
    """Attention with dropout on this device's heads, computed as PyTorch does where its kernels know no dropout."""
    if grouped:
        repeats = query.shape[dim] // key.shape[dim]
        key, value = key.repeat_interleave(repeats, dim), value.repeat_interleave(repeats, dim)
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1)
    return dropout_of_part(randomness, number, group, weights, probability, dim, cells, unit) @ value
