"""Where a constructor sets or restores a generator, told from the generator's states alone."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


class CannotDefer(Exception):
    """The constructor does something a tape cannot hold; the model must be built whole."""


@dataclass(frozen=True)
class Reseeded:
    """The constructor has set a generator: to a new state, or back to what it was after an earlier draw."""

    generator: torch.Generator
    state: Tensor | int


class GeneratorStates:
    """Tells where a constructor sets a generator, though the tape leaves its draws undone.

    Every recorded draw moves the generator a little, each by another number of draws, so that every point of the tape
    has a state of its own: one that was seen before was restored (`torch.random.fork_rng`), any other is a new seed.
    """

    def __init__(self) -> None:
        self._first: dict[torch.Generator, Tensor] = {}
        self._after: dict[torch.Generator, str] = {}
        self._index: dict[tuple[torch.Generator, str], int] = {}
        self._marked: dict[int, Tensor | None] = {}

    def set_since(self, index: int, *generators: torch.Generator) -> Iterator[Reseeded]:
        """Where a generator is not as the last draw left it, the step that sets it."""
        for generator in generators or tuple(self._after):
            state = generator.get_state()
            self._first.setdefault(generator, state)
            digest = _digest(state)
            if digest != self._after.get(generator):
                known = self._index.get((generator, digest))
                if known is not None:
                    self._marked[known] = None
                self._after[generator] = digest
                self._index.setdefault((generator, digest), index)
                yield Reseeded(generator, state if known is None else known)

    def advance(self, generator: torch.Generator, index: int) -> None:
        if generator.device.type != "cpu":
            raise CannotDefer(f"random numbers of device {generator.device}")
        torch.empty(1 + index, device="cpu").uniform_(generator=generator)
        digest = _digest(generator.get_state())
        self._after[generator] = digest
        self._index[generator, digest] = index

    def follow(self, index: int, generator: torch.Generator | None, state: Tensor | int | None) -> None:
        """Playing: sets the generator where this step does, and keeps what a later step goes back to."""
        if generator is None:
            return
        if state is not None:
            restored = state if isinstance(state, Tensor) else self._marked[state]
            assert restored is not None
            generator.set_state(restored)
        if index in self._marked:
            self._marked[index] = generator.get_state()

    def undo(self) -> None:
        """Generators as they were before they were first drawn from."""
        for generator, state in self._first.items():
            generator.set_state(state)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Generators are afterwards as they were before."""
        states = {generator: generator.get_state() for generator in self._after}
        yield
        for generator, state in states.items():
            generator.set_state(state)


def _digest(state: Tensor) -> str:
    return hashlib.sha256(state.numpy().tobytes()).hexdigest()
