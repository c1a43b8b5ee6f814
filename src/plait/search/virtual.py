"""Several stages at each position: the layouts of interleaved schedules, made from one with a stage at each.

With v stages at each of P positions a micro-batch reaches the last position after 1/v of the work of one stage each,
so the pipeline fills v times as fast and sends v times as much. In a V the last stage lies where the first does, so
the middle boundary costs nothing and gradients turn round where they are made.
"""

import math

from plait.search.groups import Groups
from plait.search.layout import Layout
from plait.search.limits import Limits
from plait.search.loads import Loads
from plait.search.prm import Asked, boundaries_for
from plait.search.problem import Problem

_MOST_STAGES = 64


def virtual_layouts(
    layout: Layout, problem: Problem, groups: Groups, loads: Loads, limits: Limits, schedule: str | None
) -> list[Layout]:
    """The layouts with two stages at each position of `layout`, in turn and in a V; those `schedule` can use."""
    around = [*layout.groups, *layout.groups]
    back = [*layout.groups, *reversed(layout.groups)]
    wanted = {"interleaved": [around], "zb-v": [back], None: [around, back]}.get(schedule, [])
    asked = Asked(layout.micro_batches, math.ceil(problem.batch_size / layout.micro_batches))
    most = min(_MOST_STAGES, loads.num_edges - 1)
    if layout.num_stages < 2 or layout.has_shared_positions or 2 * layout.num_stages > most:
        return []
    found = []
    for sequence in wanted:
        boundaries = boundaries_for(loads, problem.costs, groups, sequence, asked, limits)
        if boundaries is not None:
            half = layout.recompute if sequence is around else layout.recompute[::-1]
            recompute = (*layout.recompute, *half)
            found.append(layout.changed(boundaries=boundaries, groups=tuple(sequence), recompute=recompute))
    return found
