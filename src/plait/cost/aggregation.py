"""Gradient sums that an aggregating switch makes: algorithms.md, section 5, on the routes the bytes really take.

Of S bytes in N hosts of G devices, which sum within the host first (with every device a host of its own: in-network
alone), then at the switch, each device with its shard, then hand down:

    every channel is busy for what passes it: 2 (G-1)/G S/b of a device's link within the host, S/(eta B) of an uplink
        (a switch that sums on the way passes on one stream for all below it)
    a worker has no more under way than its slots hold: S/G RTT / W, W = slots x payload
    chunk after chunk: the largest of these, the first chunk's sum within the host and the last one's way down, and for
        each chunk a round trip to the switch, behind which the next one begins

Of several aggregating switches it is the one that takes least.
"""

from collections.abc import Sequence

from plait.cluster import Aggregator, Cluster
from plait.cost.transfers import Cost, around, busy_seconds, most_latency
from plait.errors import PlaitError
from plait.sync.chunks import CHUNK_BYTES


def aggregated(num_bytes: float, hosts: Sequence[Sequence[int]], cluster: Cluster) -> Cost:
    """Raises PlaitError where no switch of the cluster sums packets."""
    if not cluster.aggregators:
        raise PlaitError(
            f"no switch of cluster {cluster.name} sums packets, so in-network and passing sums are off: write "
            "aggregate = {} into the [[switches]] table of one that does, or choose another way to sum."
        )
    return min(_at(aggregator, num_bytes, hosts, cluster) for aggregator in cluster.aggregators)


def nearest_aggregator(devices: Sequence[int], cluster: Cluster) -> Aggregator:
    """Of the cluster's switches that sum packets, the one where the devices' sums take least."""
    hosts = [[device] for device in devices]
    return min(cluster.aggregators, key=lambda aggregator: _at(aggregator, 1e9, hosts, cluster)[0])


def _at(aggregator: Aggregator, num_bytes: float, hosts: Sequence[Sequence[int]], cluster: Cluster) -> Cost:
    shards = min(map(len, hosts))
    top = cluster.vertex(aggregator.switch)
    workers = [(host[shard], shard) for host in hosts for shard in range(shards)]
    rings = [around(host) for host in hosts if len(host) > 1]
    each_round = {len(host): (len(host) - 1) / len(host) * num_bytes for host in hosts}
    busy: dict[int, float] = {}
    for ring in rings:  # as much to sum as to hand down
        _add(busy, busy_seconds(ring, 2 * each_round[len(ring)], cluster))
    within = max(busy.values(), default=0.0)
    for channel, streams in _streams(workers, top, cluster).items():
        seconds = streams * num_bytes / shards / (aggregator.efficiency * cluster.channel_bandwidth(channel))
        _add(busy, {channel: seconds, channel ^ 1: seconds})
    round_trip = 2 * max(cluster.latency(device, top) for device, _ in workers)
    window = num_bytes / shards * round_trip / (aggregator.slots * aggregator.payload_bytes)
    num_chunks = max(1.0, num_bytes / CHUNK_BYTES)
    rounds = max((2 * (len(ring) - 1) * most_latency(ring, cluster) for ring in rings), default=0.0)
    seconds = max(max(busy.values()), window) + within / num_chunks + num_chunks * round_trip + rounds
    return seconds, tuple(sorted(busy.items()))


def _streams(workers: Sequence[tuple[int, int]], top: int, cluster: Cluster) -> dict[int, int]:
    """On each channel towards the switch, how many sums of a shard pass it that nobody has put together yet."""
    summing = {aggregator.switch for aggregator in cluster.aggregators}
    found: dict[int, set[tuple[str, int]]] = {}
    for device, shard in workers:
        source = cluster.vertex_names[device]
        for channel in cluster.route(device, top):
            found.setdefault(channel, set()).add((source, shard))
            _, after = cluster.channel_ends(channel)
            source = after if after in summing else source
    return {channel: len(streams) for channel, streams in found.items()}


def _add(busy: dict[int, float], more: dict[int, float]) -> None:
    for channel, seconds in more.items():
        busy[channel] = busy.get(channel, 0.0) + seconds
