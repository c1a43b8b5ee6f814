"""The classical planners, each planning by its own rules; all are judged by the same simulator and memory model."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from plait.errors import PlaitError
from plait.plan import Plan
from plait.search.baselines.choose import Option
from plait.search.baselines.dapple import dapple, dapple_options
from plait.search.baselines.data_parallel import data_parallel, data_parallel_options
from plait.search.baselines.even_split import even_options
from plait.search.baselines.gpipe import gpipe
from plait.search.baselines.grid import grid, grid_options
from plait.search.baselines.hetpipe import hetpipe, hetpipe_options
from plait.search.baselines.one_f_one_b import one_f_one_b
from plait.search.baselines.pipedream import pipedream, pipedream_options
from plait.search.judge import evaluate
from plait.search.problem import Problem
from plait.simulate import Timeline

Baseline = Callable[[Problem], Plan]
"""Raises PlaitError where it has no plan, for example because none fits in memory."""

BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        "data-parallel": data_parallel,
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "pipedream": pipedream,
        "dapple": dapple,
        "hetpipe": hetpipe,
        "grid": grid,
    }
)

OPTIONS: Mapping[str, Callable[[Problem], Iterable[Option]]] = MappingProxyType(
    {
        "data-parallel": data_parallel_options,
        "gpipe": partial(even_options, "gpipe"),
        "1f1b": partial(even_options, "1f1b"),
        "pipedream": pipedream_options,
        "dapple": dapple_options,
        "hetpipe": hetpipe_options,
        "grid": grid_options,
    }
)
"""What each of them chooses from."""


@dataclass(frozen=True)
class Judged:
    """What became of one planner: its plan with its timeline, or why there is none."""

    plan: Plan | None = None
    timeline: Timeline | None = None
    why: str = ""

    @property
    def step_seconds(self) -> float | None:
        return self.timeline.step_seconds if self.timeline else None


def compare(problem: Problem, names: Iterable[str] = tuple(BASELINES)) -> dict[str, Judged]:
    """Every named planner's plan, simulated. Raises PlaitError for a name that is not in `BASELINES` alone."""
    return {name: _judge(baseline(name), problem) for name in names}


def baseline(name: str) -> Baseline:
    """Raises PlaitError where there is no such planner."""
    if name not in BASELINES:
        raise PlaitError(f"unknown planner {name!r}; choose among {', '.join(BASELINES)}.")
    return BASELINES[name]


def _judge(planner: Baseline, problem: Problem) -> Judged:
    try:
        plan = planner(problem)
    except PlaitError as error:
        return Judged(why=str(error))
    try:
        found = evaluate(plan, problem.graph, problem.costs)
    except PlaitError as error:
        return Judged(plan=plan, why=str(error))
    return Judged(found.plan, found.timeline)


__all__ = ["BASELINES", "OPTIONS", "Baseline", "Judged", "Option", "Problem", "baseline", "compare"]
