"""Local search over layouts: small changes that the scorer likes, until none is left or time is up.

Moves: a stage boundary, or several neighbouring ones, by 1, 2, 4, … atoms; a device from one stage to the next; two
devices of two stages swapped; how many devices of a stage share each layer, in one stage or in all; a stage's
recomputation; twice or half the micro-batches. The first improvement is taken, and boundaries are tried first, being
the cheapest and most often right.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from plait.search.groups import Group, tensor_of
from plait.search.layout import Layout
from plait.search.limits import Limits

_BETTER = 1 - 1e-5  # a smaller gain is not worth another round
_FEW = 7  # boundaries that are moved together


@dataclass(frozen=True)
class Freedom:
    """What a search may change: all that the user did not fix."""

    limits: Limits
    devices: bool = True
    recompute: bool = True
    micro_batches: bool = True
    free_devices: tuple[int, ...] = ()  # those a stage may take although none of a layout's has them
    regrouped: Callable[[Group], Sequence[Group]] = lambda group: ()  # the same devices with others to a replica


def improved(
    layout: Layout,
    score: Callable[[Layout], float],
    may: Freedom,
    deadline: float,
) -> Layout:
    """A local optimum from `layout`."""
    best = score(layout)
    moved = True
    while moved and time.perf_counter() < deadline:
        moved = False
        for candidate in _neighbours(layout, may):
            found = score(candidate)
            if found < best * _BETTER:
                layout, best, moved = candidate, found, True
                break
            if time.perf_counter() >= deadline:
                break
    return layout


def _neighbours(layout: Layout, may: Freedom) -> Iterator[Layout]:
    yield from _moved_boundaries(layout, may.limits)
    if may.recompute:
        yield from _recomputing(layout)
    if may.devices:
        yield from _moved_devices(layout, may.free_devices)
        yield from _swapped_devices(layout)
    yield from _regrouped(layout, may)
    if may.micro_batches:
        for factor in (2.0, 0.5):
            if layout.micro_batches * factor >= 1:
                yield layout.changed(micro_batches=math.ceil(layout.micro_batches * factor))


def _moved_boundaries(layout: Layout, limits: Limits) -> Iterator[Layout]:
    edges = (0, *layout.boundaries, limits.num_atoms)
    count = len(layout.boundaries)
    for length in range(1, count + 1 if count <= _FEW else 2):
        for first in range(count - length + 1):
            last = first + length
            step = 1
            while step <= limits.num_atoms // 4 + 1:
                for by in (-step, step):
                    moved = tuple(boundary + by for boundary in layout.boundaries[first:last])
                    boundaries = (*layout.boundaries[:first], *moved, *layout.boundaries[last:])
                    if edges[first] < moved[0] and moved[-1] < edges[last + 1] and limits.admits(boundaries):
                        yield layout.changed(boundaries=boundaries)
                step *= 2


def _recomputing(layout: Layout) -> Iterator[Layout]:
    for index, flag in enumerate(layout.recompute):
        yield layout.changed(recompute=(*layout.recompute[:index], not flag, *layout.recompute[index + 1 :]))


def _regrouped(layout: Layout, may: Freedom) -> Iterator[Layout]:
    """In one stage, and in all."""
    ways = [may.regrouped(group) for group in layout.groups]
    for index, others in enumerate(ways):
        for other in others:
            yield _with_groups(layout, {index: other})
    for tensor in sorted({tensor_of(other) for others in ways for other in others}) if layout.num_stages > 1 else ():
        same = {
            index: next((other for other in others if tensor_of(other) == tensor), layout.groups[index])
            for index, others in enumerate(ways)
        }
        yield _with_groups(layout, same)


def _moved_devices(layout: Layout, free: tuple[int, ...]) -> Iterator[Layout]:
    for index, group in enumerate(layout.groups):
        for other in (index - 1, index + 1):
            if 0 <= other < layout.num_stages and _single(group, layout.groups[other]) and len(group) > 1:
                device = group[0] if other < index else group[-1]
                yield _with_groups(layout, {index: _without(group, device), other: _with(layout.groups[other], device)})
        used = {device for g in layout.groups for device in g}
        for device in free if _single(group) else ():
            if device not in used:
                yield _with_groups(layout, {index: _with(group, device)})


def _swapped_devices(layout: Layout) -> Iterator[Layout]:
    for index, group in enumerate(layout.groups):
        for other in range(index + 1, layout.num_stages):
            if not _single(group, layout.groups[other]):
                continue
            for a, b in ((group[-1], layout.groups[other][0]), (group[0], layout.groups[other][-1])):
                changed = {
                    index: _with(_without(group, a), b),
                    other: _with(_without(layout.groups[other], b), a),
                }
                yield _with_groups(layout, changed)


def _single(*groups: Group) -> bool:
    """Are their replicas single devices?"""
    return all(tensor_of(group) == 1 for group in groups)


def _with_groups(layout: Layout, changed: dict[int, Group]) -> Layout:
    return layout.changed(groups=tuple(changed.get(i, group) for i, group in enumerate(layout.groups)))


def _without(group: Group, device: int) -> Group:
    return tuple(other for other in group if other != device)


def _with(group: Group, device: int) -> Group:
    return tuple(sorted((*group, device)))
