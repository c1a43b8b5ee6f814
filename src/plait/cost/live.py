"""The memory of tensors, from when each is made until it is let go, while a program runs.

Every operation is seen, those of a backward and of an optimiser too. Not seen is memory that a kernel takes and gives
back within one operation, but for what is known of it (`momentary_bytes`).
"""

import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from plait.cost.kernels import momentary_bytes
from plait.cost.tensors import tensors_in

Place = tuple[str, int | None]  # forward or backward, and the atom where one runs


class LiveMemory(TorchDispatchMode):
    """While entered, `now` is the bytes of tensors made since and still there, `most` their maximum by place.

    `gone` is where the memory of each number was let go.
    """

    def __init__(self, given: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = 0
        self.most: dict[Place, int] = {}
        self.at: Place = ("", None)
        self.gone: dict[int, Place] = {}
        self._given = {tensor.untyped_storage()._cdata for tensor in given}
        self._numbers: dict[int, tuple[int, Any]] = {}  # by address; the weak reference ends the entry
        self._made = 0
        self._backward: tuple[Sequence[int], Sequence[int | None]] | None = None

    @property
    def peak(self) -> int:
        return max(self.most.values(), default=0)

    def number(self, tensor: Tensor) -> int | None:
        """A number for the tensor's memory that no other has; none for what was given."""
        found = self._numbers.get(tensor.untyped_storage()._cdata)
        return None if found is None else found[0]

    def note(self, for_a_moment: int = 0) -> None:
        self.most[self.at] = max(self.most.get(self.at, 0), self.now + for_a_moment)

    @contextmanager
    def backward_of(self, starts: Sequence[int], places: Sequence[int | None]) -> Iterator[None]:
        """Operations now belong to the place whose forward made the autograd node that runs them."""
        self._backward = starts, places
        try:
            yield
        finally:
            self._backward = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            self._meet(tensor.untyped_storage())
        if self._backward is not None:
            self._find_place(*self._backward)
        self.note(momentary_bytes(func, args, result))
        return result

    def _meet(self, storage: torch.UntypedStorage) -> None:
        address, num_bytes = storage._cdata, storage.nbytes()
        if address in self._given or address in self._numbers:
            return

        def let_go(_: Any) -> None:
            number, _ = self._numbers.pop(address)
            self.gone[number] = self.at
            self.now -= num_bytes

        self._numbers[address] = self._made, weakref.ref(storage, let_go)
        self._made += 1
        self.now += num_bytes

    def _find_place(self, starts: Sequence[int], places: Sequence[int | None]) -> None:
        node = torch._C._current_autograd_node()
        if node is None:
            return
        number = node._sequence_nr()
        if starts and starts[0] <= number < 1 << 63:  # not where a gradient is added to a parameter's
            self.at = ("backward", places[bisect_right(starts, number) - 1])
