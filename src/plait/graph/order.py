"""The order of a model's atoms: of all legal ones, one whose cuts have few bytes alive.

A planner cuts the chain of atoms where its stages balance, and pays the bytes alive there. Where that will be depends
on devices and measured times, which differ from run to run, while the chain must be the same on every rank and for
every plan: so each cut counts the same (beside an atom without any flow it is the same cut). For an order p(a) of the
atoms a,

    minimise  sum over cuts i of alive(i),      alive(i) = sum of bytes(v) over values v with
                                                p(producer of v) <= i < max over its consumers c of p(c)
    subject to  p(producer of v) < p(c)         for every value v and every consumer c of it

Minimum linear arrangement with precedence, NP-hard in general; models are mostly chains of small blocks, so:

1. series: an atom that all others either lead to or follow from has its place in every order. Between two such
   atoms lies a part that is ordered for itself (`_series`), parts of the same form once;
2. exact: a part with few frontiers is ordered by going through all of them (`frontiers.best_sequence`);
3. parallel: in any other part, branches without edges between them are ordered for themselves first; a branch
   (or any run of atoms without forks) then becomes a few steps, each of which frees more per atom than the next
   (`_runs`): nothing is gained by interrupting it elsewhere;
4. the steps of all branches are ordered by going through frontiers, all or the most promising ones.

A part keeps its given order unless another is strictly better, so the sum is never more than that of the given order.
One plan's own cuts can still be: that is known only where devices and times are.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, pairwise

from plait.graph.frontiers import Step, best_sequence

BUDGET = 100_000  # frontiers tried in one pass over the model: half a second where all are needed
_SMALL = 64  # a part of so many atoms may have few frontiers: they are tried before it is taken apart
_DEEPEST = 24  # branches within branches that are still taken apart


@dataclass(frozen=True)
class Flow:
    """What one atom makes and others need. Without bytes, it only says who comes first.

    Within a part of a graph, atoms are numbered from 0; the producer -1 stands for any atom before the part, and a
    consumer one past its last atom for any atom behind it.
    """

    producer: int
    consumers: tuple[int, ...]
    num_bytes: int


def cheapest_order(num_atoms: int, flows: Sequence[Flow], *, budget: int = BUDGET) -> list[int]:
    """Atoms 0..num_atoms-1 in the best order found: the i-th entry is the atom that comes i-th.

    The atoms are given in a legal order. The result depends on nothing but the arguments.

    >>> flows = [Flow(0, (2,), 9), Flow(1, (3,), 9), Flow(2, (4,), 1), Flow(3, (4,), 1)]
    >>> cheapest_order(5, flows)  # two towers, written layer by layer: one after the other holds less
    [0, 2, 1, 3, 4]
    """
    assert all(flow.producer < min(flow.consumers, default=num_atoms) for flow in flows), "given order is not legal"
    touched = sorted({atom for flow in flows if flow.consumers for atom in (flow.producer, *flow.consumers)})
    order = _Orders().of(len(touched), _restricted(flows, touched, range(0)), budget, depth=0)
    return _with_idle_atoms([touched[i] for i in order], num_atoms)


def _with_idle_atoms(order: list[int], num_atoms: int) -> list[int]:
    """Atoms without any flow, such as counters, could be anywhere: each goes where the atom given after it goes."""
    busy = set(order)
    idle: list[int] = []
    led_by: dict[int, list[int]] = {}
    for atom in range(num_atoms):
        if atom in busy:
            led_by[atom], idle = idle, []
        else:
            idle.append(atom)
    return [a for atom in order for a in (*led_by[atom], atom)] + idle


def bytes_alive(order: Sequence[int], flows: Iterable[Flow]) -> list[int]:
    """Bytes alive after each atom of the order, each value counted once."""
    end = len(order)
    place = {atom: index for index, atom in enumerate(order)} | {-1: -1, end: end}
    change = [0] * (end + 2)
    for flow in flows:
        if flow.consumers:
            change[place[flow.producer] + 1] += flow.num_bytes
            change[max(place[c] for c in flow.consumers) + 1] -= flow.num_bytes
    return list(accumulate(change))[1 : end + 1]


class _Orders:
    """Orders of parts, remembered by form: flows that are the same up to numbering need one search."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[Flow, ...]], list[int]] = {}

    def of(self, num_atoms: int, flows: tuple[Flow, ...], budget: int, depth: int) -> list[int]:
        """Series: parts that follow one another, each ordered for itself."""
        parts = _series(num_atoms, flows)
        forms = _forms(parts, flows, [range(part.stop, num_atoms + 1) for part in parts])
        distinct = sum(size for size, _ in set(forms) if size > 1)
        order: list[int] = []
        for part, form in zip(parts, forms, strict=True):
            if form not in self._known:
                self._known[form] = self._part(*form, budget * len(part) // max(distinct, 1), depth)
            order += [part[i] for i in self._known[form]]
        return order

    def _part(self, num_atoms: int, flows: tuple[Flow, ...], budget: int, depth: int) -> list[int]:
        """Parallel: everything between two atoms that all orders agree on."""
        given = list(range(num_atoms))
        if num_atoms == 1:
            return given
        found, few = None, budget // 4
        if num_atoms <= _SMALL:
            found = _sequenced([[atom] for atom in given], flows, few, exact=True)
        if found is None:
            groups = self._branches(num_atoms, flows, budget, depth)
            found = _sequenced(groups, flows, few, exact=True) or _sequenced(groups, flows, budget, exact=False)
        assert found is not None
        return found if sum(bytes_alive(found, flows)) < sum(bytes_alive(given, flows)) else given

    def _branches(self, num_atoms: int, flows: tuple[Flow, ...], budget: int, depth: int) -> list[list[int]]:
        """Sequences that together hold every atom: branches in their own best order, or else unforked runs of atoms."""
        branches = _components(num_atoms, flows)
        if len(branches) == 1 or depth == _DEEPEST:
            return _paths(num_atoms, flows)
        forms = _forms(branches, flows, [range(num_atoms, num_atoms + 1)] * len(branches))
        return [
            [branch[i] for i in self.of(size, inner, budget * size // num_atoms, depth + 1)]
            for branch, (size, inner) in zip(branches, forms, strict=True)
        ]


def _series(num_atoms: int, flows: Iterable[Flow]) -> list[range]:
    """Parts that follow one another in every legal order; those of one atom are the places all orders agree on.

    An atom is such a place if it is the only one in the prefix up to it that nothing in the prefix needs, and the
    only one in the suffix from it that needs nothing in the suffix.
    """
    first_use = [num_atoms] * num_atoms
    last_need = [-1] * num_atoms
    for flow in flows:
        for consumer in flow.consumers:
            if flow.producer >= 0 and consumer < num_atoms:
                first_use[flow.producer] = min(first_use[flow.producer], consumer)
                last_need[consumer] = max(last_need[consumer], flow.producer)
    unused, unneeding = [0] * (num_atoms + 1), [0] * (num_atoms + 1)
    for atom in range(num_atoms):
        unused[atom] += 1
        unused[first_use[atom]] -= 1
        unneeding[atom + 1] -= 1
        unneeding[last_need[atom] + 1] += 1
    agreed = [a for a, (b, c) in enumerate(zip(accumulate(unused), accumulate(unneeding), strict=True)) if b == c == 1]
    edges = sorted({0, num_atoms, *agreed, *(a + 1 for a in agreed)} - {num_atoms + 1})
    return [range(a, b) for a, b in pairwise(edges)]


def _forms(
    parts: Sequence[Sequence[int]], flows: Iterable[Flow], behind: Sequence[range]
) -> list[tuple[int, tuple[Flow, ...]]]:
    """Per part its size and its flows in its own numbering; `behind` are the atoms that come after it."""
    part_of = {atom: index for index, part in enumerate(parts) for atom in part}
    touching: list[list[Flow]] = [[] for _ in parts]
    for flow in flows:
        for index in {part_of[atom] for atom in (flow.producer, *flow.consumers) if atom in part_of}:
            touching[index].append(flow)
    return [
        (len(part), _restricted(touching[index], part, behind[index]) if len(part) > 1 else ())
        for index, part in enumerate(parts)
    ]


def _restricted(flows: Iterable[Flow], atoms: Sequence[int], behind: range) -> tuple[Flow, ...]:
    """The flows as `atoms` see them: renumbered, consumers among `behind` as one, any others left out."""
    number = {atom: index for index, atom in enumerate(atoms)}
    found = []
    for flow in flows:
        producer = number.get(flow.producer, -1)
        consumers = {number[c] for c in flow.consumers if c in number}
        if any(c in behind for c in flow.consumers):
            if producer < 0:
                continue  # alive all the way through
            consumers.add(len(atoms))
        if consumers:
            found.append(Flow(producer, tuple(sorted(consumers)), flow.num_bytes))
    return tuple(found)


def _edges(num_atoms: int, flows: Iterable[Flow]) -> set[tuple[int, int]]:
    return {(f.producer, c) for f in flows if f.producer >= 0 for c in f.consumers if c < num_atoms}


def _components(num_atoms: int, flows: Iterable[Flow]) -> list[list[int]]:
    """Branches without an edge between them, in the order of their first atoms."""
    root = list(range(num_atoms))

    def find(atom: int) -> int:
        while root[atom] != atom:
            root[atom] = root[root[atom]]
            atom = root[atom]
        return atom

    for producer, consumer in sorted(_edges(num_atoms, flows)):
        a, b = find(producer), find(consumer)
        root[max(a, b)] = min(a, b)
    members: dict[int, list[int]] = defaultdict(list)
    for atom in range(num_atoms):
        members[find(atom)].append(atom)
    return list(members.values())


def _paths(num_atoms: int, flows: Iterable[Flow]) -> list[list[int]]:
    """Runs of atoms without a fork: each needs only the one before it, which only it needs."""
    needed_by: dict[int, list[int]] = defaultdict(list)
    needs: dict[int, list[int]] = defaultdict(list)
    for producer, consumer in sorted(_edges(num_atoms, flows)):
        needed_by[producer].append(consumer)
        needs[consumer].append(producer)
    path_of: dict[int, list[int]] = {}
    for atom in range(num_atoms):
        sources = needs[atom]
        follows = len(sources) == 1 and len(needed_by[sources[0]]) == 1
        path_of[atom] = path_of[sources[0]] if follows else []
        path_of[atom].append(atom)
    return [path for atom, path in path_of.items() if path[0] == atom]


def _sequenced(groups: list[list[int]], flows: Sequence[Flow], budget: int, *, exact: bool) -> list[int] | None:
    """The best order of all atoms in which every group keeps its own."""
    steps = _steps(groups, flows)
    sequence = best_sequence(steps, budget, exact=exact)
    return None if sequence is None else [atom for index in sequence for atom in steps[index].atoms]


def _steps(groups: Sequence[Sequence[int]], flows: Iterable[Flow]) -> list[Step]:
    """Each group as steps, in the order of their first atoms."""
    num_atoms = sum(len(group) for group in groups)
    change, shared = _frees(groups, flows)
    readers = {reader for last_readers, _ in shared for reader in last_readers}
    runs = sorted(run for group in groups for run in _runs(group, change, readers))
    step_of = {atom: index for index, run in enumerate(runs) for atom in run}
    before = [0] * len(runs)
    for producer, consumer in [*_edges(num_atoms, flows), *(pair for group in groups for pair in pairwise(group))]:
        if step_of[producer] != step_of[consumer]:
            before[step_of[consumer]] |= 1 << step_of[producer]
    reads: list[list[tuple[int, int]]] = [[] for _ in runs]
    for last_readers, num_bytes in shared:
        mask = sum(1 << step_of[reader] for reader in last_readers)
        for reader in last_readers:
            reads[step_of[reader]].append((mask, num_bytes))
    return [
        Step(
            atoms=tuple(run),
            before=before[index],
            inside=sum(accumulate(change[atom] for atom in run)),
            change=sum(change[atom] for atom in run),
            reads=tuple(reads[index]),
        )
        for index, run in enumerate(runs)
    ]


def _frees(
    groups: Sequence[Sequence[int]], flows: Iterable[Flow]
) -> tuple[list[int], list[tuple[tuple[int, ...], int]]]:
    """Bytes alive more (or less) after each atom; and the values which one of several groups frees, whichever
    comes last: the last reader in each group, and the bytes."""
    num_atoms = sum(len(group) for group in groups)
    place = {atom: (index, i) for index, group in enumerate(groups) for i, atom in enumerate(group)}
    change = [0] * num_atoms
    shared = []
    for flow in flows:
        if flow.producer >= 0:
            change[flow.producer] += flow.num_bytes
        if num_atoms in flow.consumers:
            continue
        last_of_group = {place[c][0]: c for c in sorted(flow.consumers, key=place.__getitem__)}
        if len(last_of_group) == 1:
            (last,) = last_of_group.values()
            change[last] -= flow.num_bytes
        elif flow.num_bytes:
            shared.append((tuple(last_of_group.values()), flow.num_bytes))
    return change, shared


def _runs(group: Iterable[int], change: Sequence[int], readers: Set[int]) -> list[list[int]]:
    """The group in pieces, each of which frees more per atom than the next.

    Two neighbours of which the second frees as much are better run without a break, whatever else there is to run.
    After a reader of a shared value there is always a break, for what it frees depends on the others.
    """
    runs: list[list[int]] = []
    totals: list[int] = []
    for atom in group:
        run, total = [atom], change[atom]
        while runs and runs[-1][-1] not in readers and total * len(runs[-1]) <= totals[-1] * len(run):
            run, total = runs.pop() + run, totals.pop() + total
        runs.append(run)
        totals.append(total)
    return runs
