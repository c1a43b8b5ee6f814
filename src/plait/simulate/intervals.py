"""Sets of moments, as intervals in order that neither touch nor overlap."""

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
Moments = Sequence[Interval]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """All moments that lie in any of them.

    >>> union([(4, 5), (0, 2), (1, 3), (3, 3)])
    [(0, 3), (4, 5)]
    """
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = found[-1][0], end
        elif end > start:
            found.append((start, end))
    return found


def common(one: Moments, other: Moments) -> list[Interval]:
    """The moments that lie in both.

    >>> common([(0, 2), (3, 6)], [(1, 4), (5, 9)])
    [(1, 2), (3, 4), (5, 6)]
    """
    found: list[Interval] = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(moments: Moments) -> float:
    return sum(end - start for start, end in moments)
