"""A graph at a glance: what crosses each cut, and its atoms grouped by module."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from plait.graph.graph import Graph
from plait.graph.names import lies_in


@dataclass(frozen=True)
class Crossing:
    """What is alive across one cut: bytes for every row, bytes however many rows there are, and how many tensors."""

    row_bytes: int
    once_bytes: int
    num_values: int

    def num_bytes(self, rows: int) -> int:
        return self.row_bytes * rows + self.once_bytes


@dataclass(frozen=True)
class Section:
    """Neighbouring atoms, from `start` up to but not including `end`, of one module."""

    module: str
    start: int
    end: int


def crossings(graph: Graph) -> list[Crossing]:
    """For the cut before each atom; before the first, nothing crosses."""
    change = [[0, 0, 0] for _ in range(len(graph.atoms) + 1)]
    for value in graph.values:
        batched = value.batch_dim is not None
        sizes = (value.row_bytes * batched, value.row_bytes * (not batched), 1)
        for kind, size in enumerate(sizes):
            change[value.producer + 1][kind] += size
            change[max(value.consumers) + 1][kind] -= size
    sums = accumulate(change, lambda a, b: [x + y for x, y in zip(a, b, strict=True)])
    return [Crossing(*total) for total in sums][: len(graph.atoms)]


def sections(graph: Graph, atoms: Sequence[int], within: str = "") -> list[Section]:
    """`atoms`, in their order, by the module below `within` they belong to.

    A module of a list (`blocks.3`) is one section; what holds such a list is shown by its parts.
    """
    paths = {atom: _path(graph, atom, within) for atom in atoms}
    listed = {_up_to_number(path, within) for path in paths.values()} - {""}
    labels = {atom: _label(path, within, listed) for atom, path in paths.items()}
    only = set(labels.values())
    if len(only) == 1 and only != {within} and any(path not in only for path in paths.values()):
        return sections(graph, atoms, only.pop())
    found = []
    for (label, _), run in groupby(enumerate(atoms), key=lambda pair: (labels[pair[1]], pair[1] - pair[0])):
        members = [atom for _, atom in run]
        found.append(Section(label, members[0], members[-1] + 1))
    return found


def _path(graph: Graph, atom: int, within: str) -> str:
    return next(path for path in graph.atoms[atom].node_modules if lies_in(path, within))


def _prefixes(path: str, within: str) -> list[str]:
    """The paths from `within`, exclusive, down to `path`."""
    parts = path.split(".") if path else []
    depth = len(within.split(".")) if within else 0
    return [".".join(parts[: end + 1]) for end in range(depth, len(parts))]


def _up_to_number(path: str, within: str) -> str:
    return next((p for p in _prefixes(path, within) if p.rpartition(".")[2].isdecimal()), "")


def _label(path: str, within: str, listed: set[str]) -> str:
    numbered = _up_to_number(path, within)
    if numbered:
        return numbered
    holds_list = (p for p in _prefixes(path, within) if not any(lies_in(module, p) for module in listed))
    return next(holds_list, path)
