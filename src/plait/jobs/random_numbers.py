"""Random numbers for data, kept apart from those that models draw.

What a model draws (dropout, initial weights) differs from rank to rank; data must not.
"""

import contextlib
import random
from collections.abc import Iterator

import torch


def seeded_generator(seed: int) -> torch.Generator:
    """A generator of its own for one stream of data."""
    return torch.Generator(device="cpu").manual_seed(seed)


class SeparateRandomNumbers:
    """Seeded states of torch's CPU generator and of `random`, for code that draws from the global ones."""

    def __init__(self, seed: int) -> None:
        self._torch_state = seeded_generator(seed).get_state()
        self._python_state = random.Random(seed).getstate()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Put these states in place of the process's own, and those back afterwards."""
        torch_state, python_state = torch.default_generator.get_state(), random.getstate()
        torch.default_generator.set_state(self._torch_state)
        random.setstate(self._python_state)
        try:
            yield
        finally:
            self._torch_state, self._python_state = torch.default_generator.get_state(), random.getstate()
            torch.default_generator.set_state(torch_state)
            random.setstate(python_state)
