"""Groups of devices that hold one stage: their row shares, and what they take to talk to one another.

A group's replicas share each micro-batch's rows by speed: its devices, or of `TensorGroups` every few of them, which
share each layer, are as fast as the slowest and are on one host. What a group takes to hand a micro-batch on is what
the busiest channel takes: every message keeps each channel on its route busy for its bytes over its bandwidth.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from plait.cluster import Cluster
from plait.cost import Costs, GroupLinks, group_links, sync_seconds
from plait.plan import DEFAULT_BUCKET_BYTES, split_rows

_FIXED_SHARE, _LEAST_BUCKET_BYTES = 0.05, 4 * 2**20
_SAME = 1e-9  # of the rows: ends that differ by rounding are one
Group = tuple[int, ...]  # devices of the cluster, in the order in which they take rows


class TensorGroups(tuple[int, ...]):
    """Devices every `tensor` of which, one after the other, are a replica. A plain tuple has one device in each."""

    tensor: int

    def __new__(cls, devices: Iterable[int], tensor: int) -> "TensorGroups":
        made = super().__new__(cls, devices)
        made.tensor = tensor
        return made

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, other) is True and self.tensor == getattr(other, "tensor", 1)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.tensor))

    def __repr__(self) -> str:
        return f"{tuple(self)} by {self.tensor}"


def grouped(devices: Iterable[int], tensor: int) -> Group:
    return TensorGroups(devices, tensor) if tensor > 1 else tuple(devices)


def tensor_of(group: Group) -> int:
    """How many devices a replica has."""
    return group.tensor if isinstance(group, TensorGroups) else 1


def replicas_of(group: Group) -> list[tuple[int, ...]]:
    """The devices of each."""
    tensor = tensor_of(group)
    return [tuple(group[first : first + tensor]) for first in range(0, len(group), tensor)]


def num_replicas(group: Group) -> int:
    return len(group) // tensor_of(group)


@dataclass(frozen=True)
class Member:
    """A device as a stage's compute sees it: all that is alike on two devices is equal here.

    `links` tie it to those that share its layers with it.
    """

    kind: str
    speed: float
    rows: int
    memory_bytes: int
    links: GroupLinks

    @property
    def tensor(self) -> int:
        return self.links.size


@dataclass(frozen=True)
class Groups:
    """Answers for the groups of one cluster under one set of costs; every answer is remembered."""

    cluster: Cluster
    costs: Costs
    sync: str
    wanted_bucket_bytes: int | None = None  # the user's
    _shares: dict[Group, tuple[float, ...]] = field(default_factory=dict)
    _members: dict[tuple[Group, int], tuple[Member, ...]] = field(default_factory=dict)
    _busy: dict[tuple[Group, Group], dict[int, float]] = field(default_factory=dict)
    _transfers: dict[tuple[Group, Group], tuple[float, float]] = field(default_factory=dict)
    _sums: dict[Group, tuple[float, float]] = field(default_factory=dict)
    _sum_channels: dict[Group, tuple[tuple[int, float], ...]] = field(default_factory=dict)

    def shares(self, group: Group) -> tuple[float, ...]:
        """In proportion to speed; 1 for all where they are alike."""
        if group not in self._shares:
            speeds = [min(map(self._rate, replica)) for replica in replicas_of(group)]
            self._shares[group] = tuple(speed / min(speeds) for speed in speeds)
        return self._shares[group]

    def members(self, group: Group, micro_rows: int) -> tuple[Member, ...]:
        """The different devices of a group, each with the rows it takes of a micro-batch of `micro_rows`."""
        key = (group, micro_rows)
        if key not in self._members:
            spans = split_rows(micro_rows, self.shares(group))
            most: dict[tuple[str, float, int, GroupLinks], int] = {}
            replicas = replicas_of(group)
            for replica, (first, last) in zip(replicas, spans, strict=True):
                links = group_links(replica, replicas, self.cluster)
                for device in replica:
                    found = self.cluster.devices[device]
                    alike = (found.kind.name, self.speed(device), found.memory_bytes, links)
                    most[alike] = max(most.get(alike, 0), last - first)
            self._members[key] = tuple(Member(k, s, rows, memory, to) for (k, s, memory, to), rows in most.items())
        return self._members[key]

    def speed(self, device: int) -> float:
        """Of its kind's speed, what a device has when all of its host compute at once."""
        found = self.cluster.devices[device]
        slots = self._slots[found.host]
        return found.speed * min(1.0, slots / len(self.cluster.devices_of(found.host)))

    def transfer(self, senders: Group, receivers: Group) -> tuple[float, float]:
        """Seconds per byte of what crosses between two groups, and the latency of one message."""
        key = (senders, receivers)
        if key not in self._transfers:
            latency = max(self.cluster.latency(a, b) for a, b, _ in self._messages(senders, receivers))
            self._transfers[key] = (max(self.busy(senders, receivers).values(), default=0.0), latency)
        return self._transfers[key]

    def busy(self, senders: Group, receivers: Group) -> dict[int, float]:
        """Seconds per byte of what crosses, by channel."""
        key = (senders, receivers)
        if key not in self._busy:
            busy: dict[int, float] = {}
            for sender, receiver, part in self._messages(senders, receivers):
                for channel in self.cluster.route(sender, receiver):
                    busy[channel] = busy.get(channel, 0.0) + part / self.cluster.channel_bandwidth(channel)
            self._busy[key] = busy
        return self._busy[key]

    def summing(self, group: Group) -> tuple[float, float]:
        """Seconds per bucket and per byte of summing gradients over a group; bytes are those of a device.

        Of tensor groups those at each place sum their parts, all at once.
        """
        if group not in self._sums:
            places = _places(group)
            fixed = max(sync_seconds(self.sync, 0.0, place, self.cluster)[0] for place in places)
            some = max(sync_seconds(self.sync, 1e9, place, self.cluster)[0] for place in places)
            if len(places) > 1:
                some = max([some, *(1e9 * seconds for _, seconds in self.sum_channels(group))])
            self._sums[group] = (fixed, (some - fixed) / 1e9)
        return self._sums[group]

    def regrouped(self, group: Group, degrees: Iterable[int]) -> list[Group]:
        """The same devices with as many to a replica as each of `degrees`, where that keeps replicas on one host."""
        found = [grouped(group, tensor) for tensor in degrees if len(group) % tensor == 0]
        return [other for other in found if other != group and self.on_hosts(other)]

    def on_hosts(self, group: Group) -> bool:
        """Is every replica on one host?"""
        return all(len({self.cluster.devices[device].host for device in one}) == 1 for one in replicas_of(group))

    def bucket_bytes(self, groups: Iterable[Group]) -> int:
        """Bytes to sum at a time, so that what a sum takes whatever its size is little of it.

        Smaller buckets begin sooner and keep less waiting.
        """
        if self.wanted_bucket_bytes is not None:
            return self.wanted_bucket_bytes
        summing = [self.summing(group) for group in set(groups) if num_replicas(group) > 1]
        wanted = max((fixed / (_FIXED_SHARE * per_byte) for fixed, per_byte in summing if per_byte > 0), default=0.0)
        return int(min(max(wanted, _LEAST_BUCKET_BYTES), DEFAULT_BUCKET_BYTES))

    def sum_channels(self, group: Group) -> tuple[tuple[int, float], ...]:
        """Channels with the seconds a byte of such a sum keeps each of them busy."""
        if group not in self._sum_channels:
            busy: dict[int, float] = {}
            for place in _places(group):
                for channel, seconds in sync_seconds(self.sync, 1e9, place, self.cluster)[1]:
                    busy[channel] = busy.get(channel, 0.0) + seconds / 1e9
            self._sum_channels[group] = tuple(busy.items())
        return self._sum_channels[group]

    def _messages(self, senders: Group, receivers: Group) -> list[tuple[int, int, float]]:
        """(sender, receiver, part of the rows) for everybody who shares rows with somebody, forward."""
        ends = [list(accumulate(self.shares(group))) for group in (senders, receivers)]
        out, into = ([end / total for end in part for total in [part[-1]]] for part in ends)
        sending, receiving = replicas_of(senders), replicas_of(receivers)
        messages, i, j, done = [], 0, 0, 0.0
        while i < len(out) and j < len(into):
            reached = min(out[i], into[j])
            if reached > done + _SAME:
                makers = sending[i]
                messages += [
                    (makers[place % len(makers)], device, reached - done) for place, device in enumerate(receiving[j])
                ]
            done = reached
            i, j = i + (out[i] <= reached + _SAME), j + (into[j] <= reached + _SAME)
        return messages

    def _rate(self, device: int) -> float:
        """Rows per second of the whole model."""
        return self.speed(device) / self._seconds_per_row[self.cluster.devices[device].kind.name]

    @cached_property
    def _seconds_per_row(self) -> dict[str, float]:
        return {
            kind: max(sum(atom.forward_per_row + atom.backward_per_row for atom in atoms), 1e-30)
            for kind, atoms in self.costs.atoms.items()
        }

    @cached_property
    def _slots(self) -> dict[str, int]:
        return {h.name: h.compute_slots or len(self.cluster.devices_of(h.name)) for h in self.cluster.hosts}


def _places(group: Group) -> list[Group]:
    """The devices that have the same part of every layer."""
    tensor = tensor_of(group)
    return [tuple(group[place::tensor]) for place in range(tensor)]
