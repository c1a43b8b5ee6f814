"""Choosing what a classical planner leaves open: the number of micro-batches, and which of its candidates to run.

Every candidate gets the numbers of micro-batches that memory admits, the quick time ranks them, and the simulator
judges the best few of each schedule. In the middle of a step every micro-batch takes as long as the one before: of a
long program two beginnings are simulated, which tell what each further micro-batch adds. Once even those become too
long the rest is not looked at; where that is so from the first on, the quick time decides.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from plait.errors import PlaitError
from plait.plan import Plan, validate
from plait.program import check_memory, compile_program, predict_memory
from plait.search.baselines.blocks import Numbers
from plait.search.baselines.layout import Layout
from plait.search.problem import Problem
from plait.simulate import step_seconds

_JUDGED = 8
_PER_LAYOUT = 2
_INSTRUCTIONS = 100_000  # compiled and simulated in about a second


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
    seconds, fits = layout.seconds(counts, schedule), layout.fits(counts, schedule)
    return [
        Option(layout, schedule, int(count), float(time))
        for count, time, good in zip(counts, seconds, fits, strict=True)
        if good
    ]


def best_plan(name: str, problem: Problem, found: Iterable[Option]) -> Plan:
    """The best of the best few. Raises PlaitError where there is none, or where none of those judged can run."""
    by_schedule: dict[str, list[Option]] = {}
    for option in sorted(found, key=lambda option: option.seconds):
        by_schedule.setdefault(option.schedule, []).append(option)
    judged: list[tuple[float, Option]] = []
    why = "" if by_schedule else nothing_fits(name, problem)
    for ranked in by_schedule.values():
        left = _INSTRUCTIONS
        for option in _best_few(ranked):
            beginnings = _beginnings(option)
            left -= sum(option.layout.num_instructions(count) for count in beginnings)
            if left < 0:
                break
            try:
                judged.append((_simulated(option, beginnings), option))
            except PlaitError as error:
                why = str(error)
    for _, option in sorted(judged, key=lambda pair: pair[0]):
        try:
            return fitting_plan(option)
        except PlaitError as error:
            why = str(error)
    if why:
        raise PlaitError(why)
    return min((ranked[0] for ranked in by_schedule.values()), key=lambda option: option.seconds).plan()


def fitting_plan(option: Option) -> Plan:
    """The option's plan. Raises PlaitError where it does not fit after all: the quick memory leaves some things out."""
    plan, problem = option.plan(), option.layout.problem
    program = compile_program(plan, problem.graph)
    check_memory(predict_memory(program, plan, problem.graph, problem.costs), plan)
    return plan


def _best_few(ranked: list[Option]) -> list[Option]:
    """The first of them, no layout with more than its share."""
    most = max(_PER_LAYOUT, _JUDGED // len({id(option.layout) for option in ranked}))
    taken: Counter[int] = Counter()
    chosen = []
    for option in ranked:
        taken[id(option.layout)] += 1
        if taken[id(option.layout)] <= most:
            chosen.append(option)
    return chosen[:_JUDGED]


def _beginnings(option: Option) -> list[int]:
    """Numbers of micro-batches to simulate: all, or two that fill the pipeline."""
    stages = len(option.layout.groups)
    short, long = stages + 4, 2 * stages + 8
    return [option.micro_batches] if option.micro_batches <= short + long else [short, long]


def _simulated(option: Option, beginnings: list[int]) -> float:
    plan, problem = option.plan(), option.layout.problem
    rows = plan.batch_size / plan.micro_batches
    seconds = [
        _step_seconds(replace(plan, micro_batches=count, batch_size=round(count * rows)), problem)
        for count in beginnings
    ]
    if len(beginnings) == 1:
        return seconds[0]
    (short, long), (first, second) = beginnings, seconds
    return second + (plan.micro_batches - long) * (second - first) / (long - short)


def _step_seconds(plan: Plan, problem: Problem) -> float:
    validate(plan, problem.graph)
    return step_seconds(compile_program(plan, problem.graph), plan, problem.costs)


def nothing_fits(name: str, problem: Problem) -> str:
    of = f"{problem.micro_batches} micro-batches" if problem.micro_batches else "any number of micro-batches"
    return (
        f"{name} has no plan of {problem.graph.name} for batch size {problem.batch_size} and {of} in which every "
        f"device of {problem.cluster.name} has the memory it needs and a row to work on. Use devices with more "
        "memory, another batch size or another planner."
    )
