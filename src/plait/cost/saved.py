"""Counting what autograd saves: the activation memory of each node, without running out of it.

What a node saves is recorded by where its memory comes from, so that the record of one node holds for all that
compute alike, each with tensors of its own. Memory that several nodes save is there once.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(frozen=True)
class Saved:
    """What one node saves: memory of tensors it was given and made, by their places, and bytes only it knows."""

    given: tuple[int, ...]
    made: tuple[int, ...]
    inner_bytes: int


def record_saved(run: Callable[[], Any], given: Sequence[Tensor]) -> tuple[Any, Saved]:
    """Runs and returns (result, what was saved)."""
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    from_given = _places(storages, given)
    from_made = _places(storages, tensors_in(result))
    inner = storages.keys() - from_given.keys() - from_made.keys()
    return result, Saved(
        given=tuple(from_given.values()),
        made=tuple(place for storage, place in from_made.items() if storage not in from_given),
        inner_bytes=sum(storages[storage].nbytes() for storage in inner),
    )


def tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def same_memory(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Per tensor the place of the first that has the same memory."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(tensor.untyped_storage()._cdata, place) for place, tensor in enumerate(tensors))


def _places(storages: dict[int, torch.UntypedStorage], tensors: Sequence[Tensor]) -> dict[int, int]:
    """For those storages that a tensor uses, the place of the first tensor that does."""
    first: dict[int, int] = {}
    for place, tensor in enumerate(tensors):
        if (storage := tensor.untyped_storage()._cdata) in storages:
            first.setdefault(storage, place)
    return first


class SavedBytes:
    """Counts memory once, for the node that saves it first; parameters and inputs are not activations."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        self._seen: set[StorageWeakRef] = set()  # lets the memory go, but not its address
        self.ignore(known)

    def ignore(self, tensors: Iterable[Tensor]) -> None:
        """Parameters a node reads are not its activations."""
        self._seen.update(StorageWeakRef(tensor.untyped_storage()) for tensor in tensors)

    def add(self, saved: Saved, given: Sequence[Tensor], result: Any) -> int:
        """Bytes that a node with these tensors saves and that nobody saved before it."""
        made = tensors_in(result) if saved.made else []
        added = saved.inner_bytes
        for tensor in [*(given[place] for place in saved.given), *(made[place] for place in saved.made)]:
            storage = tensor.untyped_storage()
            reference = StorageWeakRef(storage)
            if reference not in self._seen:
                self._seen.add(reference)
                added += storage.nbytes()
        return added
