"""One resource that does one thing at a time: Jackson's bound.

Items i have to be worked on for p_i, not before r_i, and after i has ended the step lasts another q_i at least.
For every set J of items, the one that ends last ends no earlier than min r + sum p over J, and q follows:

    T >= min_J r + sum_J p + min_J q.

Taken over the sets {i: r_i >= r} and {i: q_i >= q}, of which the best set is usually one. O(n log n).
"""

from collections.abc import Iterable
from typing import NamedTuple


class Item(NamedTuple):
    """Work of `seconds` in all, no part of it before `release`; at least `tail` passes after the last of it."""

    release: float
    seconds: float
    tail: float


def serial_bound(items: Iterable[Item], width: float = 1) -> float:
    """Least time at which everything after the items is done, on a resource that works `width` seconds a second.

    >>> serial_bound([Item(0, 3, 5), Item(2, 4, 1)])
    8.0
    """
    items = list(items)
    return max(
        _over_sets(sorted(items, key=lambda item: -item.release), width),
        _over_sets(sorted(items, key=lambda item: -item.tail), width),
    )


def _over_sets(ordered: list[Item], width: float) -> float:
    """The best of all prefixes."""
    best = work = 0.0
    release = tail = float("inf")
    for item in ordered:
        release, tail = min(release, item.release), min(tail, item.tail)
        work += item.seconds
        best = max(best, release + work / width + tail)
    return best
