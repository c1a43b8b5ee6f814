"""Tensors and arguments described so that they can be compared: equal where nothing but their values may differ."""

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, fx


def layout(value: Any) -> Hashable:
    """Sizes, strides and type of a tensor, or of each in a tuple."""
    if isinstance(value, Tensor):
        sizes = tuple(_size(size) for size in value.shape)
        return sizes, tuple(_size(stride) for stride in value.stride()), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple(layout(item) for item in value)
    return plain(value)


def _size(size: int | torch.SymInt) -> Hashable:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def plain(value: Any, places: Mapping[fx.Node, int] = {}) -> Hashable:
    """An argument to be compared: a node by its place, a number also by its type, since 1 equals 1.0."""
    if isinstance(value, fx.Node):
        return fx.Node, places[value]
    if isinstance(value, (tuple, list)):
        return tuple(plain(item, places) for item in value)
    if isinstance(value, dict):
        return tuple((key, plain(item, places)) for key, item in value.items())
    if isinstance(value, slice):
        return slice, plain((value.start, value.stop, value.step), places)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    return (type(value), value) if isinstance(value, Hashable) else (type(value), id(value))


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """A tensor's dimensions from the outermost in memory to the innermost; none where that is their own order.

    Tensors with holes or overlaps count as in their own order, which is what a copy of them has.
    """
    sizes, strides = tensor.shape, tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: for_many_rows(strides[dim]), reverse=True)
    expected = 1
    for dim in reversed(order):
        if for_many_rows(sizes[dim]) != 1 and for_many_rows(strides[dim]) != expected:
            return ()
        expected *= for_many_rows(sizes[dim])
    return () if order == list(range(tensor.dim())) else tuple(order)


ROWS = 1009  # larger than usual strides, and prime, so that sizes in terms of the rows compare as they do for any rows


def for_many_rows(size: int | torch.SymInt) -> int:
    """A size as a plain number, for sizes to be compared that may grow with the rows."""
    if not isinstance(size, torch.SymInt):
        return size
    expression = size.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, ROWS)))
