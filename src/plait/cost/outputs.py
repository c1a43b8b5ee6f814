"""What a node gives, made again without running it: on `meta` nothing matters but layouts and whose memory it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from plait.cost.tensors import same_memory, tensors_in


@dataclass(frozen=True)
class _Layout:
    """A tensor in the memory of the tensor at place `owner` (of those given, then those made), or in its own."""

    owner: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # in the owner's memory, counted from where the owner begins
    dtype: torch.dtype
    memory_bytes: int


class Outputs:
    """The outputs of one node, by layout; `like(given)` makes those of another that computes alike."""

    def __init__(self, result: Any, given: Sequence[Tensor]) -> None:
        self._leaves, self._structure = pytree.tree_flatten(result)
        made = tensors_in(self._leaves)
        everything = [*given, *made]
        owners = same_memory(everything)[len(given) :]
        self._layouts = [_layout(tensor, owner, everything) for tensor, owner in zip(made, owners, strict=True)]
        # memory seen as another type (a complex number as two real ones) is counted otherwise
        self.can_be_made = all(m.dtype == everything[owner].dtype for m, owner in zip(made, owners, strict=True))

    def like(self, given: Sequence[Tensor]) -> Any:
        everything = list(given)
        for layout in self._layouts:
            everything.append(_tensor(layout, everything))
        made = iter(everything[len(given) :])
        leaves = [next(made) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._structure)


def _layout(tensor: Tensor, owner: int, everything: Sequence[Tensor]) -> _Layout:
    beginning = everything[owner].storage_offset() if everything[owner] is not tensor else 0
    return _Layout(
        owner=owner,
        size=tuple(tensor.shape),
        stride=tensor.stride(),
        offset=int(tensor.storage_offset() - beginning),
        dtype=tensor.dtype,
        memory_bytes=tensor.untyped_storage().nbytes(),
    )


def _tensor(layout: _Layout, everything: Sequence[Tensor]) -> Tensor:
    if layout.owner < len(everything):
        owner = everything[layout.owner]
        return owner.as_strided(layout.size, layout.stride, owner.storage_offset() + layout.offset)
    memory = torch.empty(layout.memory_bytes // layout.dtype.itemsize, dtype=layout.dtype, device="meta")
    return memory.as_strided(layout.size, layout.stride, layout.offset)
