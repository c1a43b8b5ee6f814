"""Orders of micro-batches for a layout: orders made for its times (S3, PE), and the classical schedules by name.

The list order is that of a sweep over the layout's own times, in which every position and every channel does one thing
at a time (`plait.schedule.sweep`). What it may hold decides how well it hides transfers and how much memory it takes:
tried are the in-flight limits of 1F1B, twice those, and as much as memory allows. Several stages at a position have
hand-made orders (interleaved, ZB-V) that a sweep does not find.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from plait.plan import Plan
from plait.schedule import Schedule, lanes_text, make_schedule, positions_for
from plait.schedule.clock import play
from plait.schedule.schedule import Kind
from plait.schedule.sweep import Seconds, TransferSeconds, sweep
from plait.search.groups import Groups
from plait.search.layout import Layout
from plait.search.problem import Problem
from plait.search.score import Scorer

FUSED, SPLIT = "pe", "zb-pe"  # orders made for a layout; their plans carry them


class _Order(NamedTuple):
    seconds: float  # until the last computation
    name: str
    lanes: tuple[str, ...]  # none where the name says it all


def orders(
    layout: Layout,
    problem: Problem,
    groups: Groups,
    scorer: Scorer,
    wanted: str | None,
    reserve: Sequence[int] | None = None,
) -> list[Plan]:
    """Plans of this layout that differ in their order, the one whose computations end first in front.

    They leave `reserve` bytes free at each position.
    """
    if wanted not in (None, FUSED, SPLIT):
        return [layout.plan(problem, groups, wanted)]
    if layout.num_stages == 1:
        return [layout.plan(problem, groups, "1f1b")]  # with one stage every order is gradient accumulation
    found: dict[tuple[str, ...], _Order] = {}
    for order in _orders(layout, scorer, wanted, reserve or [0] * len(layout.positions)):
        found.setdefault(order.lanes, order)
    return [layout.plan(problem, groups, o.name, lanes=o.lanes) for o in sorted(found.values())]


def _orders(layout: Layout, scorer: Scorer, wanted: str | None, reserve: Sequence[int]) -> Iterator[_Order]:
    seconds, transfer = _times(layout, scorer)
    room = scorer.room(layout, reserve)
    for split, name in ((False, FUSED), (True, SPLIT)):
        if wanted not in (None, name):
            continue
        for limits in _limits(layout, room, split=split):
            lanes, end = sweep(
                layout.positions,
                layout.micro_batches,
                seconds=seconds,
                transfer_seconds=transfer,
                limits=limits,
                split=split,
            )
            yield _Order(end, name, lanes_text(Schedule(name, lanes)))
    if wanted is None and layout.has_shared_positions:
        for name in ("interleaved", "zb-v"):
            if _suits(name, layout):
                lanes = make_schedule(name, layout.positions, layout.micro_batches).lanes
                yield _Order(play(lanes, seconds=seconds, transfer_seconds=transfer).seconds, name, ())


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


def _times(layout: Layout, scorer: Scorer) -> tuple[Seconds, TransferSeconds]:
    times = scorer.times(layout)
    assert times is not None, "only a layout with a finite score has orders"

    def seconds(stage: int, kind: Kind) -> float:
        forward, back, weight, _ = times.stages[stage]
        return {"F": forward, "B": back + weight, "I": back, "W": weight}[kind]

    def transfer(boundary: int, gradient: bool) -> float:
        return (times.under if gradient else times.over)[boundary]

    return seconds, transfer
