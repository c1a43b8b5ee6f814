"""Stages cut into chunks on the same devices, so that gradients are summed while the stage still works backwards.

A sum starts behind the last backward of its stage. Cut into v chunks, a stage hands the gradients of its last layers to
the links when a v-th of its last backward is done, and computes on beside them. Between chunks nothing is sent, so they
cost nothing else. It pays where the last backward is long: with few micro-batches.
"""

from itertools import pairwise

import numpy as np

from plait.search.layout import Layout
from plait.search.limits import Limits
from plait.search.loads import Loads

_CHUNKS = (2, 4, 8)
_MOST_ACTIONS = 1024  # micro-batches times stages: with more, a micro-batch's backward is too short to hide a sum


def chunked_layouts(layout: Layout, loads: Loads, limits: Limits) -> list[Layout]:
    """The layout with every replicated stage in 2, 4, … chunks of about equal work."""
    if layout.has_shared_positions or limits.held:
        return []
    found: list[Layout] = []
    for count in _CHUNKS:
        cut = _chunked(layout, loads, limits, count)
        if cut.num_stages * layout.micro_batches <= _MOST_ACTIONS and cut not in (layout, *found):
            found.append(cut)
    return found


def _chunked(layout: Layout, loads: Loads, limits: Limits, count: int) -> Layout:
    work = np.sum([kind.backward_per_row + kind.backward_fixed for kind in loads.kinds.values()], axis=0)
    may = np.setdiff1d(loads.edges[1:-1], list(limits.barred))
    starts: list[tuple[int, int]] = []  # first atoms of the chunks, and whose they are
    edges = (0, *layout.boundaries, int(loads.edges[-1]))
    for stage, (first, last) in enumerate(pairwise(edges)):
        starts.append((first, stage))
        inside = may[(may > first) & (may < last)]
        if len(layout.groups[stage]) > 1 and len(inside):
            wanted = np.linspace(work[first], work[last], count + 1)[1:-1]
            places = np.clip(np.searchsorted(work[inside], wanted), 0, len(inside) - 1)
            starts += [(int(inside[place]), stage) for place in np.unique(places)]
    return layout.changed(
        boundaries=tuple(first for first, _ in starts[1:]),
        groups=tuple(layout.groups[stage] for _, stage in starts),
        recompute=tuple(layout.recompute[stage] for _, stage in starts),
    )
