"""The noun `MemoryProfile`: what every atom needs while it runs, beyond what the atoms before it saved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ALWAYS_HELD, NEVER_SAVED = -1, 1 << 30


@dataclass(frozen=True)
class AtomMemory:
    """Bytes beyond what the atoms before this one saved for a micro-batch, at most, as affine functions of the rows.

    `weight_inputs` is what a backward in two halves keeps from the first for the second.
    """

    forward_fixed: float
    forward_per_row: float
    backward_fixed: float
    backward_per_row: float
    weight_inputs_fixed: float = 0.0
    weight_inputs_per_row: float = 0.0


class GradientMemory(NamedTuple):
    """The gradient that one use of a value gives it: in which atom, and which memory that is until which atom.

    Gradients of several values may be one tensor (those of the terms of a sum) or parts of one (those of what was
    put together), and then have one `memory`. It is `spread` times as large as the gradient.
    """

    user: int
    memory: int
    until: int
    spread: float = 1.0


@dataclass(frozen=True)
class ValueMemory:
    """Where a value's memory is counted, and its gradient's.

    `saver` is the first atom that saves the memory the value lies in (`ALWAYS_HELD` for memory of parameters and of
    the batch, `NEVER_SAVED`), `last` the last atom that runs forward while it is there unsaved. `gradients` are by
    use; `total` is their sum, by the value's own atom.
    """

    saver: int
    last: int
    gradients: tuple[GradientMemory, ...] = ()
    total: GradientMemory | None = None


@dataclass(frozen=True)
class MemoryProfile:
    """The memory of atoms and of the values between them.

    `coupled` are the atoms where replicas compute a BatchNorm together; none in a model without.
    """

    atoms: tuple[AtomMemory, ...]
    values: Mapping[str, ValueMemory] = field(default_factory=dict)
    coupled: tuple[AtomMemory, ...] = ()

    def part(self, first: int, kept: Sequence[float]) -> "MemoryProfile":
        """On a device that keeps so much of what the atoms from `first` on need."""

        def of(atoms: tuple[AtomMemory, ...]) -> tuple[AtomMemory, ...]:
            inner = zip(atoms[first : first + len(kept)], kept, strict=True) if atoms else ()
            parts = [AtomMemory(*(share * each for each in vars(atom).values())) for atom, share in inner]
            return (*atoms[:first], *parts, *atoms[first + len(kept) :])

        return MemoryProfile(of(self.atoms), self.values, of(self.coupled))

    def to_dict(self) -> dict[str, Any]:
        return {
            "atoms": [list(vars(atom).values()) for atom in self.atoms],
            "values": {name: list(vars(value).values()) for name, value in self.values.items()},
            "coupled": [list(vars(atom).values()) for atom in self.coupled],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "MemoryProfile":
        atoms, coupled = (tuple(AtomMemory(*row) for row in data[name]) for name in ("atoms", "coupled"))
        return cls(atoms, {name: _value(*row) for name, row in data["values"].items()}, coupled)


def _value(saver: int, last: int, gradients: list[list[int]], total: list[int] | None) -> ValueMemory:
    by_use = tuple(GradientMemory(*gradient) for gradient in gradients)
    return ValueMemory(saver, last, by_use, GradientMemory(*total) if total is not None else None)
