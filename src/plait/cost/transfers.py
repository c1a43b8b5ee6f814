"""What transfers that go on at once keep busy, and for how long."""

from collections.abc import Sequence

from plait.cluster import Cluster

Cost = tuple[float, tuple[tuple[int, float], ...]]  # seconds, and channels with how long each is busy of them
Pairs = Sequence[tuple[int, int]]


def around(devices: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(devices, [*devices[1:], devices[0]], strict=True))


def busy_seconds(pairs: Pairs, num_bytes: float, cluster: Cluster) -> dict[int, float]:
    """Seconds of each channel until each pair's bytes are over; transfers share the channels they have in common."""
    busy: dict[int, float] = {}
    for a, b in pairs:
        for channel in cluster.route(a, b):
            busy[channel] = busy.get(channel, 0.0) + num_bytes / cluster.channel_bandwidth(channel)
    return busy


def most_latency(pairs: Pairs, cluster: Cluster) -> float:
    return max((cluster.latency(a, b) for a, b in pairs), default=0.0)
