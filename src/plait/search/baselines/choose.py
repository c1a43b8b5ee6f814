"""Choosing what a classical planner leaves open: the number of micro-batches, and which of its candidates to run.

Every candidate gets the numbers of micro-batches that memory admits, the quick time ranks them, and the simulator
judges the best few, as long as their programs are short enough to be judged within about half a second.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from plait.errors import PlaitError
from plait.plan import Plan
from plait.search.baselines.blocks import Numbers
from plait.search.baselines.layout import Layout
from plait.search.planner import evaluate
from plait.search.problem import Problem

_JUDGED = 4
_INSTRUCTIONS = 40_000  # compiled, checked and simulated in about half a second


def micro_batch_counts(problem: Problem, replicas: int) -> Numbers:
    """Powers of two that leave every replica a row; only the user's where it is fixed."""
    most = problem.batch_size // replicas
    fixed = problem.micro_batches
    counts = [fixed] if fixed is not None else [2**k for k in range(max(most, 1).bit_length())]
    return np.array([count for count in counts if count <= most], dtype=np.int64)


def spread(values: list[int], count: int) -> list[int]:
    """At most `count` of `values`, both ends among them.

    >>> spread([1, 2, 4, 8, 16], 3)
    [1, 4, 16]
    """
    if len(values) <= count:
        return values
    return [values[round(place * (len(values) - 1) / (count - 1))] for place in range(count)]


@dataclass(frozen=True)
class Option:
    layout: Layout
    schedule: str
    micro_batches: int
    seconds: float  # by the quick formula

    def plan(self) -> Plan:
        return self.layout.plan(self.micro_batches, self.schedule)


def options(layout: Layout, schedule: str, counts: Numbers | None = None) -> list[Option]:
    """The layout with each number of micro-batches that fits in memory."""
    if counts is None:
        counts = micro_batch_counts(layout.setting.problem, layout.most_replicas)
    if len(counts) == 0:
        return []
    seconds, fits = layout.seconds(counts), layout.fits(counts, schedule)
    return [
        Option(layout, schedule, int(count), float(time))
        for count, time, good in zip(counts, seconds, fits, strict=True)
        if good
    ]


def best_plan(name: str, problem: Problem, found: Iterable[Option]) -> Plan:
    """The best of the best few. Raises PlaitError where there is none, or where none of those judged can run."""
    judged: list[tuple[float, Plan]] = []
    left = _INSTRUCTIONS
    why = nothing_fits(name, problem)
    for option in sorted(found, key=lambda option: option.seconds):
        left -= option.layout.num_instructions(option.micro_batches)
        if len(judged) == _JUDGED or (judged and left < 0):
            break
        if left < 0:
            return option.plan()
        try:
            candidate = evaluate(option.plan(), problem.graph, problem.costs)
            judged.append((candidate.timeline.step_seconds, candidate.plan))
        except PlaitError as error:
            why = str(error)
    if not judged:
        raise PlaitError(why)
    return min(judged, key=lambda pair: pair[0])[1]


def nothing_fits(name: str, problem: Problem) -> str:
    of = f"{problem.micro_batches} micro-batches" if problem.micro_batches else "any number of micro-batches"
    return (
        f"{name} has no plan of {problem.graph.name} for batch size {problem.batch_size} and {of} in which every "
        f"device of {problem.cluster.name} has the memory it needs and a row to work on. Use devices with more "
        "memory, another batch size or another planner."
    )
