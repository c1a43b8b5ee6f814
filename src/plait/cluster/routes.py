"""Which channels a message takes from one vertex of a cluster to another.

Rule: hosts and switches pass messages on; a device does so only where there is no other way. Among the
routes left, the one with the largest bottleneck bandwidth, then the least latency, then the fewest links.
A route is computed for one direction and reversed for the other, so both use the same links.

The part of a route between hosts and switches (the *trunk*) is found once per pair of *groups*: devices that
hang on the same host by equal links. 128 hosts of 8 devices need 128 x 128 trunks, not 1,024 x 1,024 routes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plait.cluster.widest_paths import Edge, WidestPaths, femtoseconds
from plait.errors import PlaitError


@dataclass(frozen=True)
class _Attachment:
    """Where a vertex meets the hosts and switches: by one link, or (being one of them) by none."""

    at: int
    bandwidth: float
    latency: float


@dataclass(frozen=True)
class _Trunk:
    """The best way between two groups: which attachment to use at each end, and what lies between."""

    first: int
    last: int
    channels: tuple[int, ...]
    bandwidth: float
    latency: float


@dataclass(frozen=True)
class _Route:
    channels: tuple[int, ...]
    bandwidth: float
    latency: float


class Routes:
    """Routes between vertices 0 … len(names) - 1, of which the first `num_devices` are devices."""

    def __init__(self, names: Sequence[str], num_devices: int, edges: Sequence[Edge]) -> None:
        self._names = names
        self._num_devices = num_devices
        self._edges = edges
        core = [edge for edge in edges if min(edge.a, edge.b) >= num_devices]
        self._core = WidestPaths(len(names), core)
        self._everything: WidestPaths | None = None
        self._attach()
        self._trunks: dict[tuple[int, int], _Trunk | None] = {}
        # Pairs whose route is no trunk between groups: joined by their own link, or only through devices.
        self._pairs: dict[tuple[int, int], _Route] = {}
        for edge in edges:
            if max(edge.a, edge.b) < num_devices:
                self._consider_direct_link(edge)

    def channels(self, a: int, b: int) -> tuple[int, ...]:
        if a == b:
            return ()
        if a > b:
            return tuple(channel ^ 1 for channel in reversed(self.channels(b, a)))
        found = self._find(a, b)
        if isinstance(found, _Route):
            return found.channels
        to_core, from_core = self._to_core[a][found.first], self._to_core[b][found.last]
        return (*to_core, *found.channels, *(channel ^ 1 for channel in from_core))

    def bandwidth(self, a: int, b: int) -> float:
        if a == b:
            return math.inf
        return (self._find(a, b) if a < b else self._find(b, a)).bandwidth

    def latency(self, a: int, b: int) -> float:
        if a == b:
            return 0.0
        return (self._find(a, b) if a < b else self._find(b, a)).latency

    def _find(self, a: int, b: int) -> _Route | _Trunk:
        route = self._pairs.get((a, b))
        if route is not None:
            return route
        trunk = self._trunk(self._groups[a], self._groups[b])
        if trunk is not None:
            return trunk
        route = self._pairs[a, b] = self._through_devices(a, b)
        return route

    def _attach(self) -> None:
        """Group the vertices by their attachments."""
        attachments: list[list[_Attachment]] = [[] for _ in self._names]
        to_core: list[list[tuple[int, ...]]] = [[] for _ in self._names]
        for vertex in range(self._num_devices, len(self._names)):
            attachments[vertex].append(_Attachment(at=vertex, bandwidth=math.inf, latency=0.0))
            to_core[vertex].append(())
        for edge in self._edges:
            device, other = min(edge.a, edge.b), max(edge.a, edge.b)
            if device < self._num_devices <= other:
                attachments[device].append(_Attachment(other, edge.bandwidth, edge.latency))
                to_core[device].append((2 * edge.index + (0 if device == edge.a else 1),))
        numbers: dict[tuple[_Attachment, ...], int] = {}
        self._groups = [numbers.setdefault(tuple(found), len(numbers)) for found in attachments]
        self._attachments = list(numbers)
        self._to_core = to_core

    def _trunk(self, group_a: int, group_b: int) -> _Trunk | None:
        key = (group_a, group_b)
        if key not in self._trunks:
            self._trunks[key] = self._best_trunk(self._attachments[group_a], self._attachments[group_b])
        return self._trunks[key]

    def _best_trunk(self, from_a: Sequence[_Attachment], to_b: Sequence[_Attachment]) -> _Trunk | None:
        candidates = []
        for first, start in enumerate(from_a):
            for last, end in enumerate(to_b):
                width = min(start.bandwidth, self._core.width(start.at, end.at), end.bandwidth)
                if width == 0:
                    continue
                channels = self._core.path(start.at, end.at, at_least=width)
                latencies = [
                    start.latency,
                    *(self._edges[channel >> 1].latency for channel in channels),
                    end.latency,
                ]
                # fsum rounds once, so the latency does not depend on the direction it is added up in.
                candidates.append(_Trunk(first, last, channels, width, math.fsum(latencies)))
        return min(candidates, key=_worse, default=None)

    def _consider_direct_link(self, edge: Edge) -> None:
        a, b = min(edge.a, edge.b), max(edge.a, edge.b)
        trunk = self._trunk(self._groups[a], self._groups[b])
        channel = 2 * edge.index + (0 if a == edge.a else 1)
        direct = _Route((channel,), edge.bandwidth, edge.latency)
        # On a tie the direct link has fewer links.
        if trunk is None or _worse(direct)[:2] <= _worse(trunk)[:2]:
            self._pairs[a, b] = direct

    def _through_devices(self, a: int, b: int) -> _Route:
        if self._everything is None:
            self._everything = WidestPaths(len(self._names), self._edges)
        width = self._everything.width(a, b)
        if width == 0:
            raise PlaitError(
                f'"{self._names[a]}" and "{self._names[b]}" have no path between them; a message can only be '
                'routed between linked vertices: add a link (an "uplink" or [[links]]) that joins them'
            )
        channels = self._everything.path(a, b, at_least=width)
        return _Route(channels, width, math.fsum(self._edges[channel >> 1].latency for channel in channels))


def _worse(way: _Route | _Trunk) -> tuple[float, int, int]:
    return (-way.bandwidth, femtoseconds(way.latency), len(way.channels))
