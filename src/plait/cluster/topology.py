"""The cluster: hosts, devices, switches and links, and the questions asked of them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from plait.cluster.checks import check_aggregators, check_cluster
from plait.cluster.parts import Aggregator, Device, Host, Link
from plait.cluster.routes import Routes
from plait.cluster.stored import as_stored, read_stored
from plait.cluster.suggestions import did_you_mean, listed
from plait.cluster.widest_paths import Edge
from plait.errors import PlaitError


@dataclass(frozen=True)
class Cluster:
    """Machines and the network between them.

    Vertices are numbered: the devices in order first, then the hosts, then the switches. Wherever a method
    takes a vertex number, a device's index in `devices` is its number. Link i is two directed channels, one
    per direction: 2 * i from `links[i].a` to `links[i].b`, and 2 * i + 1 back.

    Construction checks that names are unique, that references resolve and that all devices reach each
    other; it raises PlaitError otherwise.

    >>> from plait.cluster import local_cluster
    >>> cluster = local_cluster(3, bandwidth=2e9, latency=60e-6)
    >>> cluster.route(0, 2), cluster.bandwidth(0, 2), cluster.latency(0, 2)
    ((0, 5), 2000000000.0, 6e-05)
    """

    name: str
    hosts: tuple[Host, ...]
    devices: tuple[Device, ...]
    switches: tuple[str, ...]
    links: tuple[Link, ...]
    aggregators: tuple[Aggregator, ...] = ()

    def __post_init__(self) -> None:
        check_cluster(self.hosts, self.devices, self.switches, self.links)
        check_aggregators(self.aggregators, self.switches)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: routes found so far are cheaper to find again than to send to another process."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def route(self, a: int, b: int) -> tuple[int, ...]:
        """Channels from vertex `a` to vertex `b`, in order; empty when a is b. See [Note: routes] below."""
        return self._routes.channels(a, b)

    def bandwidth(self, a: int, b: int) -> float:
        """Bytes per second of the narrowest channel on the route; infinite when a is b."""
        return self._routes.bandwidth(a, b)

    def latency(self, a: int, b: int) -> float:
        """Seconds: the latencies of the route's channels added up; 0 when a is b."""
        return self._routes.latency(a, b)

    # [Note: routes] Hosts and switches pass messages on. A device passes on messages of others only where
    # there is no other way, because no transport does so by itself, and because a bandwidth written for a
    # pair of devices (a measured matrix, say) should be what that pair gets. Of the routes left: the largest
    # bottleneck bandwidth, then the least latency, then the fewest links. The way back uses the same links.

    @property
    def num_channels(self) -> int:
        """Twice the number of links."""
        return 2 * len(self.links)

    def channel_bandwidth(self, channel: int) -> float:
        """Bytes per second."""
        return self.links[channel >> 1].bandwidth

    def channel_latency(self, channel: int) -> float:
        """Seconds."""
        return self.links[channel >> 1].latency

    def channel_ends(self, channel: int) -> tuple[str, str]:
        """Names of the vertices it leads from and to."""
        link = self.links[channel >> 1]
        return (link.b, link.a) if channel & 1 else (link.a, link.b)

    @cached_property
    def vertex_names(self) -> tuple[str, ...]:
        """Names by vertex number."""
        hosts = (host.name for host in self.hosts)
        return (*(device.name for device in self.devices), *hosts, *self.switches)

    def vertex(self, name: str) -> int:
        """Number of the device, host or switch of that name."""
        number = self._vertex_numbers.get(name)
        if number is None:
            raise PlaitError(
                f'cluster "{self.name}" has no device, host or switch named "{name}". '
                f"{did_you_mean(name, self.vertex_names)}Its names are {listed(self.vertex_names)}"
            )
        return number

    def devices_of(self, host: str) -> tuple[int, ...]:
        """Indices of the devices in a host."""
        return self._devices_by_host.get(host, ())

    def subset(self, devices: Sequence[int]) -> "Cluster":
        """The cluster with only these devices, in this order; hosts and switches stay: they carry traffic."""
        kept = tuple(self.devices[index] for index in devices)
        dropped = {device.name for device in self.devices} - {device.name for device in kept}
        links = tuple(link for link in self.links if link.a not in dropped and link.b not in dropped)
        return replace(self, devices=kept, links=links)

    def to_dict(self) -> dict[str, Any]:
        """A form for JSON, with a version; `from_dict` gives back an equal cluster."""
        return as_stored(self.name, self.hosts, self.devices, self.switches, self.links, self.aggregators)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Cluster":
        """The cluster that `to_dict` wrote; raises PlaitError on anything else."""
        stored = read_stored(data)
        return cls(
            name=stored.name,
            hosts=tuple(stored.hosts),
            devices=stored.full_devices(),
            switches=tuple(stored.switches),
            links=tuple(stored.links),
            aggregators=tuple(stored.aggregators),
        )

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits, the same for equal clusters on every machine."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def _vertex_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.vertex_names)}

    @cached_property
    def _devices_by_host(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, list[int]] = {}
        for index, device in enumerate(self.devices):
            found.setdefault(device.host, []).append(index)
        return {host: tuple(indices) for host, indices in found.items()}

    @cached_property
    def _routes(self) -> Routes:
        numbers = self._vertex_numbers
        edges = [
            Edge(index, numbers[link.a], numbers[link.b], link.bandwidth, link.latency)
            for index, link in enumerate(self.links)
        ]
        return Routes(self.vertex_names, len(self.devices), edges)
