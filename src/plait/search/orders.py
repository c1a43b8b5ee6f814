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
    if wanted not in (None, FUSED, SPLIT):
        return [Ordered(scorer(layout), layout.plan(problem, groups, wanted))]
    if layout.num_stages == 1:  # with one stage every order is gradient accumulation
        return [Ordered(scorer(layout), layout.plan(problem, groups, "1f1b"))]
    found: dict[tuple[str, ...], _Order] = {}
    for order in _orders(layout, scorer, wanted, reserve or [0] * len(layout.positions)):
        found.setdefault(order.lanes, order)
    least = scorer(layout)
    return [
        Ordered(max(order.seconds, least), layout.plan(problem, groups, order.name, lanes=order.lanes))
        for order in sorted(found.values())
    ]


def _orders(layout: Layout, scorer: Scorer, wanted: str | None, reserve: Sequence[int]) -> Iterator[_Order]:
    times = scorer.times(layout)
    assert times is not None, "only a layout with a finite score has orders"
    seconds, transfer = _times(times)
    ways = scorer.ways(layout)
    room = scorer.room(layout, reserve)
    for split, name in ((False, FUSED), (True, SPLIT)):
        if wanted not in (None, name):
            continue
        for limits, forwards_first in product(_limits(layout, room, split=split), (False, True)):
            swept = sweep(
                layout.positions,
                layout.micro_batches,
                seconds=seconds,
                way_of=ways,
                limits=limits,
                split=split,
                forwards_first=forwards_first,
            )
            yield _Order(_with_sums(swept.stage_ends, times), name, lanes_text(Schedule(name, swept.lanes)))
    if wanted is None and layout.has_shared_positions:
        for name in ("interleaved", "zb-v"):
            if _suits(name, layout):
                lanes = make_schedule(name, layout.positions, layout.micro_batches).lanes
                played = play(lanes, seconds=seconds, transfer_seconds=transfer).seconds
                yield _Order(_with_sums([played] * layout.num_stages, times), name, ())


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


def _limits(layout: Layout, room: list[int], *, split: bool) -> Iterator[list[int]]:
    """In-flight limits per position, each within what its memory has room for."""
    positions, seen = len(layout.positions), set()
    for ahead in (1, 2, layout.micro_batches):
        limits = []
        for place, stages in enumerate(layout.positions):
            wished = positions if split and ahead == 1 else ahead * (positions - place)
            most = layout.micro_batches * len(stages)
            limits.append(max(len(stages), min(wished * len(stages), room[place], most)))
        if tuple(limits) not in seen:
            seen.add(tuple(limits))
            yield limits


def _times(times: LayoutTimes) -> tuple[Seconds, TransferSeconds]:
    def seconds(stage: int, kind: Kind) -> float:
        forward, back, weight, _ = times.stages[stage]
        return {"F": forward, "B": back + weight, "I": back, "W": weight}[kind]

    def transfer(boundary: int, gradient: bool) -> float:
        return (times.under if gradient else times.over)[boundary]

    return seconds, transfer
