"""Partition, replication, mapping (S3, PRM): stages of consecutive atoms on consecutive devices of an order.

    V(k, a, i, r)   atoms a..L form k stages on devices i.. of the order, the first of them on r devices, for each
                    number of devices to a replica (P_r) that divides r and keeps every replica on one host
                  = min over b, r' of  stage(a, b; i, r) (+) channel(b; i, r -> r') (+) V(k-1, b, i+r, r')

once with (+) = max, which gives the least bottleneck W, and then, for a few thresholds t >= W, with (+) = + over
stages and channels that are at most t. The sum is what one micro-batch takes to go through and back, which is what a
pipeline pays besides (M-1) times its bottleneck:

    step ~ (M - 1) max(stage, channel) + sum(stage, channel) + A

Built from the last stage, because the number of stages that follow tells how many micro-batches a 1F1B-like order
holds: a stage that does not fit recomputes, and is left out where that does not fit either.

    stage(a, b; i, r)     forward plus backward of one micro-batch on the slowest of the r devices (`_fitting`)
    channel(b; ...)       bytes over the cut on the busiest link between the groups; links are full duplex (`_follow`)
    A                     gradient sum and optimiser step of the stage, spread over its micro-batches (`_after`)

With E edges, K stages and P pairs (i, r), O(P K E^2), rows of the table at once. For many devices they are dealt in
blocks of `grain`, and an (i, r) must have i a multiple of the largest power of two in r.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.cost import Costs
from plait.search.groups import Group, Groups, Member, grouped, num_replicas
from plait.search.limits import Limits
from plait.search.loads import Loads

Array = NDArray[np.float64]
_RELAXED = (1.0, 1.04, 1.15, 1.4, 2.5)  # thresholds, as multiples of the least bottleneck
_ROUNDING = 1e-9
_TRACED = 8
MOST_STAGES = 32
_FREE_CHOICE = 16  # up to so many blocks of devices every (i, r) is looked at


@dataclass(frozen=True)
class Shape:
    """Stages by first atom, their groups, and which of them recompute; what it was found to take."""

    boundaries: tuple[int, ...]
    groups: tuple[Group, ...]
    recompute: tuple[bool, ...]
    estimate: float


@dataclass(frozen=True)
class Asked:
    """What a partition is for: micro-batches and rows, and what the user fixed."""

    micro_batches: int
    micro_rows: int
    recompute: bool | None = None
    holds_all: bool = False  # a GPipe-like order holds every micro-batch at once
    num_stages: int | None = None  # must be given with `replicas` and where pins fix a stage's modules
    replicas: tuple[int, ...] | None = None  # devices of each stage
    tensor: tuple[int, ...] = (1,)  # devices a replica may have


def shapes(
    loads: Loads,
    costs: Costs,
    groups: Groups,
    order: list[int],
    asked: Asked,
    limits: Limits,
    grain: int = 1,
    *,
    aligned: bool = False,
) -> list[Shape]:
    """The best partitions for each number of stages and threshold, best estimate first.

    `aligned` ones have stages on round numbers of blocks that begin where such numbers do, as of many devices all have.
    """
    program = _Program(loads, costs, groups, order, asked, limits, grain, aligned=aligned)
    return program.solve() if program.starts else []


def boundaries_for(
    loads: Loads, costs: Costs, groups: Groups, sequence: Sequence[Group], asked: Asked, limits: Limits
) -> tuple[int, ...] | None:
    """The first atoms of the stages that have the least bottleneck on these groups, one after the other."""
    stages = _Stages(loads, costs, groups, asked, limits)
    best = np.full(loads.num_edges, np.inf)
    best[0] = 0.0
    choices = []
    for number, group in enumerate(sequence):
        if number:
            best = np.maximum(best, stages.channel(sequence[number - 1], group, np.inf, np.maximum))
        reached = np.maximum(best[:, None], stages.within(group, 1, np.inf)[0])
        choices.append(reached.argmin(axis=0))
        best = reached.min(axis=0)
    if not np.isfinite(best[-1]):
        return None
    edges, edge = [], loads.num_edges - 1
    for choice in reversed(choices[1:]):
        edge = int(choice[edge])
        edges.append(int(loads.edges[edge]))
    return tuple(reversed(edges))


class _End(NamedTuple):
    """An answer of the dynamic program, before it is followed back."""

    estimate: float
    num_stages: int
    threshold: float
    tables: "dict[_Start, Array]"


class _Start(NamedTuple):
    """Devices of a stage: the first block, how many blocks, and how many devices to a replica."""

    block: int
    blocks: int
    tensor: int


class _Program:
    """The dynamic program for one order of devices and one number of micro-batches."""

    def __init__(
        self,
        loads: Loads,
        costs: Costs,
        groups: Groups,
        order: list[int],
        asked: Asked,
        limits: Limits,
        grain: int,
        *,
        aligned: bool,
    ) -> None:
        self.loads, self.asked, self.grain = loads, asked, grain
        self.blocks = len(order) // grain
        self.aligned = aligned or self.blocks > _FREE_CHOICE
        self.stages = _Stages(loads, costs, groups, asked, limits)
        most = min(self.blocks, loads.num_edges - 1, MOST_STAGES)
        self.most_stages = min(most, asked.num_stages or most)
        places = ((i, r) for i in range(self.blocks) for r in self._blocks(i))
        groups_by_start = {
            _Start(i, r, tensor): grouped(order[i * grain : (i + r) * grain], tensor)
            for i, r in places
            for tensor in asked.tensor
            if r * grain % tensor == 0 and r * grain // tensor <= asked.micro_rows
        }
        self.group = {start: group for start, group in groups_by_start.items() if groups.on_hosts(group)}
        self.starts = list(self.group)

    def _blocks(self, block: int) -> Iterator[int]:
        for r in range(1, self.blocks - block + 1):
            if r * self.grain > self.asked.micro_rows * max(self.asked.tensor):
                return
            if self.asked.replicas is not None and r * self.grain not in self.asked.replicas:
                continue
            power = r & -r
            round_number = r in (power, 3 * power) or r == self.blocks
            if not self.aligned or (block % power == 0 and round_number):
                yield r

    def solve(self) -> list[Shape]:
        bottleneck = self._tables(np.inf, np.maximum)
        least = self._ends(bottleneck)
        if not np.isfinite(least).any():
            return []
        ends: list[_End] = []
        best = float(np.min(least))
        bottlenecks = {best * relaxed for relaxed in _RELAXED} | {float(w) for w in least[:6] if w < np.inf}
        for threshold in sorted(bottleneck * (1 + _ROUNDING) for bottleneck in bottlenecks):
            tables = self._tables(threshold, np.add)
            for k, total in enumerate(self._ends(tables), start=1):
                if np.isfinite(total) and self.asked.num_stages in (None, k):
                    estimate = (self.asked.micro_batches - 1) * threshold + float(total)
                    ends.append(_End(estimate, k, threshold, tables))
        ends.sort(key=lambda end: end.estimate)
        found: dict[tuple[tuple[int, ...], tuple[Group, ...]], Shape] = {}
        for end in ends[:_TRACED]:
            shape = self._trace(end)
            found.setdefault((shape.boundaries, shape.groups), shape)
        return list(found.values())

    def _ends(self, tables: dict[_Start, Array]) -> Array:
        """Per number of stages, the least over where the first stage's devices begin."""
        return np.array([tables[start][1:, 0] for start in self.starts]).min(axis=0)

    def _tables(self, threshold: float, combine: np.ufunc) -> dict[_Start, Array]:
        """V by (i, r): [k, edge]."""
        tables: dict[_Start, Array] = {}
        for start in reversed(self.starts):
            stage = self.stages.within(self.group[start], self.most_stages, threshold)
            follow = self._follow(start, tables, threshold, combine)
            table = np.full((self.most_stages + 1, self.loads.num_edges), np.inf)
            table[1:] = combine(stage, follow[:, None, :]).min(axis=2)
            if (replicas := self.asked.replicas) is not None:
                for k in range(1, self.most_stages + 1):
                    if replicas[-k] != start.blocks * self.grain:
                        table[k] = np.inf
            tables[start] = table
        return tables

    def _follow(self, start: _Start, tables: dict[_Start, Array], threshold: float, combine: np.ufunc) -> Array:
        """[k, edge]: the least of all that may come behind a stage on `start` that ends at an edge, k stages of it."""
        follow = np.full((self.most_stages, self.loads.num_edges), np.inf)
        follow[0, -1] = 0.0
        for behind in self._behind(start):
            channel = self.stages.channel(self.group[start], self.group[behind], threshold, combine)
            after = combine(channel, tables[behind][:-1])
            np.minimum(follow[1:], after[1:], out=follow[1:])
        return follow

    def _behind(self, start: _Start) -> list[_Start]:
        return self._starting_at.get(start.block + start.blocks, [])

    @cached_property
    def _starting_at(self) -> dict[int, list[_Start]]:
        found: dict[int, list[_Start]] = {}
        for start in self.starts:
            found.setdefault(start.block, []).append(start)
        return found

    def _trace(self, found: "_End") -> Shape:
        """Follows the choices from the first stage on."""
        _, k, threshold, tables = found
        start = min(self.starts, key=lambda s: tables[s][k, 0])
        edge, starts, edges, recompute = 0, [start], [], []
        for left in range(k, 0, -1):
            follow = self._follow(start, tables, threshold, np.add)[left - 1]
            stage = self.stages.within(self.group[start], self.most_stages, threshold)[left - 1, edge]
            end = int(np.argmin(stage + follow))
            recompute.append(self.stages.recomputes(self.group[start], left, edge, end))
            if left > 1:
                before = self.group[start]
                start = min(
                    self._behind(start),
                    key=lambda s: (
                        self.stages.channel(before, self.group[s], threshold, np.add)[end] + tables[s][left - 1, end]
                    ),
                )
                starts.append(start)
                edges.append(end)
            edge = end
        boundaries = tuple(int(self.loads.edges[edge]) for edge in edges)
        return Shape(boundaries, tuple(self.group[s] for s in starts), tuple(recompute), found.estimate)


class _Stages:
    """Times of every stage between two edges, by group; matrices are shared by groups that are alike."""

    def __init__(self, loads: Loads, costs: Costs, groups: Groups, asked: Asked, limits: Limits) -> None:
        self.loads, self.costs, self.groups, self.asked = loads, costs, groups, asked
        self._times: dict[object, Array] = {}
        self._within: dict[object, Array] = {}
        self._channels: dict[object, Array] = {}
        edges = loads.edges
        first, last = np.meshgrid(edges, edges, indexing="ij")
        self.legal = first < last
        if limits.forced or limits.barred:
            starts = np.isin(edges, list(limits.barred), invert=True)
            self.legal &= starts[:, None] & (first >= limits.earliest[last]) & np.append(starts[:-1], True)[None, :]
        self.limits = limits

    def within(self, group: Group, most_stages: int, threshold: float) -> Array:
        """[k - 1, first edge, last edge]: seconds of the first of k stages; infinite where it may not be."""
        members = self.groups.members(group, self.asked.micro_rows)
        replicas = num_replicas(group)
        summing = self.groups.summing(group) if replicas > 1 else (0.0, 0.0)
        key = (members, replicas > 1, summing, most_stages, threshold)
        if key not in self._within:
            if len(self._within) > 256:
                self._within.clear()
            times, after = self._fitting(members, most_stages, replicas), self._after(members, summing)
            load = times + after / self.asked.micro_batches
            self._within[key] = np.where(load <= threshold, load, np.inf)
        return self._within[key]

    def recomputes(self, group: Group, following: int, first: int, last: int) -> bool:
        members = self.groups.members(group, self.asked.micro_rows)
        return bool(not self._fits(members, following, recompute=False)[first, last] or self.asked.recompute)

    def channel(self, group: Group, behind: Group, threshold: float, combine: np.ufunc) -> Array:
        """Per edge, seconds of one micro-batch across it both ways, combined; infinite where one is too long."""
        key = (*self.groups.transfer(group, behind), threshold, combine)
        if key not in self._channels:
            self._channels[key] = self._channel(*key)
        return self._channels[key]

    def _channel(self, per_byte: float, latency: float, threshold: float, combine: np.ufunc) -> Array:
        rows, loads = self.asked.micro_rows, self.loads
        forward = loads.forward_per_row * rows + loads.forward_fixed
        backward = loads.backward_per_row * rows + loads.backward_fixed
        both = combine(forward * per_byte + latency, backward * per_byte + latency)
        return np.where(np.maximum(forward, backward) * per_byte + latency <= threshold, both, np.inf)

    def _fitting(self, members: tuple[Member, ...], most_stages: int, replicas: int) -> Array:
        key = (members, most_stages, replicas > 1)
        if key in self._times:
            return self._times[key]
        plain, forward = self._seconds(members)
        legal = self.legal
        if replicas > 1:
            mixers = self.loads.unsplittable
            legal = legal & (mixers[None, :] - mixers[:, None] == 0)
        result = np.full((most_stages, *plain.shape), np.inf)
        for k in range(1, most_stages + 1):
            with_recompute = np.where(self._fits(members, k, recompute=True), plain + forward, np.inf)
            times = with_recompute
            if not self.asked.recompute:
                times = np.where(self._fits(members, k, recompute=False), plain, with_recompute)
                if self.asked.recompute is False:
                    times = np.where(self._fits(members, k, recompute=False), plain, np.inf)
            result[k - 1] = np.where(legal, times, np.inf)
            if self.limits.held and self.asked.num_stages is not None and k <= self.asked.num_stages:
                begins = self.limits.starts(self.asked.num_stages - k)[self.loads.edges]
                result[k - 1][~begins, :] = np.inf
        self._times[key] = result
        return result

    def _seconds(self, members: tuple[Member, ...]) -> tuple[Array, Array]:
        """Forward plus backward, and forward, on the slowest member."""
        both, forward = None, None
        for member in members:
            loads = self.loads.on(member.tensor)
            kind = loads.kinds[member.kind]
            there = (kind.forward_fixed + kind.forward_per_row * member.rows) / member.speed
            back = (kind.backward_fixed + kind.backward_per_row * member.rows) / member.speed
            if loads.exchanges is not None:
                there = there + loads.exchanges.forward(member.links, member.rows)
                back = back + loads.exchanges.backward(member.links, member.rows)
            one, whole = there[None, :] - there[:, None], (there + back)[None, :] - (there + back)[:, None]
            both = whole if both is None else np.maximum(both, whole)
            forward = one if forward is None else np.maximum(forward, one)
        assert both is not None and forward is not None
        return both, forward

    def _fits(self, members: tuple[Member, ...], following: int, *, recompute: bool) -> NDArray[np.bool_]:
        """Whether the first of `following` stages fits into every member's memory."""
        held = min(following, self.asked.micro_batches)
        if self.asked.holds_all:
            held = self.asked.micro_batches
        fits = np.ones((self.loads.num_edges, self.loads.num_edges), dtype=bool)
        for member in members:
            fits &= self._bytes(member, held, recompute) <= member.memory_bytes
        return fits

    def _bytes(self, member: Member, held: int, recompute: bool) -> Array:
        loads = self.loads.on(member.tensor)
        kind = loads.kinds[member.kind]
        state = self.costs.optimizer[member.kind].state_bytes_per_byte
        static = loads.held_bytes + loads.trained_bytes * (1 + state)
        saved = kind.saved_fixed + kind.saved_per_row * member.rows
        arriving = (loads.forward_per_row * member.rows + loads.forward_fixed)[:, None]
        leaving = (loads.forward_per_row * member.rows + loads.forward_fixed)[None, :]
        kept = saved[None, :] - saved[:, None]
        activations = (arriving * held + kept) if recompute else (arriving + kept) * held
        return static[None, :] - static[:, None] + activations + leaving

    def _after(self, members: tuple[Member, ...], summing: tuple[float, float]) -> Array:
        """Gradient sum and optimiser step."""
        loads = self.loads.on(members[0].tensor)
        step = np.zeros(loads.num_edges)
        for member in members:
            cost = self.costs.optimizer[member.kind]
            step = np.maximum(
                step,
                (cost.seconds_per_byte * loads.trained_bytes + cost.seconds_per_tensor * loads.num_tensors)
                / member.speed,
            )
        total = step + summing[1] * loads.trained_bytes
        return total[None, :] - total[:, None] + summing[0]
