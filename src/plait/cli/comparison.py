"""`--compare`: the classical planners on the same problem, and how much memory those lack that have no plan."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from plait.cluster.suggestions import did_you_mean, listed
from plait.cluster.units import format_bytes
from plait.errors import PlaitError
from plait.program import compile_program, predict_memory
from plait.report.reasons import Reason, too_large
from plait.search import Problem
from plait.search.baselines import BASELINES, Judged, baseline, compare

_MOST_TIMES = 64  # the device's memory: what needs more lacks something else
_HALVINGS = 4


@dataclass(frozen=True)
class Comparison:
    """What became of each planner, and why those without a plan that fits have none."""

    judged: Mapping[str, Judged]
    unfit: Mapping[str, Reason]


NO_COMPARISON = Comparison({}, {})


def compared(text: str | None) -> tuple[str, ...]:
    """The planners that --compare names. Raises PlaitError where there is none of that name."""
    if text is None:
        return ()
    if text == "all":
        return tuple(BASELINES)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in BASELINES:
            raise PlaitError(
                f"--compare {text!r}: {name!r} is no planner. {did_you_mean(name, BASELINES)}Write all, or some of "
                f"{listed(BASELINES)} with commas between."
            )
    return names


def comparison(problem: Problem, names: tuple[str, ...]) -> Comparison:
    judged = compare(problem, names)
    unfit = {
        name: reason
        for name, found in judged.items()
        if found.timeline is None and (reason := _too_large(found, problem) or _missing(name, problem)) is not None
    }
    return Comparison(judged, unfit)


def _too_large(found: Judged, problem: Problem) -> Reason | None:
    """What the plan lacks, where there is one that does not fit."""
    if found.plan is None:
        return None
    program = compile_program(found.plan, problem.graph)
    return too_large(found.plan, predict_memory(program, found.plan, problem.graph, problem.costs))


def _missing(name: str, problem: Problem) -> Reason | None:
    """How much larger every device's memory would have to be for the planner to have a plan, found by trying."""
    low, high = 1.0, 2.0
    while not _has_plan(name, problem, high):
        low, high = high, 2 * high
        if high > _MOST_TIMES:
            return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _has_plan(name, problem, middle) else (middle, high)
    least = min(device.memory_bytes for device in problem.cluster.devices)
    return Reason("memory", f"does not fit in memory: about {format_bytes((high - 1) * least)} too much")


def _has_plan(name: str, problem: Problem, times: float) -> bool:
    devices = tuple(replace(d, memory_bytes=int(d.memory_bytes * times)) for d in problem.cluster.devices)
    try:
        baseline(name)(replace(problem, cluster=replace(problem.cluster, devices=devices)))
    except PlaitError:
        return False
    return True
