"""A problem's chain as arrays: what a dynamic program over stages asks millions of times.

Classical planners cost more than linear in the length of the chain, so a long one is first merged: neighbours become
at most `most` blocks of about equal compute, parted where few bytes cross.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from plait.search.partition import crossing_bytes
from plait.search.problem import Problem

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]

_FIELDS = ("forward_fixed", "forward_per_row", "backward_fixed", "backward_per_row", "saved_fixed", "saved_per_row")


@dataclass(frozen=True)
class Blocks:
    """Blocks 0..L-1 between `edges`: the first atom of each, and the number of atoms.

    Arrays have an entry per edge, so that what lies between two edges is a difference.
    """

    edges: Numbers
    totals: dict[str, Array]  # per device kind, a row per field of a cost, summed up to each edge
    weights: Array  # trainable bytes up to each edge, each parameter where it is first used
    crossing_fixed: Array
    crossing_per_row: Array
    unsplittable: Array  # operations up to each edge that need all rows of a micro-batch on one device

    def __len__(self) -> int:
        return len(self.edges) - 1

    def total(self, kind: str, field: str) -> Array:
        """A field of the atoms' costs, summed up to each edge."""
        found: Array = self.totals[kind][_FIELDS.index(field)]
        return found

    def phase_seconds(self, kind: str, rows: float) -> tuple[Array, Array]:
        """Forward and backward of `rows` rows, summed up to each edge."""
        found = self.totals[kind]
        return found[0] + found[1] * rows, found[2] + found[3] * rows

    def seconds(self, kind: str, rows: float) -> Array:
        """Forward plus backward, summed up to each edge."""
        forward, backward = self.phase_seconds(kind, rows)
        return forward + backward

    def crossing(self, rows: float) -> Array:
        """Bytes of `rows` rows that are alive across each edge."""
        return self.crossing_fixed + self.crossing_per_row * rows

    @cached_property
    def replicable(self) -> NDArray[np.bool_]:
        """[start, end]: may the blocks between two edges be on several devices?"""
        return self.unsplittable[:, None] == self.unsplittable[None, :]

    def merged(self, edges: Numbers) -> "Blocks":
        """Parted at these edges alone."""
        return Blocks(
            self.edges[edges],
            {kind: totals[:, edges] for kind, totals in self.totals.items()},
            self.weights[edges],
            self.crossing_fixed[edges],
            self.crossing_per_row[edges],
            self.unsplittable[edges],
        )

    def atoms(self, boundaries: list[int]) -> tuple[int, ...]:
        """Boundaries between blocks as boundaries between atoms."""
        return tuple(int(self.edges[boundary]) for boundary in boundaries)


def between(prefix: Array) -> Array:
    """[start, end]: the sum from one edge to a later one; infinite where nothing lies between.

    >>> between(np.array([0.0, 1.0, 3.0]))[0].tolist()
    [inf, 1.0, 3.0]
    """
    size = len(prefix)
    sums = prefix[None, :] - prefix[:, None]
    return np.where(np.arange(size)[:, None] < np.arange(size)[None, :], sums, np.inf)


def blocks_of(problem: Problem, most: int | None = None) -> Blocks:
    """The chain of `problem`, merged into at most `most` blocks."""
    graph, num_atoms = problem.graph, len(problem.graph.atoms)
    totals = {
        kind: np.array([[0.0, *np.cumsum([getattr(atom, field) for atom in atoms])] for field in _FIELDS])
        for kind, atoms in problem.costs.atoms.items()
    }
    weights, unsplittable = np.zeros(num_atoms + 1), np.zeros(num_atoms + 1)
    for parameter in graph.parameters:
        if parameter.trainable and parameter.atoms:
            weights[min(parameter.atoms) + 1] += parameter.num_bytes
    for mixer in graph.row_mixers:
        unsplittable[mixer.atom + 1] += not mixer.remedy
    fixed = crossing_bytes(graph, 0)
    per_row = crossing_bytes(graph, 1) - fixed
    kind = problem.cluster.devices[0].kind.name
    everything = Blocks(np.arange(num_atoms + 1), totals, np.cumsum(weights), fixed, per_row, np.cumsum(unsplittable))
    rows = max(1.0, problem.batch_size / len(problem.cluster.devices))
    if most is None or num_atoms <= most:
        return everything
    return everything.merged(_quiet_edges(everything.seconds(kind, rows), everything.crossing(rows), most))


def _quiet_edges(seconds: Array, crossing: Array, most: int) -> Numbers:
    """Of the edges around each of the places that part the compute evenly, the one that fewest bytes cross."""
    middles = np.searchsorted(seconds, seconds[-1] * (np.arange(most) + 0.5) / most)
    chosen = {0, len(seconds) - 1}
    for first, last in pairwise(middles):
        if last > first:
            chosen.add(int(first + np.argmin(crossing[first:last])))
    return np.array(sorted(chosen))
