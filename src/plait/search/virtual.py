"""Several stages at each position: the layouts of interleaved schedules, made from one with a stage at each.

With v stages at each of P positions a micro-batch reaches the last position after 1/v of the work of one stage each,
so the pipeline fills v times as fast and sends v times as much. In a V the last stage lies where the first does, so
the middle boundary costs nothing and gradients turn round where they are made.
"""

import math

from plait.errors import PlaitError
from plait.search.layout import Layout
from plait.search.limits import Limits
from plait.search.partition import balanced_boundaries
from plait.search.problem import Problem

_MOST_STAGES = 64


def virtual_layouts(layout: Layout, problem: Problem, limits: Limits, schedule: str | None) -> list[Layout]:
    """The layouts with two stages at each position of `layout`, in turn and in a V; those `schedule` can use."""
    around = [*layout.groups, *layout.groups]
    back = [*layout.groups, *reversed(layout.groups)]
    wanted = {"interleaved": [around], "zb-v": [back], None: [around, back]}.get(schedule, [])
    found = []
    for groups in wanted:
        if layout.num_stages < 2 or len(groups) > min(_MOST_STAGES, len(problem.graph.atoms)):
            continue
        rows = math.ceil(problem.batch_size / layout.micro_batches)
        try:
            boundaries = balanced_boundaries(problem.graph, problem.costs, problem.cluster, groups, rows, limits)
        except PlaitError:  # the pins leave no such partition
            continue
        half = layout.recompute if groups is around else layout.recompute[::-1]
        found.append(
            layout.changed(boundaries=tuple(boundaries), groups=tuple(groups), recompute=(*layout.recompute, *half))
        )
    return found
