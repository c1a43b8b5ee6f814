"""List scheduling: the order that comes out when everybody always does at once the most urgent thing there is to do.

Simulated time goes from event to event. Every position is a serial resource: when free, it takes of what is ready the
oldest micro-batch's backward, or else the oldest one's forward, or else a weight gradient. Nobody waits on purpose.
Forwards may be given the first place instead, which lets late stages end early: they are done while early ones still
work backwards. Every channel is a serial resource too, first ready first served: one for each two positions, or those
on the ways that the caller names, which boundaries may have in common. Gradient sums follow when all actions of their
stages have ended, those of one group one after the other.

A position holds a micro-batch of a stage from the start of its forward to the end of its backward (of `W` where that
is split) and starts no forward that would take it past its limit. Forwards of early stages could fill a position that
has later stages too, and then their own micro-batches would never get through those; so a forward leaves one place
free for each later stage at its position:

    F of stage s may start at position p  iff  held_p + 1 + (number of stages after s at p) <= limit_p

Were everything blocked, take the deepest blocked stage s: p holds nothing of s or a later stage, for that would be
blocked deeper still, and the forwards of earlier stages have left the place that s needs. So something always runs.

Every action becomes ready by the end of exactly one other, so n of them cost O(n log n).
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from plait.errors import PlaitError
from plait.schedule.schedule import Action, Kind, Positions

Seconds = Callable[[int, Kind], float]  # of an action, by stage and kind
TransferSeconds = Callable[[int, bool], float]  # between stages s and s+1, by s and whether it is the gradient


class Way(NamedTuple):
    """What a transfer keeps busy: channels, each for some seconds; it is there a latency after it has left the last."""

    hops: tuple[tuple[Hashable, float], ...]
    latency: float = 0.0


WayOf = Callable[[int, bool], Way]  # by boundary and whether it is the gradient


class GradientSum(NamedTuple):
    """What follows the last actions of some stages: it takes its turn on each of its channels."""

    stages: tuple[int, ...]
    seconds: float
    hops: tuple[tuple[Hashable, float], ...]
    group: Hashable  # sums of one group follow one another


class Swept(NamedTuple):
    lanes: tuple[tuple[Action, ...], ...]
    seconds: float  # until the last action and the last sum end
    computed: float  # until the last action ends


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
    forwards_first: bool = False,
    way_of: WayOf | None = None,
    full_duplex: bool = True,
    sums: Sequence[GradientSum] = (),
) -> Swept:
    """Lanes of the greedy order, and when all has ended.

    `limits[p]` is how many micro-batches position p may hold, each of its stages' counted; without, memory is no
    matter. `split` makes backwards `I` and `W`. Without `way_of` every two positions have a channel to themselves that
    takes `transfer_seconds`, for each direction, or without `full_duplex` for both in turns. Transfers of no time, and
    those within a position, need no channel.

    >>> swept = sweep([[0], [1]], 2, transfer_seconds=no_time, limits=[2, 1])
    >>> [" ".join(map(str, lane)) for lane in swept.lanes], swept.seconds
    (['0F0 0F1 0B0 0B1', '1F0 1B0 1F1 1B1'], 6.0)
    """
    resources = [_Resource(limit, forwards_first=forwards_first) for limit in _checked(limits, positions)]
    steps = _actions(positions, resources, seconds, split=split)
    num_stages = len(steps) // (3 if split else 2)
    position_of = {stage: place for place, stages in enumerate(positions) for stage in stages}

    def between_positions(boundary: int, gradient: bool) -> Way:
        there, back = position_of[boundary], position_of[boundary + 1]
        ends = (back, there) if gradient else (there, back)
        return Way(((ends if full_duplex else tuple(sorted(ends)), transfer_seconds(boundary, gradient)),))

    channels = _Channels()
    _connect(steps, num_stages, way_of or between_positions, channels)
    run = _Run(steps, micro_batches, _Sums(sums, steps, micro_batches, channels))
    seconds_taken = run.run()
    lanes = tuple(
        tuple(Action(*steps[task // micro_batches].name, task % micro_batches) for task in resource.taken)
        for resource in resources
    )
    return Swept(lanes, seconds_taken, run.computed)


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
    """A position."""

    limit: float = math.inf
    forwards_first: bool = False
    held: int = 0
    idle: bool = True
    backwards: list[int] = field(default_factory=list)  # heaps of the tasks that are ready
    forwards: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)


class _Transfer(NamedTuple):
    """Channels by number, with the seconds each is busy; and the latency."""

    hops: tuple[tuple[int, float], ...]
    latency: float


@dataclass(slots=True, eq=False)
class _Step:
    """An action of a stage, which every micro-batch goes through alike."""

    name: tuple[int, Kind]
    seconds: float
    resource: _Resource
    ready: list[int]  # the heap of its resource
    leaves: int = 0  # places that must stay free when a forward starts
    frees: int = 0  # places given back at the end
    first: int = 0
    after: list[tuple["_Step", _Transfer | None]] = field(default_factory=list)  # what its end makes ready


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


def _connect(steps: Sequence[_Step], num_stages: int, way_of: WayOf, channels: "_Channels") -> None:
    """What makes what ready, over which channels."""
    backwards, forwards, weights = steps[:num_stages], steps[num_stages : 2 * num_stages][::-1], steps[2 * num_stages :]

    def link(before: _Step, after: _Step, boundary: int, *, gradient: bool) -> None:
        transfer = None
        if before.resource is not after.resource:
            way = way_of(boundary, gradient)
            hops = channels.numbered(way.hops)
            transfer = _Transfer(hops, way.latency) if hops or way.latency else None
        before.after.append((after, transfer))

    for boundary in range(num_stages - 1):
        link(backwards[boundary + 1], backwards[boundary], boundary, gradient=True)
        link(forwards[boundary], forwards[boundary + 1], boundary, gradient=False)
    forwards[-1].after.append((backwards[-1], None))
    for backward, weight in zip(backwards, weights, strict=False):
        backward.after.append((weight, None))


class _Channels:
    """Numbers for channels, and when each is free."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.free: list[float] = []

    def numbered(self, hops: Sequence[tuple[Hashable, float]]) -> tuple[tuple[int, float], ...]:
        found = tuple((self._numbers.setdefault(name, len(self._numbers)), taken) for name, taken in hops if taken > 0)
        self.free += [0.0] * (len(self._numbers) - len(self.free))
        return found


class _Sums:
    """Gradient sums: which are ready, and which is under way in every group."""

    def __init__(
        self, sums: Sequence[GradientSum], steps: Sequence[_Step], micro_batches: int, channels: _Channels
    ) -> None:
        self.channels = channels
        self.sums = sums
        self.hops = [channels.numbered(found.hops) for found in sums]
        self.of_stage: dict[int, list[int]] = {}
        for number, found in enumerate(sums):
            for stage in found.stages:
                self.of_stage.setdefault(stage, []).append(number)
        self.lacking = [len(found.stages) for found in sums]
        self.left = dict.fromkeys(self.of_stage, 0)  # tasks of these stages to come
        for step in steps:
            if step.name[0] in self.left:
                self.left[step.name[0]] += micro_batches
        self.queues: dict[Hashable, list[int]] = {found.group: [] for found in sums}
        self.under_way: set[Hashable] = set()

    def ended(self, stage: int, now: float) -> list[tuple[float, int]]:
        """One task of a stage has ended: when which sums that now begin will end."""
        self.left[stage] -= 1
        begun = []
        if not self.left[stage]:
            for number in self.of_stage[stage]:
                self.lacking[number] -= 1
                if not self.lacking[number]:
                    group = self.sums[number].group
                    self.queues[group].append(number)
                    if group not in self.under_way:
                        begun += self.next(group, now)
        return begun

    def next(self, group: Hashable, now: float) -> list[tuple[float, int]]:
        """Begins the group's next sum; gives its end and number."""
        self.under_way.discard(group)
        if not self.queues[group]:
            return []
        self.under_way.add(group)
        number = self.queues[group].pop(0)
        found, free = self.sums[number], self.channels.free
        end = now + found.seconds
        for channel, taken in self.hops[number]:
            free[channel] = done = max(now, free[channel]) + taken
            end = max(end, done)
        return [(end, number)]


class _Run:
    """Every task through its resource, which notes the order.

    Events are times with a number: of the task that ends; from `num_tasks` on, of the one that has what it needs; then
    of the sum that ends; then of the transfer whose turn has come on a channel it waited for.
    """

    def __init__(self, steps: Sequence[_Step], micro_batches: int, sums: _Sums) -> None:
        for index, step in enumerate(steps):
            step.first = index * micro_batches
        self.steps, self.micro_batches, self.sums = steps, micro_batches, sums
        self.num_tasks = len(steps) * micro_batches
        self.first_sum = 2 * self.num_tasks
        self.first_waiting = self.first_sum + len(sums.sums)
        self.events: list[tuple[float, int]] = []
        self.waiting: list[tuple[int, _Transfer, int, float]] = []  # what it makes ready, the next hop, when it left
        self.touched: list[_Resource] = []
        self.computed = 0.0

    def run(self) -> float:
        """Gives the end of the last."""
        steps, micro_batches, events = self.steps, self.micro_batches, self.events
        entry = next(step for step in steps if step.name == (0, "F"))
        entry.ready += range(entry.first, entry.first + micro_batches)
        self.touched.append(entry.resource)
        now = 0.0
        while True:
            for resource in self.touched:
                if resource.idle:
                    task = _take(resource, steps, micro_batches)
                    if task is not None:
                        resource.idle = False
                        heappush(events, (now + steps[task // micro_batches].seconds, task))
            if not events:
                return now
            now = events[0][0]
            self.touched = []
            while events and events[0][0] == now:  # whoever is free at this moment sees all that is ready at it
                event = heappop(events)[1]
                if event < self.num_tasks:
                    self._ended(event, now)
                elif event < self.first_sum:
                    self._ready(event - self.num_tasks)
                elif event < self.first_waiting:
                    self._sum_ends(self.sums.next(self.sums.sums[event - self.first_sum].group, now))
                else:
                    self._pass(*self.waiting[event - self.first_waiting], now)

    def _ready(self, task: int) -> None:
        step = self.steps[task // self.micro_batches]
        heappush(step.ready, task)
        self.touched.append(step.resource)

    def _ended(self, task: int, now: float) -> None:
        step = self.steps[task // self.micro_batches]
        resource = step.resource
        resource.idle = True
        self.computed = now
        resource.held -= step.frees
        self.touched.append(resource)
        for later, transfer in step.after:
            ready = later.first + task - step.first
            if transfer is None:
                self._ready(ready)
            else:
                self._pass(ready, transfer, 0, now, now)
        if step.name[0] in self.sums.left:
            self._sum_ends(self.sums.ended(step.name[0], now))

    def _sum_ends(self, begun: Sequence[tuple[float, int]]) -> None:
        for end, number in begun:
            heappush(self.events, (end, self.first_sum + number))

    def _pass(self, task: int, transfer: _Transfer, hop: int, left: float, now: float) -> None:
        """A transfer comes to a channel with its first byte; it has left those before at `left`. Where it must wait,
        it comes to the next one only when its turn has come."""
        free = self.sums.channels.free
        hops = transfer.hops
        while hop < len(hops):
            channel, taken = hops[hop]
            begun = max(free[channel], now)
            free[channel] = done = begun + taken
            left = max(left, done)
            hop += 1
            if begun > now and hop < len(hops):
                heappush(self.events, (begun, self.first_waiting + len(self.waiting)))
                self.waiting.append((task, transfer, hop, left))
                return
        heappush(self.events, (left + transfer.latency, self.num_tasks + task))


def _take(resource: _Resource, steps: Sequence[_Step], micro_batches: int) -> int | None:
    forwards = resource.forwards
    may_start = bool(forwards) and resource.held + steps[forwards[0] // micro_batches].leaves < resource.limit
    if resource.backwards and not (may_start and resource.forwards_first):
        task = heappop(resource.backwards)
    elif may_start:
        task = heappop(forwards)
        resource.held += 1
    elif resource.weights:
        task = heappop(resource.weights)
    else:
        return None
    resource.taken.append(task)
    return task
