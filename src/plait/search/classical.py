"""Layouts of the classical planners, as starting points: what they find, the search should find too.

Their own orders are left behind: a layout of theirs gets an order made for its times, like any other.
"""

import time
from collections.abc import Iterator

from plait.errors import PlaitError
from plait.plan import Plan
from plait.search.baselines import BASELINES
from plait.search.layout import Layout
from plait.search.problem import Problem

_ASKED = ("data-parallel", "dapple", "pipedream", "grid", "hetpipe", "1f1b")


def classical_layouts(problem: Problem, deadline: float) -> Iterator[Layout]:
    """From one planner after the other while there is time; those that find nothing are left out."""
    longest = 0.0
    for name in _ASKED:
        start = time.perf_counter()
        if start + longest > deadline:
            return
        try:
            yield layout_of_plan(BASELINES[name](problem))
        except PlaitError:
            continue
        finally:
            longest = max(longest, time.perf_counter() - start)


def layout_of_plan(plan: Plan) -> Layout:
    return Layout(
        boundaries=tuple(stage.start for stage in plan.stages[1:]),
        groups=tuple(stage.devices for stage in plan.stages),
        recompute=tuple(stage.recompute for stage in plan.stages),
        micro_batches=plan.micro_batches,
    )
