"""List scheduling: the order that comes out when everybody always does at once the most urgent thing there is to do.

Simulated time goes from event to event. Every position is a serial resource, and so is every channel between two
positions. A free position takes, of what is ready, the oldest micro-batch's backward, or else the oldest one's
forward, or else a weight gradient; a free channel takes a gradient before an activation. Nobody waits on purpose.

A position holds a micro-batch of a stage from the start of its forward to the end of its backward (of `W` where that
is split) and starts no forward that would take it past its limit. Forwards of early stages could fill a position that
has later stages too, and then their own micro-batches would never get through those; so a forward leaves one place
free for each later stage at its position:

    F of stage s may start at position p  iff  held_p + 1 + (number of stages after s at p) <= limit_p

Were everything blocked, take the deepest blocked stage s: p holds nothing of s or a later stage, for that would be
blocked deeper still, and the forwards of earlier stages have left the place that s needs. So something always runs.

Every action and transfer becomes ready by the end of exactly one other, so n of them cost O(n log n).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from plait.errors import PlaitError
from plait.schedule.schedule import Action, Kind, Positions

Seconds = Callable[[int, Kind], float]  # of an action, by stage and kind
TransferSeconds = Callable[[int, bool], float]  # between stages s and s+1, by s and whether it is the gradient


class Swept(NamedTuple):
    lanes: tuple[tuple[Action, ...], ...]
    seconds: float  # until the last action ends


def unit_time(*_: object) -> float:
    return 1.0


def no_time(*_: object) -> float:
    return 0.0


def sweep(
    positions: Positions,
    micro_batches: int,
    *,
    seconds: Seconds = unit_time,
    transfer_seconds: TransferSeconds = unit_time,
    limits: Sequence[int] | None = None,
    split: bool = False,
    full_duplex: bool = True,
) -> Swept:
    """Lanes of the greedy order, and when it ends.

    `limits[p]` is how many micro-batches position p may hold, each of its stages' counted; without, memory is no
    matter. `split` makes backwards `I` and `W`. Without `full_duplex` the two directions between two positions take
    turns. Transfers of no time, and those within a position, need no channel.

    >>> lanes, end = sweep([[0], [1]], 2, transfer_seconds=no_time, limits=[2, 1])
    >>> [" ".join(map(str, lane)) for lane in lanes], end
    (['0F0 0F1 0B0 0B1', '1F0 1B0 1F1 1B1'], 6.0)
    """
    resources = [_Resource(limit) for limit in _checked(limits, positions)]
    steps = _actions(positions, resources, seconds, split=split)
    _connect(steps, len(steps) // (3 if split else 2), transfer_seconds, full_duplex=full_duplex)
    end = _run(steps, micro_batches)
    lanes = tuple(
        tuple(Action(*steps[task // micro_batches].name, task % micro_batches) for task in resource.taken)
        for resource in resources
    )
    return Swept(lanes, end)


def _checked(limits: Sequence[int] | None, positions: Positions) -> Sequence[float]:
    if limits is None:
        return [math.inf] * len(positions)
    for place, (limit, stages) in enumerate(zip(limits, positions, strict=True)):
        if limit < len(stages):
            raise PlaitError(
                f"position {place} may hold {limit} micro-batches in flight, but its {len(stages)} stages each hold "
                f"a micro-batch before its first backward. Allow at least {len(stages)}."
            )
    return limits


# A task is one micro-batch's pass through a step, as the number `step.first + micro_batch`; of the tasks in a heap
# the smallest number is the most urgent.


@dataclass(slots=True, eq=False)
class _Resource:
    """A position or a channel."""

    limit: float = math.inf
    held: int = 0
    idle: bool = True
    backwards: list[int] = field(default_factory=list)  # heaps of the tasks that are ready
    forwards: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Step:
    """What every micro-batch goes through alike: an action of a stage, or a transfer."""

    name: tuple[int, Kind]
    seconds: float
    resource: _Resource
    ready: list[int]  # the heap of its resource
    leaves: int = 0  # places that must stay free when a forward starts
    frees: int = 0  # places given back at the end
    first: int = 0
    after: list["_Step"] = field(default_factory=list)  # what its end makes ready


def _actions(positions: Positions, resources: Sequence[_Resource], seconds: Seconds, *, split: bool) -> list[_Step]:
    """Steps of all stages, the most urgent first: where one position holds several, the oldest micro-batch is the one
    that is furthest on."""
    backward: Kind = "I" if split else "B"
    held = sorted((stage, position) for position, stages in enumerate(positions) for stage in stages)
    steps: list[_Step] = []
    for stage, position in held:
        at = resources[position]
        steps.append(_Step((stage, backward), seconds(stage, backward), at, at.backwards, frees=0 if split else 1))
    for stage, position in reversed(held):
        at = resources[position]
        leaves = sum(other > stage for other in positions[position])
        steps.append(_Step((stage, "F"), seconds(stage, "F"), at, at.forwards, leaves=leaves))
    for stage, position in held if split else ():
        at = resources[position]
        steps.append(_Step((stage, "W"), seconds(stage, "W"), at, at.weights, frees=1))
    return steps


def _connect(steps: list[_Step], num_stages: int, transfer_seconds: TransferSeconds, *, full_duplex: bool) -> None:
    """What makes what ready; transfers that take time become steps of their own, on the channel of their positions."""
    backwards, forwards, weights = steps[:num_stages], steps[num_stages : 2 * num_stages][::-1], steps[2 * num_stages :]
    channels: dict[tuple[int, int], _Resource] = {}

    def link(before: _Step, after: _Step, boundary: int, *, gradient: bool) -> None:
        taken = transfer_seconds(boundary, gradient)
        if before.resource is after.resource or taken == 0:
            before.after.append(after)
            return
        ends = (id(before.resource), id(after.resource))
        channel = channels.setdefault(ends if full_duplex else (min(ends), max(ends)), _Resource())
        ready = channel.backwards if gradient else channel.forwards
        transfer = _Step(before.name, taken, channel, ready, after=[after])
        before.after.append(transfer)
        steps.append(transfer)

    for boundary in range(num_stages - 1):
        link(backwards[boundary + 1], backwards[boundary], boundary, gradient=True)
    for boundary in reversed(range(num_stages - 1)):
        link(forwards[boundary], forwards[boundary + 1], boundary, gradient=False)
    forwards[-1].after.append(backwards[-1])
    for backward, weight in zip(backwards, weights, strict=False):
        backward.after.append(weight)


def _run(steps: Sequence[_Step], micro_batches: int) -> float:
    """Every task through its resource, which notes the order; when the last one ends."""
    for index, step in enumerate(steps):
        step.first = index * micro_batches
    entry = next(step for step in steps if step.name == (0, "F"))
    entry.ready += range(entry.first, entry.first + micro_batches)
    events: list[tuple[float, int]] = []  # when which task ends
    touched = [entry.resource]
    now = 0.0
    while True:
        for resource in touched:
            if resource.idle:
                task = _take(resource, steps, micro_batches)
                if task is not None:
                    resource.idle = False
                    heappush(events, (now + steps[task // micro_batches].seconds, task))
        if not events:
            return now
        now = events[0][0]
        touched = []
        while events and events[0][0] == now:  # whoever is free at this moment sees all that is ready at it
            _, task = heappop(events)
            step = steps[task // micro_batches]
            resource = step.resource
            resource.idle = True
            resource.held -= step.frees
            touched.append(resource)
            for later in step.after:
                heappush(later.ready, later.first + task - step.first)
                touched.append(later.resource)


def _take(resource: _Resource, steps: Sequence[_Step], micro_batches: int) -> int | None:
    forwards = resource.forwards
    if resource.backwards:
        task = heappop(resource.backwards)
    elif forwards and resource.held + steps[forwards[0] // micro_batches].leaves < resource.limit:
        task = heappop(forwards)
        resource.held += 1
    elif resource.weights:
        task = heappop(resource.weights)
    else:
        return None
    resource.taken.append(task)
    return task
