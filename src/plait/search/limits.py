"""What pins ask of a partition: boundaries that must be, boundaries that must not be, atoms of a given stage.

A partition of atoms 0..L-1 into S stages is its boundaries 0 < b_1 < … < b_{S-1} < L; stage k is b_k..b_{k+1}-1.

    cut before (after) M    a boundary at M's first atom (behind its last)                        forced
    no cut before (after)   no boundary there                                                     barred
    keep                    no boundary behind the first and up to the last atom of the group     barred
    stage k = M             b_k <= M's first atom, M's last atom < b_{k+1}                         held

The chain may hold other atoms between a module's own: they go to either side as they lie. Which numbers of stages
admit a partition is a walk over reachable stage starts, O(S L) (`Limits.stage_counts`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Limits:
    """Boundaries that every partition has, that none has, and the first and last atom fixed to a stage."""

    num_atoms: int
    forced: frozenset[int] = frozenset()
    barred: frozenset[int] = frozenset()
    held: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def starts(self, stage: int) -> NDArray[np.bool_]:
        """Per position, whether `stage` may begin there."""
        allowed = np.zeros(self.num_atoms + 1, dtype=bool)
        if stage == 0:
            allowed[0] = True
            return allowed
        allowed[1 : self.num_atoms] = True
        allowed[list(self.barred)] = False
        if stage in self.held:
            allowed[self.held[stage][0] + 1 :] = False
        if stage - 1 in self.held:
            allowed[: self.held[stage - 1][1] + 1] = False
        return allowed

    def admits(self, boundaries: Sequence[int]) -> bool:
        """Whether the partition with these boundaries keeps to all of it."""
        if not (self.forced or self.barred or self.held):
            return True
        if not self.forced.issubset(boundaries) or not self.barred.isdisjoint(boundaries):
            return False
        starts, ends = (0, *boundaries), (*boundaries, self.num_atoms)
        return all(
            stage < len(starts) and starts[stage] <= first and last < ends[stage]
            for stage, (first, last) in self.held.items()
        )

    @cached_property
    def earliest(self) -> NDArray[np.int64]:
        """Per end of a stage, the earliest start that leaves no forced boundary inside it."""
        marks = np.zeros(self.num_atoms + 1, dtype=np.int64)
        for boundary in self.forced:
            marks[boundary + 1] = boundary
        return np.maximum.accumulate(marks)

    @cached_property
    def stage_counts(self) -> frozenset[int]:
        """The numbers of stages for which a partition exists."""
        needed = max(self.held, default=-1) + 1
        counts = set()
        reached = self.starts(0)
        for stage in range(self.num_atoms):
            before = np.concatenate([[0], np.cumsum(reached)])[: self.num_atoms + 1]
            follows = before > before[self.earliest]
            if follows[self.num_atoms] and stage + 1 >= needed:
                counts.add(stage + 1)
            reached = self.starts(stage + 1) & follows
            if not reached.any():
                break
        return frozenset(counts)


def all_of(limits: Iterable[Limits], num_atoms: int) -> Limits:
    """What meets each of them."""
    forced: set[int] = set()
    barred: set[int] = set()
    held: dict[int, tuple[int, int]] = {}
    for one in limits:
        forced |= one.forced
        barred |= one.barred
        for stage, (first, last) in one.held.items():
            low, high = held.get(stage, (first, last))
            held[stage] = min(low, first), max(high, last)
    return Limits(num_atoms, frozenset(forced), frozenset(barred), held)


def inside(span: tuple[int, int]) -> frozenset[int]:
    """The boundaries that would part the atoms from the first to the last of `span`."""
    return frozenset(range(span[0] + 1, span[1] + 1))
