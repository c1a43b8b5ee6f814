"""Search over frontiers: the order of a few steps that keeps the fewest bytes alive.

A frontier is a downward-closed set D of steps, those that have run. What is alive after D depends on D alone, not on
the order within, so of all ways to reach D only the cheapest can be part of a best order:

    cost(D + s) = min over s of cost(D) + bytes alive after each atom of s, when s runs after D

The frontiers are visited by the number of atoms in them, each once, the dominated ways to it forgotten. That is exact;
a DAG may have exponentially many frontiers, so where they are more than the budget allows, only the most promising of
each size are followed (`exact=False`). The budget counts frontiers tried, never seconds: every rank of a run must find
the same order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

_FEWEST = 8  # steps tried after the most promising frontier of a size, however little budget is left


@dataclass(frozen=True)
class Step:
    """Atoms that run one after the other.

    `inside` sums, over its atoms, the bytes alive after each less those alive before the step; `change` is that
    difference at the end of the step. `reads` are values that several steps read, as (set of readers, bytes): such a
    value is freed by whichever reader comes last, and a step reads it only in its last atom, so that it is not in
    `inside`. Sets of steps are bit masks.
    """

    atoms: tuple[int, ...]
    before: int
    inside: int
    change: int
    reads: tuple[tuple[int, int], ...]


class _Way(NamedTuple):
    """The cheapest way found to a frontier; `ready` are the steps that may come next."""

    cost: int
    alive: int
    ready: int
    last: int


def best_sequence(steps: Sequence[Step], budget: int, *, exact: bool) -> list[int] | None:
    """The steps in their best order; None if `exact` is asked for and the budget does not suffice."""
    num_atoms = sum(len(step.atoms) for step in steps)
    followers: list[list[int]] = [[] for _ in steps]
    for index, step in enumerate(steps):
        for earlier in _members(step.before):
            followers[earlier].append(index)
    ready = sum(1 << i for i, step in enumerate(steps) if not step.before)
    by_size: list[dict[int, _Way]] = [{} for _ in range(num_atoms + 1)]
    by_size[0][0] = _Way(0, 0, ready, -1)
    for size, ways in enumerate(by_size):
        tries = max(budget // (num_atoms - size + 1), _FEWEST)
        for done, way in ways.items() if exact else _most_promising(ways, tries):
            for index in _members(way.ready) if exact else islice(_members(way.ready), tries):
                budget -= 1
                _extend(by_size, size, done, way, index, steps, followers)
            if exact and budget < 0:
                return None
    return _retrace(by_size, steps)


def _members(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit


def _most_promising(ways: dict[int, _Way], tries: int) -> Iterator[tuple[int, _Way]]:
    """Those with the least cost, for so many tries; at least one."""
    for count, (done, way) in enumerate(sorted(ways.items(), key=lambda item: item[1].cost)):
        tries -= way.ready.bit_count()
        if count and tries < 0:
            return
        yield done, way


def _extend(
    by_size: list[dict[int, _Way]],
    size: int,
    done: int,
    way: _Way,
    index: int,
    steps: Sequence[Step],
    followers: Sequence[Sequence[int]],
) -> None:
    """Runs one more step, and remembers this way to the frontier it leads to unless a better one is known."""
    step = steps[index]
    reached = done | 1 << index
    freed = 0
    for readers, num_bytes in step.reads:
        if readers & reached == readers:
            freed += num_bytes
    cost = way.cost + len(step.atoms) * way.alive + step.inside - freed
    ways = by_size[size + len(step.atoms)]
    known = ways.get(reached)
    if known is None:
        ready = way.ready ^ 1 << index
        for follower in followers[index]:
            if steps[follower].before & reached == steps[follower].before:
                ready |= 1 << follower
        ways[reached] = _Way(cost, way.alive + step.change - freed, ready, index)
    elif cost < known.cost:
        ways[reached] = known._replace(cost=cost, last=index)


def _retrace(by_size: list[dict[int, _Way]], steps: Sequence[Step]) -> list[int]:
    size, done = len(by_size) - 1, (1 << len(steps)) - 1
    sequence = []
    while done:
        last = by_size[size][done].last
        sequence.append(last)
        size -= len(steps[last].atoms)
        done ^= 1 << last
    return sequence[::-1]
