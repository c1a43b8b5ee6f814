"""Layouts are judged in the order of what they promise, and a time budget is kept."""

import time
from collections.abc import Iterator

from plait.plan import Plan
from plait.search.turns import Entry, Judged, Pace, in_turn, least_reserve

PLAN: Plan = None  # type: ignore[assignment]  # nobody looks at it


def order(*seconds: tuple[float, float], effort: float = 1.0, number: int = 0, first: float = 0.0) -> Entry:
    """A layout with orders that promise and then take so many seconds."""

    def tries() -> Iterator[Judged | float]:
        for promised, found in seconds:
            yield promised
            yield Judged(found, PLAN, 0.0)

    return Entry(first, number, effort, tries())


def judged(*entries: Entry, seconds_left: float) -> list[float]:
    now = time.perf_counter()
    return [found.seconds for found in in_turn(entries, Pace(now + seconds_left, now + seconds_left))]


def test_the_one_that_promises_most_is_judged_next_and_promises_anew_after_every_look():
    one = order((1.0, 1.5), (4.0, 4.5), number=0)
    other = order((2.0, 2.5), (3.0, 3.5), number=1)
    assert judged(one, other, seconds_left=60) == [1.5, 2.5, 3.5, 4.5]


def test_what_would_take_longer_than_is_left_is_left_out():
    quick, slow = order((2.0, 2.0), effort=1.0, number=0), order((1.0, 1.0), effort=1e6, number=1)
    assert judged(quick, slow, seconds_left=5) == [2.0]


def test_where_there_would_be_no_answer_the_one_that_takes_least_is_judged_and_no_other():
    entries = [order((1.0, 1.0), effort=effort, number=n) for n, effort in enumerate((3e6, 1e6, 2e6))]
    entries[1] = order((9.0, 9.0), effort=1e6, number=1)
    assert judged(*entries, seconds_left=0) == [9.0]


def test_a_layout_that_cannot_run_makes_room_for_the_next_one():
    never = Entry(0.0, 0, 1.0, iter([0.5]))
    assert judged(never, order((1.0, 1.0), number=1), seconds_left=60) == [1.0]
    assert judged(never._replace(tries=iter([0.5])), order((1.0, 1.0), effort=2e6, number=1), seconds_left=0) == [1.0]


def test_more_effort_needs_more_time_in_reserve():
    assert 0 < least_reserve(1000) < least_reserve(2000)
