"""The work of a step in one currency, whatever devices do it.

t_k(a) is what atom a takes for the whole batch of N rows on a device of kind k: N p + f, because each of its rows
costs p and it runs at least once. For a reference kind, w(a) = t_ref(a), and a device of kind k and speed v does at
most

    v max_a w(a) / t_k(a)

of that work in a second: whichever atoms it runs, t seconds of work take it no less than that. With `forward` the
forwards alone are meant. Hence, with W = sum of w: no plan takes less than W over the sum of the rates, and no group
of devices does more than its rates' sum times T.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.cluster import Cluster, Device
from plait.cost import Costs

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Work:
    """Seconds on the reference kind: of every atom, in the forwards alone, and how fast every device does them."""

    reference: str
    atoms: Array
    forwards: Array
    rates: Array

    @property
    def total(self) -> float:
        return float(self.atoms.sum())


def step_work(costs: Costs, cluster: Cluster, batch_size: int, reference: str) -> Work:
    kinds = {device.kind.name for device in cluster.devices}
    forward = {kind: _seconds(costs, kind, batch_size, "forward") for kind in kinds | {reference}}
    both = {kind: forward[kind] + _seconds(costs, kind, batch_size, "backward") for kind in forward}
    rate = {
        kind: max(_most_per_second(both[reference], both[kind]), _most_per_second(forward[reference], forward[kind]))
        for kind in kinds
    }
    rates = np.array([device.speed * rate[device.kind.name] for device in cluster.devices])
    return Work(reference, both[reference], forward[reference], rates)


def _seconds(costs: Costs, kind: str, rows: int, phase: str) -> Array:
    return np.array([getattr(a, f"{phase}_fixed") + getattr(a, f"{phase}_per_row") * rows for a in costs.atoms[kind]])


def _most_per_second(reference: Array, own: Array) -> float:
    """Infinite where something costs nothing here but something there."""
    some = reference > 0
    with np.errstate(divide="ignore"):
        return float((reference[some] / own[some]).max(initial=0.0)) or 1.0


def host_rate(cluster: Cluster, work: Work, host: str, slots: int | None) -> float:
    """Of the fastest devices of the host that can compute at once."""
    rates = sorted((work.rates[device] for device in cluster.devices_of(host)), reverse=True)
    return float(sum(rates[:slots]))


def total_rate(cluster: Cluster, work: Work) -> float:
    return sum(host_rate(cluster, work, host.name, host.compute_slots) for host in cluster.hosts)


@dataclass(frozen=True)
class Group:
    """Devices that do `rate` at most, reach the others over links of `capacity` bytes a second in each direction, and
    of which there are more alike."""

    name: str
    rate: float
    capacity: float
    fastest_link: float
    memory_bytes: int


def device_groups(cluster: Cluster, work: Work) -> list[Group]:
    """Every device by itself."""
    links = _links(cluster)
    return [
        Group(d.name, float(work.rates[index]), sum(links[d.name]), max(links[d.name], default=0.0), d.memory_bytes)
        for index, d in enumerate(cluster.devices)
    ]


def host_groups(cluster: Cluster, work: Work) -> list[Group]:
    """The devices of every host, and the links that leave it."""
    inside: dict[str, str] = {device.name: device.host for device in cluster.devices}
    inside |= {host.name: host.name for host in cluster.hosts}
    leaving: defaultdict[str, list[float]] = defaultdict(list)
    for link in cluster.links:
        a, b = inside.get(link.a), inside.get(link.b)
        if a != b:
            for end in (a, b):
                if end is not None:
                    leaving[end].append(link.bandwidth)
    groups = []
    for host in cluster.hosts:
        devices: list[Device] = [cluster.devices[index] for index in cluster.devices_of(host.name)]
        if devices:
            rate = host_rate(cluster, work, host.name, host.compute_slots)
            widths = leaving[host.name]
            memory = sum(device.memory_bytes for device in devices)
            groups.append(Group(host.name, rate, sum(widths), max(widths, default=0.0), memory))
    return groups


def _links(cluster: Cluster) -> defaultdict[str, list[float]]:
    links: defaultdict[str, list[float]] = defaultdict(list)
    for link in cluster.links:
        links[link.a].append(link.bandwidth)
        links[link.b].append(link.bandwidth)
    return links
