"""What the classical planners would choose from: starting points, and plans to be no slower than.

Each gives those it thinks best by its own quick time, before the simulator judges them. A layout of theirs gets orders
made for its times, like any other; the very best are judged as they are besides.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import nsmallest

from plait.search.baselines import OPTIONS, Option
from plait.search.layout import Layout
from plait.search.problem import Problem

# In this order, each with the milliseconds until its first option, for every device there is: the quick ones first.
_ASKED = {"data-parallel": 0.0, "hetpipe": 0.1, "pipedream": 0.7, "1f1b": 2.0, "grid": 2.0, "dapple": 2.0}
_LOOKED_AT, _TAKEN, _ALIKE = 32, 6, 2  # options of each planner; of those taken, with the same stages


def classical_options(problem: Problem, deadline: float) -> Iterator[tuple[Layout, Option]]:
    """From one planner after the other, if there is time for it."""
    for name, milliseconds in _ASKED.items():
        if time.perf_counter() + 1e-3 * milliseconds * len(problem.cluster.devices) > deadline:
            continue
        options = _until(deadline, OPTIONS[name](problem))
        for option in _best_few(nsmallest(_LOOKED_AT, options, key=lambda option: option.seconds)):
            layout = Layout(
                boundaries=tuple(map(int, option.layout.boundaries)),
                groups=option.layout.stage_groups,
                recompute=(False,) * len(option.layout.groups),
                micro_batches=option.micro_batches,
            )
            yield layout, option


def _until(deadline: float, options: Iterable[Option]) -> Iterator[Option]:
    """Those found by then."""
    for option in options:
        yield option
        if time.perf_counter() > deadline:
            return


def _best_few(ranked: list[Option]) -> list[Option]:
    taken: Counter[int] = Counter()
    chosen = []
    for option in ranked:
        taken[id(option.layout)] += 1
        if taken[id(option.layout)] <= _ALIKE:
            chosen.append(option)
    return chosen[:_TAKEN]
