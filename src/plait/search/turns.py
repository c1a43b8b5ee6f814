"""Whose turn it is to be judged: always the layout's that promises most, while there is time for it.

Of two that promise about the same, the one judged sooner goes first. What would take longer than is left is left out,
but for the one that takes least where there would be no answer at all.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import NamedTuple

from plait.plan import Plan

_PROVING = 1.0  # times what it took to judge a plan, for the check and the bound of the one that is answered with
_LATE = 0.3  # seconds by which the first plan may be late
_PATIENCE = 0.1  # seconds of a step that are worth as much as the time to find them, both as shares
EXPECTED = 0.25, 1024.0  # seconds to judge 1024 micro-batches of replicas


class Judged(NamedTuple):
    """A plan, what the simulator says its step takes, and how long it took to say so."""

    seconds: float
    plan: Plan
    judging_seconds: float


class Entry(NamedTuple):
    """A layout: what it promises or what its next order does, the effort of a look, and its orders one by one.

    `tries` gives the seconds that its next order promises, and then that order judged.
    """

    seconds: float
    number: int  # breaks ties
    effort: float
    tries: Iterator[Judged | float]


def least_reserve(effort: float) -> float:
    """Seconds to judge one plan and to answer with it, as good as it is known beforehand."""
    seconds, of_effort = EXPECTED
    return (1 + _PROVING) * seconds / of_effort * effort


class Pace:
    """How long a step of judging takes for its effort, from those that have been, and whether there is time for it."""

    def __init__(self, deadline: float, end: float) -> None:
        self.deadline, self.end = deadline, end
        self.whole = max(deadline - time.perf_counter(), 1e-3)
        self.seconds, self.effort = EXPECTED  # weighs as much as a judgement or two

    def allows(self, effort: float, best: Judged | None) -> bool:
        """Whichever of it and the best so far is answered with: that one is then proved."""
        seconds = self._seconds(effort)
        if best is None:
            return time.perf_counter() + (1 + _PROVING) * seconds <= self.end + _LATE
        proving = _PROVING * max(seconds, best.judging_seconds)
        return time.perf_counter() + seconds <= min(self.deadline, self.end - proving)

    def share(self, effort: float) -> float:
        """Of the time there was."""
        return self._seconds(effort) / self.whole

    def patience(self, effort: float) -> float:
        """By what a promise counts for more because of the time it would take."""
        return 1 + _PATIENCE * self.share(effort)

    @contextmanager
    def measured(self, effort: float) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start
        self.effort += effort

    def _seconds(self, effort: float) -> float:
        return self.seconds / self.effort * effort


def in_turn(entries: Iterable[Entry], pace: Pace) -> Iterator[Judged]:
    """Plans as they are judged, until time is up or all have been."""
    waiting: list[Entry] = []
    late: list[tuple[float, int, Entry]] = []  # by effort
    for entry in entries:
        heappush(waiting, entry)
    best: Judged | None = None
    while waiting or (late and best is None):
        entry = heappop(waiting) if waiting else heappop(late)[2]
        in_time = pace.allows(entry.effort, best)
        if not in_time and (waiting or best is not None):
            heappush(late, (entry.effort, entry.number, entry))
            continue
        with pace.measured(entry.effort):
            found = next(entry.tries, None)
        if isinstance(found, Judged):
            best = min(best or found, found, key=lambda judged: judged.seconds)
            yield found
            found = next(entry.tries, None)
        if isinstance(found, float):
            entry = entry._replace(seconds=found * pace.patience(entry.effort))
            if in_time:
                heappush(waiting, entry)
            else:
                heappush(late, (entry.effort, entry.number, entry))
