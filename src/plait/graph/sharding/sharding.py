"""The noun `Sharding`: how the devices of a tensor group share a stretch of the chain. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Collective:
    """An exchange inside an atom's forward or backward.

    Its bytes are those of the whole tensor, `bytes_per_row` of them for every row of the batch.
    """

    atom: int
    kind: str  # "all-reduce" | "all-gather" | "reduce-scatter"
    phase: str  # "forward" | "backward"
    bytes_per_row: float
    fixed_bytes: float = 0.0


@dataclass(frozen=True)
class Sharding:
    """How `degree` devices share atoms `start..end-1`.

    `work` is, per atom, the part of its time that the busiest device takes (1.0: whole), and `kept` the part of its
    activations' bytes that a device keeps.
    """

    start: int
    end: int
    degree: int
    split: Mapping[str, int]  # parameter or buffer -> dimension
    collectives: tuple[Collective, ...]
    work: tuple[float, ...]
    kept: tuple[float, ...]
    whole: Mapping[str, str]  # module or node -> why it stays whole


def split_sizes(size: int, parts: int) -> tuple[int, ...]:
    """As even as whole numbers allow, larger parts first.

    >>> split_sizes(8, 3)
    (3, 3, 2)
    """
    even, over = divmod(size, parts)
    return tuple(even + (part < over) for part in range(parts))
