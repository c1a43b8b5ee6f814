"""What no plan at all can beat: any stages, replicas, idle devices, micro-batches, schedule, shares, recomputation.

Work, rates and groups are those of `work`: W seconds in all, F of them forwards, N rows, R the sum of all rates.
Costs are taken to be at least 0. T is a step until the loss is known. Sums follow the last backward of their stage, as
without overlap; what holds with overlap comes below. A plan

(a) runs each row of each atom somewhere: T >= W / R (`_by_work`), and no row faster than alone on the fastest device:
    T >= sum of f + p (`_by_row`);
(b) has some atom a, of n(a) parameter bytes, on some number r of devices, in one stage, whose gradient sum follows
    its last backward: T >= max over a of min over r of t(a) / (rate of the best r) + sum(n(a), r) (`_by_atom`). For
    r devices on k hosts at least, sum(n, r) >= max(2 (k-1)/k n / u_k, 2 (g-1)/g n / b_r), g = ceil(r / k), u_k the
    k-th best link that leaves a host, b_r the r-th best of a device: neither a flat nor a hierarchical ring takes
    less. Other ways of summing may: without `rings_only` both factors are 1, which no exact sum can beat;
(c) has one stage, and is (b) with all atoms in it (`_one_stage`), or more than one stage; then
(d) of the groups X of devices (each device; each host) one does at least its part of the work, w >= W rate(X) / R,
    and T >= w / rate(X). Either it does everything, which its memory must hold: T >= W / rate(X). Or each direction
    of its links carries C(x) bytes (`share`). A gradient sum starts after the last backward of its stage, hence after
    all forwards of all rows wherever gradients flow through the whole chain; so with the activations C1 and the sums
    C2 of C, T >= (C1 + C2) / u and T >= F / R + C2 / u, and for every 0 <= v <= 1

        T >= (v C1 + C2) / u + (1 - v) F / R                                              (`_by_groups`).

(e) With one stage on a device, fill, gradient sums and whole devices are weighed together: the least T for which D
    devices are enough (`stages`).

Beyond (e) and `_by_row` fill adds little that holds for every plan: a micro-batch may be as small as a row. Optimiser
steps: every parameter is stepped somewhere. Without overlap that comes after the loss is known: T grows by the seconds
of all steps over the sum of the devices' speeds, and with one stage by those seconds on the fastest device. With
overlap it is work like any other: T >= (W + that work) / R.

Shared layers. Where replicas may be tensor groups, each on one host, a row of an atom is done no faster than by the
fastest host (`_by_row`), in (b) and (c) only what crosses between hosts is surely summed, in (c) a host's memory
counts, and (d) holds of hosts alone: what a host computes of a row nobody else does.

Overlap. With `backward` a sum begins when its own gradients are final. (b) holds as it stands, an atom's gradients
being final after its last backward; in (c), when all are forward: T >= max(W / rate, F / rate + sum(n)) for one stage;
(d) holds as it stands. With `full` sums also pass beside the next step, so that links and devices need each no more
than a step for a step's worth: T >= max(t(a) / rate, sum(n(a), r)) in (b), so in (c) with all atoms, and v = 1 without
F in (d). (e) is for no overlap alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from plait.cluster import Cluster
from plait.cost import Costs
from plait.graph import Graph
from plait.search.bounds.bound import NOTHING, Bound, strongest
from plait.search.bounds.share import OFF, Array, Shares, least_bytes
from plait.search.bounds.stages import least_seconds
from plait.search.bounds.work import Group, Work, device_groups, host_groups, some_prices, step_work, total_rate

_VIEWS = {"off": (1.0, 0.5), "backward": (1.0, 0.5), "full": (1.0,)}  # values of v


def cluster_bound(
    graph: Graph,
    costs: Costs,
    cluster: Cluster,
    batch_size: int,
    *,
    overlap: str = "full",
    rings_only: bool = True,
    interleaved: bool = True,
    split_backwards: bool = True,
    shared_layers: bool = False,
) -> Bound:
    """The strongest of the arguments above, over several prices of a second on each kind of device.

    It is higher, and about fewer plans, without `interleaved` (several stages on a device), and then without
    `split_backwards`.
    """
    works = [step_work(costs, cluster, batch_size, prices) for prices in some_prices(costs, cluster, batch_size)]
    cases = [_Case(graph, costs, cluster, batch_size, work, rings_only, overlap, shared_layers) for work in works]
    anyhow = strongest(*(case.bound() for case in cases))
    if interleaved or overlap != "off" or shared_layers:
        return anyhow
    return strongest(anyhow, *(case.by_stages(split_backwards, anyhow.seconds) for case in cases))


@dataclass(frozen=True)
class _Case:
    graph: Graph
    costs: Costs
    cluster: Cluster
    batch_size: int
    work: Work
    rings_only: bool
    overlap: str
    shared_layers: bool = False

    def bound(self) -> Bound:
        if self.overlap != "off":
            anyhow = strongest(NOTHING, self._by_work_and_steps(), self._by_row())
            several = strongest(anyhow, self._by_atom(), *self._by_groups())
            return min(several, strongest(anyhow, self._one_stage()), key=lambda bound: bound.seconds)
        step = self._step_seconds()
        anyhow = strongest(NOTHING, self._by_work(), self._by_row())
        speeds = [device.speed for device in self.cluster.devices]
        several = strongest(anyhow, self._by_atom(), *self._by_groups()).later(step / sum(speeds))
        one = strongest(anyhow, self._one_stage()).later(step / max(speeds))
        return min(several, one, key=lambda bound: bound.seconds)

    def _by_work(self) -> Bound:
        return Bound(self.work.total / self.total_rate, "work")

    def _by_work_and_steps(self) -> Bound:
        trained = [p.num_bytes for p in self.graph.parameters if p.trainable]
        step = min(
            price * self.costs.optimizer[kind].seconds(sum(trained), len(trained))
            for kind, price in self.work.prices.items()
        )
        return Bound((self.work.total + step) / self.total_rate, "work")

    def by_stages(self, split_backwards: bool, at_least: float) -> Bound:
        one_row = step_work(self.costs, self.cluster, 1, self.work.prices)
        alone = (one_row.forwards if split_backwards else one_row.atoms) / float(one_row.rates.max())
        head = np.concatenate([[0.0], np.cumsum(alone)[:-1]]) if self.connected else np.zeros(len(alone))
        speeds, sums = self._replicas()
        speed = [device.speed for device in self.cluster.devices]
        step = self._step_seconds() / sum(speed)
        seconds = least_seconds(
            head,
            self.work.atoms,
            self.parameter_bytes,
            speeds,
            np.minimum.accumulate(sums[::-1])[::-1],
            at_least - step,
        )
        return Bound(seconds + step, "stages")

    def _by_row(self) -> Bound:
        if not self.connected:
            return NOTHING  # rows may be on several devices at once
        one_row = step_work(self.costs, self.cluster, 1, self.work.prices)
        fastest = float(one_row.rates.max())
        if self.shared_layers:
            fastest = max(group.rate for group in host_groups(self.cluster, one_row))
        return Bound(one_row.total / fastest, "one row")

    def _by_atom(self) -> Bound:
        speed, sums = self._replicas()
        work, summing = self.work.atoms[:, None] / speed, self.parameter_bytes[:, None] * sums
        seconds = (np.maximum(work, summing) if self.overlap == "full" else work + summing).min(axis=1)
        atom = int(seconds.argmax())
        return Bound(float(seconds[atom]), "atom", self.graph.atoms[atom].name)

    def _one_stage(self) -> Bound:
        rooms = host_groups(self.cluster, self.work) if self.shared_layers else self.cluster.devices
        if self.held_bytes > max(room.memory_bytes for room in rooms):
            return Bound(math.inf, "memory")
        speed, sums = self._replicas()
        summing = self.parameter_bytes.sum() * sums
        before = {"off": self.work.total, "backward": self.work.forwards.sum(), "full": 0.0}[self.overlap] / speed
        seconds = np.maximum(self.work.total / speed, before + summing)
        return Bound(float(seconds.min()), "one stage", f"{int(seconds.argmin()) + 1} replicas")

    def _replicas(self) -> tuple[Array, Array]:
        """By number of replicas: their rate at most, and the seconds a byte of gradients takes at least."""
        hosts = host_groups(self.cluster, self.work)
        links = sorted((g.fastest_link for g in device_groups(self.cluster, self.work)), reverse=True)
        uplinks = sorted((g.fastest_link for g in hosts), reverse=True)
        room = np.cumsum(sorted((len(self.cluster.devices_of(g.name)) for g in hosts), reverse=True))
        count = np.arange(1, (len(links) if self.shared_layers else min(len(links), self.batch_size)) + 1)
        num_hosts = np.searchsorted(room, count) + 1
        in_host = -(-count // num_hosts)
        speed = np.minimum(np.cumsum(np.sort(self.work.rates)[::-1])[: len(count)], self.total_rate)
        across = self._factor(num_hosts) / np.maximum(np.array(uplinks)[num_hosts - 1], 1e-300)
        if self.shared_layers:
            return speed, across
        inside = self._factor(in_host) / np.maximum(np.array(links)[count - 1], 1e-300)
        return speed, np.maximum(across, inside)

    def _factor(self, members: NDArray[np.int64]) -> Array:
        """How often a byte of gradients takes the link of one of so many, at least."""
        if self.rings_only:
            return 2 * (members - 1) / members
        return np.where(members > 1, 1.0, 0.0)

    def _by_groups(self) -> Iterator[Bound]:
        """For devices and for hosts, the weakest over groups that differ."""
        by_device = [] if self.shared_layers else [device_groups(self.cluster, self.work)]
        for groups in (*by_device, host_groups(self.cluster, self.work)):
            if len(groups) > 1 and self._may_matter(groups):
                shares = least_bytes(
                    self.work.atoms, self.boundary_bytes, self.parameter_bytes, len(groups), _VIEWS[self.overlap]
                )
                different = {(g.rate, g.capacity, g.memory_bytes >= self.held_bytes): g for g in groups}
                yield min((self._by_group(g, shares) for g in different.values()), key=lambda bound: bound.seconds)

    def _may_matter(self, groups: Sequence[Group]) -> bool:
        """Would each group need longer than all the work takes, to sum the gradients of everything?"""
        seconds = [self.parameter_bytes.sum() / max(group.capacity, 1e-300) for group in groups]
        forwards = (1 - min(_VIEWS[self.overlap])) * self.work.forwards.sum()
        return bool(min(seconds) + forwards / self.total_rate > self.work.total / self.total_rate)

    def _by_group(self, group: Group, shares: Shares) -> Bound:
        everything = self.work.total / group.rate if group.memory_bytes >= self.held_bytes else math.inf
        part = group.rate / self.total_rate
        bins = np.arange(shares.sent.shape[-1])
        enough = bins + OFF + shares.hidden[:, None] >= part * shares.num_bins
        surely = np.maximum(np.maximum(bins - OFF, 0)[None, :] * shares.kept[:, None] / shares.num_bins, part)
        found = np.zeros(shares.sent.shape[1:])
        for view, sent in zip(_VIEWS[self.overlap], shares.sent, strict=True):
            forwards = (1 - view) * float(self.work.forwards.sum()) / self.total_rate if self.connected else 0.0
            found = np.maximum(found, sent / max(group.capacity, 1e-300) + forwards)
        found = np.maximum(found, surely * self.work.total / group.rate)
        partly = float(found[enough].min())
        if everything <= partly:
            return Bound(everything, "all on one", group.name)
        return Bound(partly, "links", group.name)

    @cached_property
    def total_rate(self) -> float:
        return total_rate(self.cluster, self.work)

    @cached_property
    def parameter_bytes(self) -> Array:
        """Trainable bytes by the first atom that reads them."""
        found = np.zeros(len(self.graph.atoms))
        for parameter in self.graph.parameters:
            if parameter.trainable:
                found[parameter.atoms[0]] += parameter.num_bytes
        return found

    @cached_property
    def boundary_bytes(self) -> Array:
        """Of the whole batch, from each atom to the very next; the gradients come back."""
        found = np.zeros(len(self.graph.atoms))
        for value in self.graph.values:
            if value.requires_grad and value.batch_dim is not None and value.consumers[0] == value.producer + 1:
                found[value.producer + 1] += value.num_bytes(self.batch_size)
        return found

    @cached_property
    def connected(self) -> bool:
        """Do gradients flow back through the whole chain, so that no backward ends before all is forward?"""
        return bool((self.boundary_bytes[1:] > 0).all())

    @cached_property
    def held_bytes(self) -> float:
        """By whoever holds all parameters: these, their gradients, and the optimiser's state."""
        state = 1 + min(found.state_bytes_per_byte for found in self.costs.optimizer.values())
        return sum(p.num_bytes * (1 + (state if p.trainable else 0)) for p in self.graph.parameters)

    def _step_seconds(self) -> float:
        trained = [p.num_bytes for p in self.graph.parameters if p.trainable]
        kinds = {device.kind.name for device in self.cluster.devices}
        return min(
            cost.seconds_per_byte * sum(trained) + cost.seconds_per_tensor * len(trained)
            for cost in (self.costs.optimizer[kind] for kind in kinds)
        )
