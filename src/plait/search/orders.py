"""Orders of micro-batches for a layout: the classical schedules, and orders made for its times (S3, PE).

The list order is that of a sweep over the layout's own times, in which every position and every channel does one thing
at a time (`plait.schedule.sweep`). What it may hold decides how well it hides transfers and how much memory it takes:
tried are the in-flight limits of 1F1B, those and one more per stage that follows, and as much as memory allows.
"""

from collections.abc import Iterator

from plait.plan import Plan
from plait.schedule.sweep import Swept, sweep
from plait.search.groups import Groups
from plait.search.layout import Layout
from plait.search.problem import Problem
from plait.search.score import Scorer

FUSED, SPLIT = "pe", "zb-pe"


def orders(layout: Layout, problem: Problem, groups: Groups, scorer: Scorer, wanted: str | None) -> list[Plan]:
    """Plans of this layout that differ in their order, the one whose sweep ends first in front."""
    if wanted not in (None, FUSED, SPLIT):
        return [layout.plan(problem, groups, wanted)]
    if layout.num_stages == 1:
        return [layout.plan(problem, groups, "1f1b")]  # with one stage every order is gradient accumulation
    room = scorer.room(layout)
    found: dict[tuple[str, ...], tuple[float, Plan]] = {}
    for split in (False, True):
        name = SPLIT if split else FUSED
        if wanted in (None, name):
            for limits in _limits(layout, room, split=split):
                swept = _swept(layout, scorer, limits, split=split)
                lanes = tuple(",".join(map(str, lane)) for lane in swept.lanes)
                found.setdefault(lanes, (swept.seconds, layout.plan(problem, groups, name, lanes=lanes)))
    return [plan for _, plan in sorted(found.values(), key=lambda pair: pair[0])]


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


def _swept(layout: Layout, scorer: Scorer, limits: list[int], *, split: bool) -> Swept:
    times = scorer.times(layout)
    assert times is not None, "only a layout with a finite score has orders"

    def seconds(stage: int, kind: str) -> float:
        forward, back, weight, _ = times.stages[stage]
        return {"F": forward, "B": back + weight, "I": back, "W": weight}[kind]

    def transfer(boundary: int, gradient: bool) -> float:
        return (times.under if gradient else times.over)[boundary]

    return sweep(
        layout.positions, layout.micro_batches, seconds=seconds, transfer_seconds=transfer, limits=limits, split=split
    )
