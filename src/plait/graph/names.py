"""The names a user calls parts of a graph by: module paths, patterns over them, single atoms.

    blocks.3      the module and all below it       blocks.0-3    blocks.0, blocks.1, blocks.2 and blocks.3
    blocks.*      every child of blocks             blocks.0.add  an atom, by its own name

A name that is there as written means just that, whatever characters are in it.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from plait.errors import PlaitError
from plait.graph.graph import Graph

_RANGE = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True)
class Names:
    """The atoms of every module, and of every name of an atom, in the order of the chain."""

    modules: dict[str, tuple[int, ...]]
    atoms: dict[str, int]

    def matching(self, pattern: str) -> list[str]:
        """The names that `pattern` stands for. Raises PlaitError, with the nearest names, where there are none."""
        if pattern in self.modules or pattern in self.atoms:
            return [pattern]
        found = [name for name in self.modules if _matches(pattern, name)]
        for end in _ends(pattern):
            if not any(_matches(end, name) for name in found):
                raise PlaitError(self._unknown(end))
        return found

    def atoms_of(self, name: str) -> tuple[int, ...]:
        return self.modules[name] if name in self.modules else (self.atoms[name],)

    def _unknown(self, pattern: str) -> str:
        close = difflib.get_close_matches(pattern, [*self.modules, *self.atoms], n=3, cutoff=0.6)
        if close:
            fix = f"Did you mean {' or '.join(close)}?"
        else:
            outermost = [name for name in self.modules if "." not in name] or list(self.atoms)
            fix = f"The outermost names are {_listed(outermost)}."
        return f'"{pattern}" names no module or atom in which anything is computed. {fix}'


def names_of(graph: Graph) -> Names:
    modules: dict[str, dict[int, None]] = {}
    for index, atom in enumerate(graph.atoms):
        for path in atom.node_modules:
            for module in outwards(path):
                modules.setdefault(module, {})[index] = None
    return Names(
        {name: tuple(atoms) for name, atoms in modules.items()},
        {atom.name: index for index, atom in enumerate(graph.atoms)},
    )


def outwards(path: str) -> Iterable[str]:
    """
    >>> list(outwards("blocks.0.mlp"))
    ['blocks.0.mlp', 'blocks.0', 'blocks']
    """
    while path:
        yield path
        path = path.rpartition(".")[0]


def lies_in(path: str, module: str) -> bool:
    """Is `path` the module or below it? Everything lies in the model itself, whose path is empty."""
    return not module or path == module or path.startswith(module + ".")


def _matches(pattern: str, name: str) -> bool:
    parts, segments = pattern.split("."), name.split(".")
    return len(parts) == len(segments) and all(map(_matches_segment, parts, segments))


def _matches_segment(part: str, segment: str) -> bool:
    numbers = _RANGE.fullmatch(part)
    if numbers:
        return segment.isdecimal() and int(numbers[1]) <= int(segment) <= int(numbers[2])
    return fnmatchcase(segment, part)


def _ends(pattern: str) -> list[str]:
    """The pattern with its ranges' first and last number in their place: both must be there.

    >>> _ends("blocks.0-3.mlp")
    ['blocks.0.mlp', 'blocks.3.mlp']
    """
    parts = pattern.split(".")
    return [
        ".".join(_RANGE.sub(rf"\{end}", part) if _RANGE.fullmatch(part) else part for part in parts) for end in (1, 2)
    ]


def _listed(names: list[str], at_most: int = 12) -> str:
    more = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {more} more" if more > 0 else "")
