"""The cluster as classical planners see it: hosts of devices, one bandwidth inside a host and one between hosts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from plait.cluster import Cluster
from plait.cost import ring_all_reduce_seconds


class Level(NamedTuple):
    """The slowest bandwidth (bytes per second) and the longest latency (seconds) between two of a kind."""

    bandwidth: float
    latency: float


class Channel(NamedTuple):
    """From one stage's devices to another's. `alone`: the bandwidth if no two of them shared a cable."""

    bandwidth: float
    latency: float
    alone: float


@dataclass(frozen=True)
class Network:
    cluster: Cluster
    _known: dict[tuple[int, int], Level] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """Devices of every host that has any, in file order."""
        return tuple(found for host in self.cluster.hosts if (found := self.cluster.devices_of(host.name)))

    @cached_property
    def host_of(self) -> dict[int, int]:
        return {device: number for number, host in enumerate(self.hosts) for device in host}

    @cached_property
    def inside(self) -> Level:
        """Between devices of one host; where no host has two, as `across`."""
        return self._level(_pairs_inside(self.hosts) or _pairs_across(self.hosts))

    @cached_property
    def across(self) -> Level:
        """Between the first devices of two hosts; where there is one host, as `inside`."""
        return self._level(_pairs_across(self.hosts) or _pairs_inside(self.hosts))

    def _level(self, pairs: Iterable[tuple[int, int]]) -> Level:
        found = [self._link(pair) for pair in pairs]
        return Level(min((b for b, _ in found), default=float("inf")), max((s for _, s in found), default=0.0))

    def _link(self, pair: tuple[int, int]) -> Level:
        if pair not in self._known:
            self._known[pair] = Level(self.cluster.bandwidth(*pair), self.cluster.latency(*pair))
        return self._known[pair]

    def ring(self, devices: Sequence[int]) -> Level:
        """Of the links that a ring over `devices` uses."""
        return self._level(zip(devices, [*devices[1:], devices[0]], strict=True))

    def all_reduce_seconds(self, num_bytes: float, devices: Sequence[int]) -> float:
        """A ring over `devices` in their order, as the simulator has it."""
        if len(devices) < 2:
            return 0.0
        return ring_all_reduce_seconds(num_bytes, len(devices), *self.ring(devices))

    def channel(self, senders: Sequence[int], receivers: Sequence[int]) -> Channel:
        """What one stage's devices reach together in sending to another's.

        Every device has a link of its own inside a host; those of one host share its way out, and its way in.
        """
        pieces = max(len(senders), len(receivers))
        busy: dict[tuple[bool, int], float] = {}  # seconds per byte of a piece: (out or in, device or host)
        slowest, longest = float("inf"), 0.0
        for piece in range(pieces):
            pair = senders[piece * len(senders) // pieces], receivers[piece * len(receivers) // pieces]
            bandwidth, latency = self._link(pair)
            slowest, longest = min(slowest, bandwidth), max(longest, latency)
            ends = [self.host_of[device] for device in pair]
            for inward, end in enumerate(pair if ends[0] == ends[1] else [-1 - host for host in ends]):
                key = bool(inward), end
                busy[key] = busy.get(key, 0.0) + 1 / bandwidth
        return Channel(pieces / max(busy.values()), longest, pieces * slowest)


def _pairs_inside(hosts: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    return [pair for host in hosts for pair in combinations(host, 2)]


def _pairs_across(hosts: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    return list(combinations([host[0] for host in hosts], 2))
