"""Tensors in a nest of values, and which of them lie in the same memory."""

from collections.abc import Sequence
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor


def tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def same_memory(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Per tensor the place of the first that has the same memory."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(tensor.untyped_storage()._cdata, place) for place, tensor in enumerate(tensors))
