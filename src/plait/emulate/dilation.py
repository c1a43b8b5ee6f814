"""By how much a plan is slowed down and its messages shrunk, so that one machine can play its cluster. Pure.

Computation and links are slowed by one factor `time`, so every ratio in the step stays as it is: t seconds become
time * t. Messages and gradients have only 1/payload of their bytes, on links slowed by payload once more: a message of
n bytes on a link of b bytes a second takes (n / payload) / (b / (time * payload)) = time * n / b.

`time`: the median computation takes 20 ms on the bed, where timers and Python err by tenths of a millisecond. Where a
step would then take more than 10 s it is less.
`payload`: the fastest link in use becomes 1 Gbit/s, which a token bucket keeps to a percent; slower still where all
links together would carry more than the machine can (400 MB/s, 60,000 packets/s).
Links so much slower than the fastest that they would carry less than 2 MB/s, a few packets in a short computation,
set the scale instead; then the fastest are held to 1 Gbit/s, less than they should get. `as_emulated` says what cluster
that is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from plait.cluster import Cluster
from plait.cost.synchronisation import sync_seconds
from plait.emulate.shaping import suitable_mtu
from plait.errors import PlaitError
from plait.plan import Plan
from plait.program import COMPUTE, Op, Program

COMPUTATION_SECONDS, SHORTEST_COMPUTATION = 0.02, 0.005
STEP_SECONDS = 10.0
FASTEST_WIRE, SLOWEST_WIRE = 125e6, 2e6
TRAFFIC, PACKETS = 400e6, 60e3  # per second, over all wires


@dataclass(frozen=True)
class Dilation:
    """`limit` is the bandwidth on the bed that no wire exceeds."""

    time: float
    payload: float
    mtu: int
    limit: float = FASTEST_WIRE

    def on_bed(self, bandwidth: float) -> float:
        """Bytes per second of a link on the bed."""
        return min(bandwidth / (self.time * self.payload), self.limit)

    def as_emulated(self, bandwidth: float) -> float:
        """What that is in the cluster's own time and bytes."""
        return self.on_bed(bandwidth) * self.time * self.payload

    def message_bytes(self, num_bytes: int) -> int:
        return max(1, round(num_bytes / self.payload))


def choose_dilation(
    computations: Iterable[float],
    step_seconds: float,
    traffic: Mapping[int, float],
    cluster: Cluster,
    *,
    time: float | None = None,
) -> Dilation:
    """For a step of `step_seconds` with these computations, whose messages load each channel with `traffic` bytes."""
    typical = median(computations)
    if time is None:
        time = min(COMPUTATION_SECONDS / typical, STEP_SECONDS / step_seconds)
        time = max(time, SHORTEST_COMPUTATION / typical)
    if time <= 0:
        raise PlaitError(f"--dilation {time:g} must be above 0; leave it out, or give the factor to slow time down by.")
    rates = [cluster.channel_bandwidth(channel) for channel in traffic]
    if not rates:
        return Dilation(time, 1.0, 1500)
    slowing = max(max(rates) / FASTEST_WIRE, sum(traffic.values()) / (step_seconds * TRAFFIC), time)
    slowing = max(min(slowing, min(rates) / SLOWEST_WIRE), time, sum(traffic.values()) / (step_seconds * TRAFFIC))
    slowest, load = min(rates) / slowing, sum(traffic.values()) / slowing / step_seconds
    mtu = max(suitable_mtu(slowest), min(int(load / PACKETS), 9000))
    return Dilation(time, slowing / time, mtu)


def channel_bytes(program: Program, plan: Plan) -> dict[int, float]:
    """What one step's messages and gradient sums put on each channel they use."""
    cluster, found = plan.cluster, dict[int, float]()

    def add(channel: int, num_bytes: float) -> None:
        found[channel] = found.get(channel, 0.0) + num_bytes

    for rank, instructions in enumerate(program.ranks):
        for ins in instructions:
            if ins.op is Op.SEND:
                size = program.edge_by_name[ins.name].value.num_bytes(ins.rows)
                for channel in cluster.route(plan.devices[rank], plan.devices[ins.peer]):
                    add(channel, size)
    for bucket in program.buckets:
        devices = [plan.devices[rank] for rank in bucket.ranks]
        for channel, seconds in sync_seconds(plan.sync, bucket.num_bytes, devices, cluster)[1]:
            add(channel, seconds * cluster.channel_bandwidth(channel))
    return found


def as_emulated(cluster: Cluster, dilation: Dilation, *, latency: float | None = None) -> Cluster:
    """The cluster that the bed stands for, in its own time: every device computes by itself, and no link is faster than
    the bed can show. With `latency`, that of one wire of the bed, links have it instead of their own."""
    links = tuple(
        replace(
            link,
            bandwidth=dilation.as_emulated(link.bandwidth),
            latency=link.latency if latency is None else latency / dilation.time,
        )
        for link in cluster.links
    )
    hosts = tuple(replace(host, compute_slots=None) for host in cluster.hosts)
    return replace(cluster, hosts=hosts, links=links)


def computations(program: Program) -> list[tuple[int, Op, int, int]]:
    """Rank, operation, stage and rows of every computation of a step."""
    return [(r, i.op, i.stage, i.rows) for r, own in enumerate(program.ranks) for i in own if i.op in COMPUTE]
