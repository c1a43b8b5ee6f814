"""The noun `MemoryProfile`: what every atom needs while it runs, beyond what the atoms before it saved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True)
class MemoryProfile:
    """Per atom its memory; per value the first atom that saves the memory it lies in.

    That is `ALWAYS_HELD` for memory of parameters and of the batch, and `NEVER_SAVED` where no atom does. `coupled`
    are the atoms where replicas compute a BatchNorm together; none in a model without.
    """

    atoms: tuple[AtomMemory, ...]
    savers: Mapping[str, int] = field(default_factory=dict)
    coupled: tuple[AtomMemory, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "atoms": [list(vars(atom).values()) for atom in self.atoms],
            "savers": dict(self.savers),
            "coupled": [list(vars(atom).values()) for atom in self.coupled],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "MemoryProfile":
        atoms, coupled = (tuple(AtomMemory(*row) for row in data[name]) for name in ("atoms", "coupled"))
        return cls(atoms, dict(data["savers"]), coupled)
