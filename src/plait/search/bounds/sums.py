"""What comes with the last backward of a stage: sums of gradients over its ranks, and the optimiser's steps."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from plait.graph import Graph
from plait.program import Bucket
from plait.simulate.times import Times

_MOST_LOOKED_AT = 24


class Due(NamedTuple):
    """Of the buckets that some stages first read in these atoms or sooner: their sums, one after the other."""

    atoms: tuple[int, ...]  # by stage
    seconds: float
    hops: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Sum:
    """All the sums of one stage's buckets, or of a tied parameter over the stages that hold it, over the same ranks."""

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    seconds: float
    hops: tuple[tuple[int, float], ...]  # channels, and how long each is busy
    due: tuple[Due, ...]  # from the first buckets on to all


def gradient_sums(graph: Graph, times: Times) -> tuple[Sum, ...]:
    """n buckets over the same ranks are taken as n of the mean size, rounded down.

    That is exact for times that are affine in the bytes, and no more than the truth for convex ones.
    Of many buckets of a stage not every beginning is looked at, but all of them together are.
    """
    atoms = {parameter.name: parameter.atoms for parameter in graph.parameters}
    starts = [stage.start for stage in times.program.stages]
    groups: defaultdict[tuple[tuple[int, ...], tuple[int, ...]], list[Bucket]] = defaultdict(list)
    for bucket in times.program.buckets:
        if len(bucket.ranks) > 1:
            holders = {bisect_right(starts, atom) - 1 for atom in atoms[bucket.parameters[0]]}
            groups[tuple(sorted(holders)), bucket.ranks].append(bucket)
    sums = []
    for (stages, ranks), group in groups.items():
        needed = sorted(group, key=lambda bucket: bucket.readers)
        every = -(-len(needed) // _MOST_LOOKED_AT)
        counts = range(len(needed) % every or every, len(needed) + 1, every)
        due = tuple(_due(times, needed[:count]) for count in counts)
        sums.append(Sum(stages, ranks, due[-1].seconds, due[-1].hops, due))
    return tuple(sums)


def _due(times: Times, buckets: Sequence[Bucket]) -> Due:
    count = len(buckets)
    mean = replace(buckets[0], num_bytes=sum(bucket.num_bytes for bucket in buckets) // count)
    seconds, hops = replace(times, program=replace(times.program, buckets=(mean,))).reduce(mean.name)
    atoms = tuple(first for first, _ in buckets[-1].readers)
    return Due(atoms, count * seconds, tuple((channel, count * busy) for channel, busy in hops))


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
