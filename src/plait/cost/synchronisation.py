"""Gradient sums between the devices of a cluster: algorithms.md, section 5, on the routes the bytes really take.

Of S bytes on n devices, in N hosts of G devices where those are even:

    ring              2 (n-1)/n S/B + 2 (n-1) alpha over a ring that visits the hosts one after the other
    hierarchical      2 (G-1)/G S/b + 2 (G-1) alpha_in within the hosts, at the slowest of them, and
                      2 (N-1)/N S/B + 2 (N-1) alpha_out between them, each device with its shard of S
    parameter-server  2 (n-1) S/B + 2 alpha at the server's link: the first device gets all and gives the sum to all

B is the bandwidth of the channel that is busy longest. Where hosts have different numbers of devices there are as
many shards as the fewest in one.
"""

from collections.abc import Callable, Iterable, Sequence

from plait.cluster import Cluster
from plait.errors import PlaitError

Cost = tuple[float, tuple[tuple[int, float], ...]]  # seconds, and channels with how long each is busy of them


def sync_seconds(name: str, num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    """Seconds of a sum over `devices` by the strategy `name`, and how long it keeps which channel busy.

    >>> from plait.cluster import local_cluster
    >>> sync_seconds("ring", 4e9, [0, 1, 2, 3], local_cluster(4, bandwidth=1e9, latency=0.0))[0]
    6.0
    """
    check_synchronisation(name)
    return SYNCHRONISATIONS[name](num_bytes, devices, cluster) if len(devices) > 1 else (0.0, ())


def check_synchronisation(name: str) -> None:
    """Raises PlaitError where there is no such strategy."""
    if name not in SYNCHRONISATIONS:
        raise PlaitError(f"unknown synchronisation {name!r}; choose one of {', '.join(SYNCHRONISATIONS)}.")


def by_host(members: Iterable[int], host_of: Callable[[int], str]) -> list[list[int]]:
    """`members` together with those of the same host, hosts in the order in which they first appear."""
    groups: dict[str, list[int]] = {}
    for member in members:
        groups.setdefault(host_of(member), []).append(member)
    return list(groups.values())


def ring_of(devices: Sequence[int], cluster: Cluster) -> list[tuple[int, int]]:
    """Who sends to whom in a ring that visits the hosts one after the other."""
    return _around([device for host in _hosts(devices, cluster) for device in host])


def _hosts(devices: Sequence[int], cluster: Cluster) -> list[list[int]]:
    return by_host(devices, lambda device: cluster.devices[device].host)


def _ring(num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    pairs = ring_of(devices, cluster)
    steps = 2 * (len(devices) - 1)
    busy = _busy(pairs, steps / len(devices) * num_bytes, cluster)
    return max(busy.values()) + steps * _latency(pairs, cluster), tuple(busy.items())


def _hierarchical(num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    hosts = _hosts(devices, cluster)
    within = [_ring(num_bytes, host, cluster) for host in hosts if len(host) > 1]
    shards = min(map(len, hosts))
    rings = [_around([host[shard] for host in hosts]) for shard in range(shards)] if len(hosts) > 1 else []
    between = [pair for ring in rings for pair in ring]
    moved = 2 * (len(hosts) - 1) / len(hosts) * num_bytes / shards
    busy = _busy(between, moved, cluster)
    seconds = max((found for found, _ in within), default=0.0) + max(busy.values(), default=0.0)
    seconds += 2 * (len(hosts) - 1) * _latency(between, cluster)
    for _, found in within:
        for channel, more in found:
            busy[channel] = busy.get(channel, 0.0) + more
    return seconds, tuple(busy.items())


def _parameter_server(num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    server, *workers = devices
    up = _busy([(worker, server) for worker in workers], num_bytes, cluster)
    down = _busy([(server, worker) for worker in workers], num_bytes, cluster)
    latency = _latency([(worker, server) for worker in workers], cluster)
    busy = {channel: up.get(channel, 0.0) + down.get(channel, 0.0) for channel in up.keys() | down.keys()}
    return max(up.values()) + max(down.values()) + 2 * latency, tuple(sorted(busy.items()))


Pairs = Sequence[tuple[int, int]]


def _around(devices: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(devices, [*devices[1:], devices[0]], strict=True))


def _busy(pairs: Pairs, num_bytes: float, cluster: Cluster) -> dict[int, float]:
    """Seconds of each channel until each pair's bytes are over; transfers share the channels they have in common."""
    busy: dict[int, float] = {}
    for a, b in pairs:
        for channel in cluster.route(a, b):
            busy[channel] = busy.get(channel, 0.0) + num_bytes / cluster.channel_bandwidth(channel)
    return busy


def _latency(pairs: Pairs, cluster: Cluster) -> float:
    return max((cluster.latency(a, b) for a, b in pairs), default=0.0)


SYNCHRONISATIONS: dict[str, Callable[[float, Sequence[int], Cluster], Cost]] = {
    "ring": _ring,
    "hierarchical": _hierarchical,
    "parameter-server": _parameter_server,
}
