"""Repeated blocks: runs of the chain in which the same atoms come again and again, like a transformer's layers.

Two atoms are alike when their nodes compute alike and are wired alike: each input comes from as many atoms back,
or from the very same atom (a value all layers share), or into the first block from anywhere before it. A block of
p atoms is repeated where every atom is like the one p further on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import eq

from plait.graph.build import Model


@dataclass(frozen=True)
class Block:
    """Atoms `first_atom .. first_atom + atoms_per_block * count - 1` are `count` times the same."""

    first_atom: int
    atoms_per_block: int
    count: int
    modules: tuple[str, ...]  # per repetition, the innermost module that holds all its atoms

    @property
    def num_atoms(self) -> int:
        return self.atoms_per_block * self.count

    def __str__(self) -> str:
        ends = dict.fromkeys((self.modules[0], self.modules[-1]))  # one where the same module is called again
        where = ": " + " … ".join(ends) if all(ends) else ""
        atoms = "1 atom" if self.atoms_per_block == 1 else f"{self.atoms_per_block} atoms"
        return f"{self.count} identical blocks of {atoms}{where}"


def repeated_blocks(model: Model) -> list[Block]:
    """The repeated blocks of `model` in order, none overlapping another; repetitions without parameters are left out.

    What covers most atoms is taken first, then what is left on both sides. Every period is tried: quadratic in the
    number of atoms, with a small constant.
    """
    chain = _Chain(model)
    found: list[Block] = []
    pending = [(0, len(chain.numbers))]
    while pending:
        start, end = pending.pop()
        run = max(chain.runs(start, end), key=lambda run: (run.covered, -run.period), default=None)
        if run is not None:
            block = chain.block(run)
            found.append(block)
            pending += [(start, block.first_atom), (block.first_atom + block.num_atoms, end)]
    return sorted(found, key=lambda block: block.first_atom)


@dataclass(frozen=True)
class _Run:
    """A stretch of `length` atoms, each like the one `period` further on where that is in it too."""

    first: int
    length: int
    period: int

    @property
    def covered(self) -> int:
        return self.length - self.length % self.period


class _Chain:
    """The atoms as numbers, equal where their nodes compute alike, and the atoms each reads from."""

    def __init__(self, model: Model) -> None:
        self._modules = [atom.module for atom in model.graph.atoms]
        self._with_parameters = {atom for parameter in model.graph.parameters for atom in parameter.atoms}
        place = {n: (atom, index) for atom, nodes in enumerate(model.atom_nodes) for index, n in enumerate(nodes)}
        known: dict[object, int] = {}
        self.numbers: list[int] = []
        self._sources: list[list[int]] = []
        for own, nodes in enumerate(model.atom_nodes):
            inputs = [[place[source] for source in node.all_input_nodes if source in place] for node in nodes]
            wiring = tuple(tuple((index, atom == own) for atom, index in pairs) for pairs in inputs)
            content = (tuple(model.alike[node] for node in nodes), wiring)
            self.numbers.append(known.setdefault(content, len(known)))
            self._sources.append([atom for pairs in inputs for atom, _ in pairs])

    def runs(self, start: int, end: int) -> Iterator[_Run]:
        """The longest stretches between `start` and `end` with each period in which a block fits twice."""
        for period in range(1, (end - start) // 2 + 1):
            same = [*map(eq, self.numbers[start : end - period], self.numbers[start + period : end])]
            if sum(same) < period:
                continue
            for first, length in self._stretches(same, start, period):
                run = _Run(first, length + period, period)
                if length >= period and self._has_parameters(run):
                    yield run

    def _stretches(self, same: list[bool], start: int, period: int) -> Iterator[tuple[int, int]]:
        """First atom and length of every stretch in which atoms are like those `period` further on."""
        first = start
        for atom, alike in enumerate([*same, False], start):
            if alike and self._wired_alike(atom, period, first):
                continue
            if atom > first:
                yield first, atom - first
            first = atom if alike else atom + 1

    def _wired_alike(self, atom: int, period: int, first: int) -> bool:
        """The first block of a stretch may take its inputs from anywhere before it."""
        pairs = zip(self._sources[atom], self._sources[atom + period], strict=True)
        return all(
            later in (earlier, earlier + period) or (earlier < first and later < first + period)
            for earlier, later in pairs
        )

    def _has_parameters(self, run: _Run) -> bool:
        return any(atom in self._with_parameters for atom in range(run.first, run.first + run.period))

    def block(self, run: _Run) -> Block:
        """A run may start amid a block; of the places where it can be cut into blocks, the one modules agree with."""
        firsts = range(run.first, run.first + run.length % run.period + 1)
        modules = [self._modules_of(first, run) for first in firsts]
        best = max(range(len(firsts)), key=lambda i: sum(name.count(".") + bool(name) for name in modules[i]))
        return Block(firsts[best], run.period, run.length // run.period, modules[best])

    def _modules_of(self, first: int, run: _Run) -> tuple[str, ...]:
        starts = range(first, first + run.covered, run.period)
        return tuple(_common_module(self._modules[start : start + run.period]) for start in starts)


def _common_module(paths: Sequence[str]) -> str:
    """The innermost module that holds all of `paths`."""
    common = paths[0].split(".")
    for path in paths[1:]:
        parts = path.split(".")
        agree = [a == b for a, b in zip(common, parts, strict=False)]
        common = common[: agree.index(False) if False in agree else len(agree)]
    return ".".join(common)
