"""Orders of micro-batches for a layout: orders made for its times (S3, PE), and the classical schedules by name.

The list order is that of a sweep over the layout's own times, in which every position and every channel does one thing
at a time (`plait.schedule.sweep`). What it may hold decides how well it hides transfers and how much memory it takes:
tried are the in-flight limits of 1F1B, twice those, and as much as memory allows. Where stages have gradients to sum,
forwards are tried in the first place too: late stages are done early then, and their sums pass beside computation.
Several stages at a position have hand-made orders (interleaved, ZB-V) that a sweep does not find.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from plait.plan import Plan
from plait.schedule import Schedule, lanes_text, make_schedule, positions_for
from plait.schedule.clock import play
from plait.schedule.schedule import Kind
from plait.schedule.sweep import Seconds, TransferSeconds, sweep
from plait.search.groups import Groups
from plait.search.layout import Layout
from plait.search.problem import Problem
from plait.search.score import LayoutTimes, Scorer

FUSED, SPLIT = "pe", "zb-pe"  # orders made for a layout; their plans carry them


class Ordered(NamedTuple):
    """A plan, and what its step should take by the layout's own times: what passes over links is not simulated."""

    seconds: float
    plan: Plan


class _Order(NamedTuple):
    seconds: float  # of the step
    name: str
    lanes: tuple[str, ...]  # none where the name says it all


class _Way(NamedTuple):
    """How the orders of a layout differ."""

    name: str
    limits: tuple[int, ...]
    forwards_first: bool


def promise(layout: Layout, scorer: Scorer, wanted: str | None, reserve: Sequence[int] | None = None) -> float:
    """What a step should take in the order that is most often the best: a tenth of the time that `orders` take."""
    if not _are_made(layout, wanted):
        return scorer(layout)
    sweeps = _Sweeps(layout, scorer, reserve or [0] * len(layout.positions))
    usual = next(way for way in sweeps.ways(wanted) if way.name == (wanted or SPLIT))
    return max(sweeps.order(usual).seconds, scorer(layout))


def orders(
    layout: Layout,
    problem: Problem,
    groups: Groups,
    scorer: Scorer,
    wanted: str | None,
    reserve: Sequence[int] | None = None,
) -> list[Ordered]:
    """Plans of this layout that differ in their order, the one that should end first in front.

    They leave `reserve` bytes free at each position.
    """
    if not _are_made(layout, wanted):
        return [Ordered(scorer(layout), layout.plan(problem, groups, wanted or "1f1b"))]
    sweeps = _Sweeps(layout, scorer, reserve or [0] * len(layout.positions))
    found: dict[tuple[str, ...], _Order] = {}
    for order in (*map(sweeps.order, sweeps.ways(wanted)), *(sweeps.by_name() if wanted is None else ())):
        found.setdefault(order.lanes, order)
    least = scorer(layout)
    return [
        Ordered(max(order.seconds, least), layout.plan(problem, groups, order.name, lanes=order.lanes))
        for order in sorted(found.values())
    ]


def _are_made(layout: Layout, wanted: str | None) -> bool:
    """Not where the user names a schedule; and with one stage every order is gradient accumulation."""
    return wanted in (None, FUSED, SPLIT) and layout.num_stages > 1


class _Sweeps:
    """The orders of one layout."""

    def __init__(self, layout: Layout, scorer: Scorer, reserve: Sequence[int]) -> None:
        times = scorer.times(layout)
        assert times is not None, "only a layout with a finite score has orders"
        self.layout, self.times = layout, times
        self.seconds, self.transfer = _times(times)
        self.way_of, self.sums = scorer.ways(layout, times.sums)
        self.room = scorer.room(layout, reserve)
        self.carries = scorer.overlap == "full"  # sums go on in the next step

    def ways(self, wanted: str | None) -> Iterator[_Way]:
        """The usual one of each name first."""
        for name in (SPLIT, FUSED):
            if wanted in (None, name):
                for forwards_first, limits in product((False, True), _limits(self.layout, self.room, name == SPLIT)):
                    yield _Way(name, limits, forwards_first)

    def order(self, way: _Way) -> _Order:
        swept = sweep(
            self.layout.positions,
            self.layout.micro_batches,
            seconds=self.seconds,
            way_of=self.way_of,
            limits=way.limits,
            split=way.name == SPLIT,
            forwards_first=way.forwards_first,
            sums=self.sums,
        )
        seconds = swept.computed if self.carries else swept.seconds
        return _Order(seconds + self.times.step, way.name, lanes_text(Schedule(way.name, swept.lanes)))

    def by_name(self) -> Iterator[_Order]:
        """Hand-made orders that suit the layout."""
        if self.layout.has_shared_positions:
            for name in ("interleaved", "zb-v"):
                if _suits(name, self.layout):
                    lanes = make_schedule(name, self.layout.positions, self.layout.micro_batches).lanes
                    played = play(lanes, seconds=self.seconds, transfer_seconds=self.transfer).seconds
                    summed = played + self.times.step
                    if not self.carries:
                        summed = _with_sums([played] * self.layout.num_stages, self.times)
                    yield _Order(summed, name, ())


def _with_sums(ends: Sequence[float], times: LayoutTimes) -> float:
    """When all have stepped: sums begin as soon as their stages have ended, and take turns on the channels."""
    free: dict[int, float] = {}
    latest = max(ends)
    for ready, found in sorted((max(ends[s] for s in found.stages), found) for found in times.sums):
        start = max([ready, *(free.get(channel, 0.0) for channel, _ in found.busy)])
        for channel, seconds in found.busy:
            free[channel] = start + seconds
        latest = max(latest, start + found.seconds)
    return latest + times.step


def _suits(name: str, layout: Layout) -> bool:
    """Whether the stages lie at their positions as the schedule wants them."""
    per_position = layout.num_stages // len(layout.positions)
    if name == "zb-v" and per_position != 2:
        return False
    wanted = positions_for(name, len(layout.positions), per_position)
    return [list(stages) for stages in wanted] == layout.positions


def _limits(layout: Layout, room: Sequence[int], split: bool) -> list[tuple[int, ...]]:
    """In-flight limits per position, each within what its memory has room for; the usual ones first."""
    positions = len(layout.positions)
    found = []
    for ahead in (2, 1, layout.micro_batches):
        limits = []
        for place, stages in enumerate(layout.positions):
            wished = positions if split and ahead == 1 else ahead * (positions - place)
            most = layout.micro_batches * len(stages)
            limits.append(max(len(stages), min(wished * len(stages), room[place], most)))
        found.append(tuple(limits))
    return list(dict.fromkeys(found))


def _times(times: LayoutTimes) -> tuple[Seconds, TransferSeconds]:
    def seconds(stage: int, kind: Kind) -> float:
        forward, back, weight, *_ = times.stages[stage]
        return {"F": forward, "B": back + weight, "I": back, "W": weight}[kind]

    def transfer(boundary: int, gradient: bool) -> float:
        return (times.under if gradient else times.over)[boundary]

    return seconds, transfer
