"""Gradient sums between the devices of a cluster: algorithms.md, section 5, on the routes the bytes really take.

Of S bytes on n devices, in N hosts of G devices where those are even:

    ring              2 (n-1)/n S/B + 2 (n-1) alpha over a ring that visits the hosts one after the other
    hierarchical      2 (G-1)/G S/b + 2 (G-1) alpha_in within the hosts, at the slowest of them, and
                      2 (N-1)/N S/B + 2 (N-1) alpha_out between them, each device with its shard of S
    parameter-server  (n-1) S/B + 2 alpha at the server's link: the first device gets all and gives the sum to all,
                      chunk after chunk, so that what comes in and what goes out pass at once
    sharded-parameter-server   2 (n-1)/n S/B + 2 alpha: the same with every device the server of a shard
    in-network, passing        a switch sums what passes it: `aggregation` has the formulas

B is the bandwidth of the channel that is busy longest. Where hosts have different numbers of devices there are as
many shards as the fewest in one.
"""

from collections.abc import Callable, Sequence

from plait.cluster import Cluster
from plait.cost.aggregation import aggregated
from plait.cost.transfers import Cost, around, busy_seconds, most_latency
from plait.errors import PlaitError
from plait.sync.chunks import CHUNK_BYTES
from plait.sync.hosts import by_host
from plait.sync.strategies import AT_SWITCH


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


def ring_of(devices: Sequence[int], cluster: Cluster) -> list[tuple[int, int]]:
    """Who sends to whom in a ring that visits the hosts one after the other."""
    return around([device for host in _hosts(devices, cluster) for device in host])


def _hosts(devices: Sequence[int], cluster: Cluster) -> list[list[int]]:
    return by_host(devices, lambda device: cluster.devices[device].host)


def _ring(num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    pairs = ring_of(devices, cluster)
    steps = 2 * (len(devices) - 1)
    busy = busy_seconds(pairs, steps / len(devices) * num_bytes, cluster)
    return max(busy.values()) + steps * most_latency(pairs, cluster), tuple(busy.items())


def _hierarchical(num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    hosts = _hosts(devices, cluster)
    within = [_ring(num_bytes, host, cluster) for host in hosts if len(host) > 1]
    shards = min(map(len, hosts))
    rings = [around([host[shard] for host in hosts]) for shard in range(shards)] if len(hosts) > 1 else []
    between = [pair for ring in rings for pair in ring]
    moved = 2 * (len(hosts) - 1) / len(hosts) * num_bytes / shards
    busy = busy_seconds(between, moved, cluster)
    seconds = max((found for found, _ in within), default=0.0) + max(busy.values(), default=0.0)
    seconds += 2 * (len(hosts) - 1) * most_latency(between, cluster)
    for _, found in within:
        for channel, more in found:
            busy[channel] = busy.get(channel, 0.0) + more
    return seconds, tuple(busy.items())


def _parameter_server(num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    return _servers(num_bytes, devices, devices[:1], cluster)


def _sharded_server(num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    devices = [device for host in _hosts(devices, cluster) for device in host]
    return _servers(num_bytes, devices, devices, cluster)


def _in_network(num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    if len(_hosts(devices, cluster)) == 1:  # which have no use for a switch outside it
        return _ring(num_bytes, devices, cluster)
    return aggregated(num_bytes, [[device] for device in devices], cluster)


def _passing(num_bytes: float, devices: Sequence[int], cluster: Cluster) -> Cost:
    hosts = _hosts(devices, cluster)
    return aggregated(num_bytes, hosts, cluster) if len(hosts) > 1 else _ring(num_bytes, devices, cluster)


def _servers(num_bytes: float, devices: Sequence[int], servers: Sequence[int], cluster: Cluster) -> Cost:
    """What comes in and what goes out pass at once, but for the first chunk in and the last one out."""
    ways = [(worker, server) for server in servers for worker in devices if worker != server]
    up = busy_seconds(ways, num_bytes / len(servers), cluster)
    down = busy_seconds([(server, worker) for worker, server in ways], num_bytes / len(servers), cluster)
    busy = {channel: up.get(channel, 0.0) + down.get(channel, 0.0) for channel in up.keys() | down.keys()}
    first = min(1.0, CHUNK_BYTES * len(servers) / num_bytes) if num_bytes else 0.0
    one_way = min(max(up.values()), max(down.values()))
    seconds = max(max(busy.values()), max(up.values()) + max(down.values()) - one_way * (1 - first))
    return seconds + 2 * most_latency(ways, cluster), tuple(sorted(busy.items()))


SYNCHRONISATIONS: dict[str, Callable[[float, Sequence[int], Cluster], Cost]] = {
    "ring": _ring,
    "hierarchical": _hierarchical,
    "parameter-server": _parameter_server,
    "sharded-parameter-server": _sharded_server,
    "in-network": _in_network,
    "passing": _passing,
}
WITHOUT_A_SWITCH = tuple(name for name in SYNCHRONISATIONS if name not in AT_SWITCH)  # those that work anywhere
