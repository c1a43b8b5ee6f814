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
from plait.cost.links import ring_all_reduce_seconds
from plait.errors import PlaitError

Cost = tuple[float, tuple[int, ...]]  # seconds, and the channels that are busy meanwhile


def sync_seconds(name: str, num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    """Seconds of a sum over `devices` by the strategy `name`, and the channels it keeps busy.

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


def _hosts(devices: Sequence[int], cluster: Cluster) -> list[list[int]]:
    return by_host(devices, lambda device: cluster.devices[device].host)


def _ring(num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    pairs = _around([device for host in _hosts(devices, cluster) for device in host])
    slowest = min(cluster.bandwidth(a, b) for a, b in pairs)
    latency = max(cluster.latency(a, b) for a, b in pairs)
    return ring_all_reduce_seconds(num_bytes, len(devices), slowest, latency), _channels(pairs, cluster)


def _hierarchical(num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    hosts = _hosts(devices, cluster)
    within = [_ring(num_bytes, host, cluster) for host in hosts if len(host) > 1]
    shards = min(map(len, hosts))
    rings = [_around([host[shard] for host in hosts]) for shard in range(shards)] if len(hosts) > 1 else []
    between = [pair for ring in rings for pair in ring]
    moved = 2 * (len(hosts) - 1) / len(hosts) * num_bytes / shards
    seconds = max((found for found, _ in within), default=0.0)
    seconds += _slowest_channel(between, moved, cluster)
    seconds += 2 * (len(hosts) - 1) * _latency(between, cluster)
    channels = {*_channels(between, cluster), *(channel for _, found in within for channel in found)}
    return seconds, tuple(sorted(channels))


def _parameter_server(num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    server, *workers = devices
    up, down = [(worker, server) for worker in workers], [(server, worker) for worker in workers]
    seconds = sum(_slowest_channel(pairs, num_bytes, cluster) + _latency(pairs, cluster) for pairs in (up, down))
    return seconds, _channels(up + down, cluster)


Pairs = Sequence[tuple[int, int]]


def _around(devices: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(devices, [*devices[1:], devices[0]], strict=True))


def _slowest_channel(pairs: Pairs, num_bytes: float, cluster: Cluster) -> float:
    """Seconds until each pair's bytes are over; transfers share the channels their routes have in common."""
    load: dict[int, float] = {}
    for a, b in pairs:
        for channel in cluster.route(a, b):
            load[channel] = load.get(channel, 0.0) + num_bytes
    return max((carried / cluster.channel_bandwidth(channel) for channel, carried in load.items()), default=0.0)


def _latency(pairs: Pairs, cluster: Cluster) -> float:
    return max((cluster.latency(a, b) for a, b in pairs), default=0.0)


def _channels(pairs: Pairs, cluster: Cluster) -> tuple[int, ...]:
    return tuple(sorted({channel for a, b in pairs for channel in cluster.route(a, b)}))


SYNCHRONISATIONS: dict[str, Callable[[float, Sequence[int], Cluster], Cost]] = {
    "ring": _ring,
    "hierarchical": _hierarchical,
    "parameter-server": _parameter_server,
}
