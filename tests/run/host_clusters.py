"""Clusters of hosts around a switch."""

from plait.cluster import PRESETS, Aggregator, Cluster, Device, Host, Link


def hosts(
    *sizes: int,
    in_host: float = 1e10,
    uplink: float = 1e9,
    latency: float = 0.0,
    aggregators: tuple[Aggregator, ...] = (),
) -> Cluster:
    """Hosts with so many devices each."""
    names = [[f"h{host}/cpu{n}" for n in range(size)] for host, size in enumerate(sizes)]
    placed = [(name, f"h{host}") for host, own in enumerate(names) for name in own]
    return Cluster(
        "hosts",
        tuple(Host(f"h{host}") for host in range(len(sizes))),
        tuple(Device(name, host, PRESETS["cpu"], 2**30) for name, host in placed),
        ("switch",),
        (
            *(Link(name, host, in_host, latency) for name, host in placed),
            *(Link(f"h{host}", "switch", uplink, latency) for host in range(len(sizes))),
        ),
        aggregators,
    )
