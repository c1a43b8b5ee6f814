"""The noun `Sharding`: how the devices of a tensor group share a range of atoms. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Collective:
    """One exchange between the devices of a group, in the forward or the backward of one atom.

    The bytes are those of the whole tensor, however it is split.
    """

    atom: int
    kind: str  # "all-reduce", "all-gather" or "reduce-scatter"
    phase: str  # "forward" or "backward"
    bytes_per_row: float
    fixed_bytes: float = 0.0


@dataclass(frozen=True)
class Sharding:
    """How `degree` devices share atoms `start..end-1`.

    `split` names the parameters that are split, each with the dimension; all others are whole on every device. Per atom
    of the range, `work` is the part of its time that the busiest device takes, and `kept` the part of its saved bytes
    that a device holds. `whole` says of modules or nodes why they stay whole.
    """

    start: int
    end: int
    degree: int
    split: Mapping[str, int]
    collectives: tuple[Collective, ...]
    work: tuple[float, ...]
    kept: tuple[float, ...]
    whole: Mapping[str, str]


def split_sizes(size: int, parts: int) -> tuple[int, ...]:
    """`size` in parts as even as integers allow, larger ones first.

    >>> split_sizes(10, 4)
    (3, 3, 2, 2)
    """
    even, larger = divmod(size, parts)
    return tuple(even + (part < larger) for part in range(parts))
