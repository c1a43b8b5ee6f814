"""What comes with the last backward of a stage: sums of gradients over its ranks, and the optimiser's steps."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from plait.graph import Graph
from plait.program import Bucket
from plait.simulate.times import Times


@dataclass(frozen=True)
class Sum:
    """All the sums of one stage's buckets, or of a tied parameter over the stages that hold it, over the same ranks."""

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    seconds: float
    hops: tuple[tuple[int, float], ...]  # channels, and how long each is busy
    head: float  # seconds of the bucket that the first of these stages reads in its first atom, if any


def gradient_sums(graph: Graph, times: Times) -> tuple[Sum, ...]:
    """n buckets over the same ranks are taken as n of the mean size, rounded down.

    That is exact for times that are affine in the bytes, and no more than the truth for convex ones.
    """
    atoms = {parameter.name: parameter.atoms for parameter in graph.parameters}
    starts = [stage.start for stage in times.program.stages]
    groups: defaultdict[tuple[tuple[int, ...], tuple[int, ...]], list[Bucket]] = defaultdict(list)
    for bucket in times.program.buckets:
        if len(bucket.ranks) > 1:
            holders = {bisect_right(starts, atom) - 1 for atom in atoms[bucket.parameters[0]]}
            groups[tuple(sorted(holders)), bucket.ranks].append(bucket)
    means = {
        key: replace(group[0], num_bytes=sum(bucket.num_bytes for bucket in group) // len(group))
        for key, group in groups.items()
    }
    asked = replace(times, program=replace(times.program, buckets=tuple(means.values())))
    sums = []
    for (stages, ranks), mean in means.items():
        seconds, hops = asked.reduce(mean.name)
        own = groups[stages, ranks]
        first = [bucket for bucket in own if bucket.readers[0][0] == starts[stages[0]]]
        head = max((times.reduce(bucket.name)[0] for bucket in first), default=0.0)
        busy = tuple((channel, len(own) * some) for channel, some in hops)
        sums.append(Sum(stages, ranks, len(own) * seconds, busy, head))
    return tuple(sums)


def slowest_step(times: Times) -> float:
    """Seconds of all optimiser steps of the rank that takes longest, and no less than its host takes for its ranks."""
    seconds = step_of_each(times)
    return max(max(seconds), _slowest_host(times, seconds))


def step_of_each(times: Times) -> list[float]:
    """Seconds of all optimiser steps of every rank."""
    plan = times.plan
    groups: defaultdict[tuple[int, ...], list[Bucket]] = defaultdict(list)
    for bucket in times.program.buckets:
        groups[bucket.ranks].append(bucket)
    seconds = [0.0] * plan.num_ranks
    for ranks, buckets in groups.items():
        known: dict[tuple[str, float], float] = {}
        for rank in ranks:
            device = plan.cluster.devices[plan.devices[rank]]
            kind = device.kind.name, device.speed
            if kind not in known:
                known[kind] = sum(times.step(rank, bucket.name) for bucket in buckets)
            seconds[rank] += known[kind]
    return seconds


def _slowest_host(times: Times, seconds: Sequence[float]) -> float:
    cluster = times.plan.cluster
    slots = {host.name: host.compute_slots for host in cluster.hosts if host.compute_slots}
    work = dict.fromkeys(slots, 0.0)
    for device, taken in zip(times.plan.devices, seconds, strict=True):
        host = cluster.devices[device].host
        if host in work:
            work[host] += taken
    return max((work[host] / (slots[host] or 1) for host in work), default=0.0)
