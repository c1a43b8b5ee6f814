"""What no order of micro-batches can beat, for a given partition, replication and mapping.

Without overlap a step ends when every rank has computed, every gradient sum is done and every message has left (that is
L), the loss is known to all, and every rank has stepped its optimiser: T = L + meeting + max over ranks of their steps.
L is at least each of the following; releases and tails are the longest paths of a micro-batch (`paths`), of the
size for which they are shortest, and every serial resource is bounded by Jackson's argument (`serial`).

- load (`_loads`): a rank computes all its forwards and backwards one at a time; head + sum of F + B + tail. With
  split backwards nobody waits for the later halves W, so the tail after them is only the gradient sum; but of those
  only as many as memory has room for can be left when the last earlier half ends: the others have its tail.
- coupled load (`_coupled`): a stage whose ranks start together takes the slowest rank's time for each computation,
  where all of them have rows of every micro-batch.
- host (`_hosts`): the ranks of a host with `slots` cores work off at most `slots` seconds per second.
- channel (`_channels`): everything with this channel on its way, gradient sums too, has it in turn. A sum is
  released when the last backward of its stage can be over, on the slowest rank.
- memory (`_in_flight`): a rank with room for K micro-batches' saved bytes, each kept for the round trip
  F + between + B at least, needs sum of round trips / K.

Overlap (`Plan.overlap`). With `backward` the steps come before the loss is known to all, T = L + meeting, and are work
of their rank (`loads`). A stage's sums begin one after the other no sooner than its last computation, so they end no
earlier than S - (its longest computation) after it, S being the seconds of all its sums. With `full` they may end in
the next step, so nothing of them is in any tail, and channels have them at any time; T = L + meeting with steps as
work. But in a row of steps A seconds of them are exposed between a stage's last backward and its next first forward
(`between`): T is at least the rank's load and A (`around`), and, where all rows come first to the first stage, L + A
for all paths that end there.

The sums of a stage's n buckets are taken as n of the mean size, which is exact for times that are affine in the
bytes and no more than the true sum wherever they are convex. O(places + messages of one micro-batch), times the
number of links on a route.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

from plait.cost import Costs
from plait.graph import Graph
from plait.plan import Plan
from plait.program.stage_memory import StageMemory
from plait.search.bounds.between import exposed_seconds
from plait.search.bounds.bound import NOTHING, Bound, strongest
from plait.search.bounds.passage import Passage, passages, splits_backwards, step_tables
from plait.search.bounds.paths import Paths, longest_paths
from plait.search.bounds.room import most_put_off, room_for_activations
from plait.search.bounds.serial import Item, serial_bound
from plait.search.bounds.sums import Sum, gradient_sums, slowest_step, step_of_each
from plait.simulate.times import Times


def plan_bound(plan: Plan, graph: Graph, costs: Costs) -> Bound:
    """The strongest of the arguments above."""
    tables, counts = step_tables(plan, graph)
    times = Times(tables, plan, costs)
    sums = gradient_sums(graph, times)
    step = _Step(graph, times, counts, sums)
    found = step.bound()
    if plan.overlap == "off":
        return found.later(times.meeting + slowest_step(times))
    found = found.later(times.meeting)
    if plan.overlap == "full":
        found = strongest(found, *step.around())
        between = step.between_steps()
        if between > times.meeting:
            found = strongest(found, _Step(graph, times, counts, sums, between).bound())
    return found


class _Step:
    """The serial resources of a step, each with what it must do.

    `between` are the seconds that surely lie between the first stage's last backward and its next forward.
    """

    def __init__(
        self, graph: Graph, times: Times, counts: Sequence[int], sums: Sequence[Sum], between: float = 0.0
    ) -> None:
        self.graph, self.times, self.plan, self.sums = graph, times, times.plan, sums
        self.tables = times.program
        self.ranks, self.passages = passages(self.tables, counts, times)
        self.stage_of = [index for index, stage in enumerate(self.tables.stages) for _ in stage.ranks]
        self.overlap = times.plan.overlap
        self.splits = splits_backwards(times.plan)
        self.exposed: dict[tuple[object, ...], float] = {}
        self.memory: dict[str, StageMemory] = {}
        self.put_off: dict[tuple[object, ...], float] = {}
        self.steps = step_of_each(times) if self.overlap != "off" else []
        self.after_stage = [self._after(index) for index in range(len(self.tables.stages))]
        self.after_stage[0] = max(self.after_stage[0], between)
        self.paths = [longest_paths(passage, self.after_stage) for passage in self.passages]
        self.working = sorted({place for passage in self.passages for stage in passage.working for place in stage})
        self.places = [
            sorted({place for passage in self.passages for place in passage.working[index]})
            for index in range(len(self.tables.stages))
        ]

    def _after(self, stage: int) -> float:
        """Seconds of sums that surely follow the last backward of a stage in its step."""
        if self.overlap == "full":
            return 0.0
        hidden = 0.0
        if self.overlap == "backward":
            places = [place for place, of in enumerate(self.stage_of) if of == stage]
            hidden = max(p.backward[place] + p.weights[place] for p in self.passages for place in places)
        least: dict[tuple[int, ...], float] = {}  # of what the places of tensor groups sum, each by itself
        for found in self.sums:
            if stage in found.stages:
                seconds = max(found.seconds - (hidden if len(found.stages) == 1 else 0.0), 0.0)
                least[found.stages] = min(least.get(found.stages, math.inf), seconds)
        return max(least.values(), default=0.0)

    def bound(self) -> Bound:
        return strongest(NOTHING, *self.loads(), *self.coupled(), *self.hosts(), *self.channels(), *self.in_flight())

    def around(self) -> Iterator[Bound]:
        """A rank's load with the sums that lie between a stage's last backward and its next first forward."""
        for stage, places in enumerate(self.places):
            for place in places:
                exposed = self._exposed(stage, place)
                if exposed:
                    items = [item._replace(release=0.0, tail=0.0) for item in self.computations[place]]
                    where = self._where(self.ranks[place], [place])
                    yield Bound(serial_bound(items) + exposed, "load and sums", where)

    def between_steps(self) -> float:
        """The exposed sums of the first stage, where all rows come to it first."""
        later = [place for places in self.places[1:] for place in places]
        fed = {message.sink for passage in self.passages for message in passage.messages}
        if not fed.issuperset(later):
            return 0.0
        return min(self._exposed(0, place) for place in self.places[0])

    def _exposed(self, stage: int, place: int) -> float:
        """A of the sums of one stage, over one of its ranks."""
        rows = max(passage.rows[place] for passage in self.passages)
        weights = max(passage.weights[place] for passage in self.passages) if self.splits else None
        rank = self.ranks[place]
        device = self.plan.cluster.devices[self.plan.devices[rank]]
        table = self.tables.stages[stage]
        group = table.group(rank).index(rank), table.group(rank) if table.tensor > 1 else ()
        key = stage, device.host, device.kind.name, device.speed, group, rows, weights
        if key not in self.exposed:
            self.exposed[key] = exposed_seconds(self.times, self.sums, stage, rank, rows, weights)
        return self.exposed[key]

    def _sizes(self, place: int) -> list[tuple[Passage, Paths]]:
        """The sizes of micro-batch of which the place has rows."""
        return [pair for pair in zip(self.passages, self.paths, strict=True) if pair[0].rows[place]]

    @cached_property
    def computations(self) -> dict[int, tuple[Item, ...]]:
        """By place: all forwards, all backwards, and all later halves of backwards."""
        return {place: self._computations(place) for place in self.working}

    def _computations(self, place: int) -> tuple[Item, ...]:
        sizes = self._sizes(place)
        weights = sum(p.count * p.weights[place] for p, _ in sizes)
        forward = Item(
            min(x.forward_start[place] for _, x in sizes),
            sum(p.count * p.forward[place] for p, _ in sizes),
            min(x.after_forward[place] for _, x in sizes),
        )
        backward = Item(
            min(x.backward_start[place] for _, x in sizes),
            sum(p.count * p.backward[place] for p, _ in sizes),
            min(x.after_backward[place] for _, x in sizes),
        )
        if not weights:
            return forward, backward
        release = min(x.backward_start[place] + p.backward[place] for p, x in sizes)
        longest = max(p.weights[place] for p, _ in sizes)
        late = min(self._most_put_off(place) * longest, weights)
        after = Item(release, late, self.after_stage[self.stage_of[place]])
        return forward, backward, Item(release, weights - late, backward.tail), after

    def _most_put_off(self, place: int) -> float:
        rank, stage = self.ranks[place], self.tables.stages[self.stage_of[place]]
        kind = self.plan.cluster.devices[self.plan.devices[rank]].kind.name
        rows = min(p.rows[place] for p, _ in self._sizes(place))
        key = kind, stage.start, rows, self.room[rank]
        if key not in self.put_off:
            if kind not in self.memory:
                self.memory[kind] = StageMemory(self.graph, self.times.costs, kind)
            self.put_off[key] = most_put_off(self.memory[kind], stage, rows, self.room[rank])
        return self.put_off[key]

    @cached_property
    def room(self) -> list[int]:
        return room_for_activations(self.plan, self.graph, self.times.costs)

    def loads(self) -> Iterator[Bound]:
        by_rank: defaultdict[int, list[int]] = defaultdict(list)
        for place in self.working:
            by_rank[self.ranks[place]].append(place)
        for rank, places in by_rank.items():
            items = [item for place in places for item in self.computations[place]]
            if self.steps:
                items.append(Item(0.0, self.steps[rank], 0.0))
            yield Bound(serial_bound(items), "load", self._where(rank, places))

    def coupled(self) -> Iterator[Bound]:
        for index in range(len(self.tables.stages)):
            if self._in_step(index):
                yield Bound(serial_bound(self._together(index)), "coupled load", f"stage {index}")

    def _in_step(self, stage: int) -> bool:
        """Whether the same ranks start every micro-batch together: one without rows of some goes on meanwhile."""
        return self.tables.stages[stage].coupled and len({p.working[stage] for p in self.passages}) == 1

    def _together(self, stage: int) -> list[Item]:
        """What the ranks of a coupled stage do in step, as if it were one device."""
        items = [self.computations[place] for place in self.places[stage]]
        pairs = [(p, p.working[stage]) for p in self.passages]
        forward = sum(p.count * max(p.forward[place] for place in places) for p, places in pairs)
        backward = sum(p.count * max(p.backward[place] for place in places) for p, places in pairs)
        return [
            Item(min(i[0].release for i in items), forward, min(i[0].tail for i in items)),
            Item(min(i[1].release for i in items), backward, min(i[1].tail for i in items)),
        ]

    def hosts(self) -> Iterator[Bound]:
        slots = {host.name: host.compute_slots for host in self.plan.cluster.hosts}
        by_host: defaultdict[str, list[Item]] = defaultdict(list)
        for place in self.working:
            host = self.plan.cluster.devices[self.plan.devices[self.ranks[place]]].host
            if slots[host] is not None:
                by_host[host] += self.computations[place]
        for host, items in by_host.items():
            yield Bound(serial_bound(items, slots[host] or 1), "host", host)

    def channels(self) -> Iterator[Bound]:
        items: defaultdict[int, list[Item]] = defaultdict(list)
        for passage, paths in zip(self.passages, self.paths, strict=True):
            for x in passage.messages:
                left = x.latency + passage.forward[x.sink] + paths.after_forward[x.sink]
                made = paths.forward_start[x.source] + passage.forward[x.source] - x.early
                for channel, seconds in x.hops:
                    items[channel].append(Item(made, passage.count * seconds, left))
                if x.gradient:
                    left = x.latency + passage.backward[x.source] + paths.after_backward[x.source]
                    made = paths.backward_start[x.sink] + passage.backward[x.sink]
                    for channel, seconds in x.hops:
                        items[channel ^ 1].append(Item(made, passage.count * seconds, left))
        for found in self.sums:
            released = max(self._earliest_sum(stage, found.ranks) for stage in found.stages)
            for channel, seconds in found.hops:
                items[channel].append(Item(released, seconds, 0.0))
        for channel, crossing in items.items():
            yield Bound(serial_bound(crossing), "channel", " to ".join(self.plan.cluster.channel_ends(channel)))

    def _earliest_sum(self, stage: int, ranks: Sequence[int]) -> float:
        """When the first of a stage's sums over these ranks can begin."""
        if self.overlap == "full":
            return 0.0
        longest = 0.0
        if self.overlap == "backward":
            longest = max(p.backward[q] + p.weights[q] for p in self.passages for q in self.places[stage])
        return max(self._last_backward(stage, ranks) - longest, 0.0)

    def _last_backward(self, stage: int, ranks: Sequence[int]) -> float:
        """When the last backward of a stage can be over on all these of its ranks."""
        ends = [
            serial_bound([item._replace(tail=0.0) for item in self.computations[place]])
            for place in self.places[stage]
            if self.ranks[place] in ranks
        ]
        if self._in_step(stage):
            ends.append(serial_bound([item._replace(tail=0.0) for item in self._together(stage)]))
        return max(ends)

    def in_flight(self) -> Iterator[Bound]:
        for place in self.working:
            rank, stage = self.ranks[place], self.stage_of[place]
            table, sizes = self.tables.stages[stage], self._sizes(place)
            if table.recompute:
                continue
            device = self.plan.cluster.devices[self.plan.devices[rank]]
            saved = min(
                self.times.costs_of(stage).saved_bytes(device.kind.name, table.start, table.end, p.rows[place])
                for p, _ in sizes
            )
            at_once = max(self.room[rank] // saved, 1) if saved else math.inf
            trips = sum(
                p.count * (p.forward[place] + x.between[place] + p.backward[place] + p.weights[place]) for p, x in sizes
            )
            last = self.computations[place][-1].tail
            yield Bound(
                self.computations[place][0].release + trips / at_once + last, "memory", self._where(rank, [place])
            )

    def _where(self, rank: int, places: Sequence[int]) -> str:
        stages = ", ".join(str(self.stage_of[place]) for place in places)
        return f"stage {stages} on {self.plan.cluster.devices[self.plan.devices[rank]].name}"
