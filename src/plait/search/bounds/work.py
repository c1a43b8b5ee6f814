"""The work of a step in one currency, whatever devices do it.

t_k(a) is what atom a takes for the whole batch of N rows on a device of kind k: N p + f, because each of its rows
costs p and it runs at least once. With a price l_k of a second on every kind,

    w(a) = min over k of l_k t_k(a)

is work of which a device of kind k and speed v does at most v l_k in a second, whichever atoms it runs; the same holds
of the forwards alone. Hence, with W = sum of w: no plan takes less than W over the sum of the rates v l_k, and no group
of devices does more than its rates' sum times T. Any prices will do. Those that make the most of W / sum of rates are
the dual of the linear programme that deals atoms out to kinds; they are looked for one price at a time.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.cluster import Cluster, Device
from plait.cost import Costs

Array = NDArray[np.float64]
_NO_TIME = 1e-30
_ROUNDS = 3
_FACTORS = np.geomspace(0.25, 4.0, 65)  # by which a price is changed, 1 among them


Prices = Mapping[str, float]  # of a second on each kind of device


@dataclass(frozen=True)
class Work:
    """Of every atom, of its forwards alone, and how fast every device does it."""

    prices: Prices
    atoms: Array
    forwards: Array
    rates: Array

    @property
    def total(self) -> float:
        return float(self.atoms.sum())


def step_work(costs: Costs, cluster: Cluster, batch_size: int, prices: Prices) -> Work:
    forward, both = _table(costs, list(prices), batch_size)
    price = np.array(list(prices.values()))[:, None]
    rates = np.array([device.speed * prices[device.kind.name] for device in cluster.devices])
    return Work(prices, (price * both).min(axis=0), (price * forward).min(axis=0), rates)


def some_prices(costs: Costs, cluster: Cluster, batch_size: int) -> list[Prices]:
    """Prices to try: what each kind takes set against every other's best atom, and the best that are found."""
    kinds = sorted({device.kind.name for device in cluster.devices})
    if len(kinds) == 1:
        return [{kinds[0]: 1.0}]
    _, both = _table(costs, kinds, batch_size)
    by_reference = [np.array([_most_per_second(reference, own) for own in both]) for reference in both]
    speeds = np.array([sum(d.speed for d in cluster.devices if d.kind.name == kind) for kind in kinds])

    def bound(prices: Array) -> float:
        return float((prices[:, None] * both).min(axis=0).sum() / (speeds @ prices))

    best = max([1 / np.maximum(both.sum(axis=1), _NO_TIME), *by_reference], key=bound)
    for _ in range(_ROUNDS):
        for kind in range(len(kinds)):
            tried = [np.where(np.arange(len(kinds)) == kind, best * factor, best) for factor in _FACTORS]
            best = max(tried, key=bound)
    return [dict(zip(kinds, map(float, prices), strict=True)) for prices in [*by_reference, best]]


def _table(costs: Costs, kinds: Sequence[str], rows: int) -> tuple[Array, Array]:
    """Seconds of every atom by kind: forwards, and both ways."""
    forward = np.array([_seconds(costs, kind, rows, "forward") for kind in kinds])
    return forward, forward + np.array([_seconds(costs, kind, rows, "backward") for kind in kinds])


def _seconds(costs: Costs, kind: str, rows: int, phase: str) -> Array:
    return np.array([getattr(a, f"{phase}_fixed") + getattr(a, f"{phase}_per_row") * rows for a in costs.atoms[kind]])


def _most_per_second(reference: Array, own: Array) -> float:
    """Of the reference's seconds; 1 where nothing takes any."""
    some = reference > 0
    return float((reference[some] / np.maximum(own[some], _NO_TIME)).max(initial=0.0)) or 1.0


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
