"""Counting what autograd saves: the activation memory of each node, without running out of it."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class SavedBytes:
    """Counts each storage once, for the node that saves it first; parameters and inputs are not activations."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # keeps storages alive so that no two share an address
        self.ignore(known)

    def ignore(self, tensors: Iterable[Tensor]) -> None:
        """Parameters a node reads are not its activations."""
        for tensor in tensors:
            self._seen.add(tensor.untyped_storage()._cdata)
            self._alive.append(tensor)

    def count(self, run: Callable[[], Any]) -> tuple[Any, int]:
        """Runs and returns (result, newly saved bytes)."""
        added = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal added
            storage = tensor.untyped_storage()
            if storage._cdata not in self._seen:
                self._seen.add(storage._cdata)
                self._alive.append(storage)
                added += storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = run()
        return result, added
