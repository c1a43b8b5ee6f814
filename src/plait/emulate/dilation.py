"""By how much a plan is slowed down and its messages shrunk, so that one machine can play its cluster. Pure.

Computation and links are slowed by one factor `time`, so every ratio in the step stays as it is: t seconds become
time * t. Messages and gradients have only 1/payload of their bytes, on links slowed by payload once more: a message of
n bytes on a link of b bytes a second takes (n / payload) / (b / (time * payload)) = time * n / b.

`time`: on the bed the median computation takes at least 20 ms, where timers and Python err by tenths of a millisecond;
every round of a gradient sum has 10 ms of the step, where processes wake one another in tenths of one; and a step takes
a second. Where one would then take more than 10 s it is less, but never is the median computation under 5 ms.
`payload`: the fastest link in use becomes 500 Mbit/s, which a token bucket keeps to a percent; slower still where all
links together would carry more than the machine can (200 MB/s, 60,000 packets/s).
Links so much slower than the fastest that they would carry less than 2 MB/s, a few packets in a short computation,
set the scale instead; then the fastest are held to 500 Mbit/s, less than they should get. `as_emulated` says what
cluster that is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from plait.cluster import Aggregator, Cluster
from plait.cost import ROUNDS, Costs
from plait.cost.synchronisation import ring_of, sync_seconds
from plait.emulate.shaping import ETHERNET, LARGEST_MTU, payload_share, suitable_mtu
from plait.errors import PlaitError
from plait.plan import Plan
from plait.program import COMPUTE, Op, Program
from plait.simulate import step_seconds
from plait.simulate.times import Times
from plait.switch.datagrams import elements_for

COMPUTATION_SECONDS, SHORTEST_COMPUTATION = 0.02, 0.005
ROUND_SECONDS = 0.01
SHORTEST_STEP, LONGEST_STEP = 1.0, 10.0
FASTEST_WIRE, SLOWEST_WIRE = 62.5e6, 2e6
_EXCHANGING = (Op.F, Op.B, Op.I)  # computations in which tensor groups exchange
TRAFFIC, PACKETS = 200e6, 60e3  # per second, over all wires


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


def shrunk(num_bytes: int, payload: float) -> int:
    """What a tensor of so many bytes has of them on the bed."""
    return max(1, round(num_bytes / payload))


@dataclass(frozen=True)
class Step:
    """What the choice depends on: a step's seconds, those of its computations, the most rounds of gradient sums that a
    rank takes part in, and the bytes on every channel in use, with that channel's bandwidth."""

    seconds: float
    computations: Sequence[float]
    rounds: int
    traffic: Sequence[tuple[float, float]]


def choose_dilation(step: Step, *, time: float | None = None) -> Dilation:
    """`time` is the user's choice, where there is one."""
    if time is not None and not 0 < time < math.inf:
        raise PlaitError(f"--dilation {time:g} must be above 0; leave it out, or give the factor to slow time down by.")
    time = time or _time(step)
    if not step.traffic:
        return Dilation(time, 1.0, 1500)
    rates = [bandwidth for _, bandwidth in step.traffic]
    load = sum(num_bytes for num_bytes, _ in step.traffic) / step.seconds
    slowing = max(load / TRAFFIC, min(max(rates) / FASTEST_WIRE, min(rates) / SLOWEST_WIRE), time)
    mtu = max(suitable_mtu(min(rates) / slowing), min(int(load / slowing / PACKETS), LARGEST_MTU))
    return Dilation(time, slowing / time, mtu)


def _time(step: Step) -> float:
    typical = median(step.computations)
    shortest = max(SHORTEST_STEP, step.rounds * ROUND_SECONDS)
    wanted = max(COMPUTATION_SECONDS / typical, shortest / step.seconds)
    return max(min(wanted, LONGEST_STEP / step.seconds), SHORTEST_COMPUTATION / typical)


def step_of(plan: Plan, program: Program, costs: Costs) -> Step:
    times = Times(program, plan, costs)
    own = replace(plan, cluster=with_own_devices(plan.cluster))
    traffic = channel_bytes(program, plan)
    for channel, num_bytes in _exchanged_bytes(times).items():
        traffic[channel] = traffic.get(channel, 0.0) + num_bytes
    rounds = [0] * len(program.ranks)
    for bucket in program.buckets:
        for rank in bucket.ranks:
            rounds[rank] += 2 * (len(bucket.ranks) - 1)
    return Step(
        step_seconds(program, own, costs),
        [
            times.compute(r, i.op, i.stage, i.rows)
            for r, part in enumerate(program.ranks)
            for i in part
            if i.op in COMPUTE
        ],
        max(rounds),
        [(num_bytes, plan.cluster.channel_bandwidth(channel)) for channel, num_bytes in traffic.items()],
    )


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


def _exchanged_bytes(times: Times) -> dict[int, float]:
    """What tensor groups put on each channel in a step."""
    plan, cluster, found = times.plan, times.plan.cluster, dict[int, float]()
    for rank, instructions in enumerate(times.program.ranks):
        for ins in instructions:
            stage = times.program.stages[ins.stage] if ins.op in _EXCHANGING else None
            if stage is None or stage.tensor == 1:
                continue
            phases = {"forward"} if ins.op is Op.F else {"backward", *(["forward"] if stage.recompute else [])}
            group = [plan.devices[other] for other in stage.group(rank)]
            (hop,) = [pair for pair in ring_of(group, cluster) if pair[0] == plan.devices[rank]]
            moved = sum(
                ROUNDS[c.kind] * (stage.tensor - 1) / stage.tensor * (c.bytes_per_row * ins.rows + c.fixed_bytes)
                for c in times.sharding_of(ins.stage).collectives
                if c.phase in phases
            )
            for channel in cluster.route(*hop):
                found[channel] = found.get(channel, 0.0) + moved
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
    aggregators = tuple(_on_bed(aggregator, dilation) for aggregator in cluster.aggregators)
    return replace(with_own_devices(cluster), links=links, aggregators=aggregators)


def _on_bed(aggregator: Aggregator, dilation: Dilation) -> Aggregator:
    """A switch that sums packets, with the packets of the bed."""
    payload = 4 * elements_for(dilation.mtu)
    share = payload / (dilation.mtu + ETHERNET) / payload_share(dilation.mtu)
    return replace(aggregator, payload_bytes=round(payload * dilation.payload), efficiency=share)


def with_own_devices(cluster: Cluster) -> Cluster:
    """Every device computes by itself, also where those of a host are processes on its cores."""
    return replace(cluster, hosts=tuple(replace(host, compute_slots=None) for host in cluster.hosts))
