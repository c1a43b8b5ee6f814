"""Exchanges inside tensor groups: alpha-beta costs of a ring over the group's own links.

Of S bytes on P devices, with beta the seconds per byte of the busiest link of the ring and alpha its latency:

    all-reduce                     2 (P-1)/P S beta + 2 (P-1) alpha
    all-gather, reduce-scatter       (P-1)/P S beta +   (P-1) alpha

All groups of a stage exchange at the same time, so what their rings share they share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from plait.cluster import Cluster
from plait.cost.synchronisation import ring_of
from plait.errors import PlaitError
from plait.graph.sharding import Collective, Sharding

ROUNDS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}  # of P-1 messages of each device


@dataclass(frozen=True)
class GroupLinks:
    """What ties the devices of one tensor group together."""

    size: int
    seconds_per_byte: float
    latency: float

    def seconds(self, kind: str, num_bytes: float) -> float:
        """
        >>> GroupLinks(4, 1.0, 0.5).seconds("all-reduce", 8.0)
        15.0
        """
        if kind not in ROUNDS:
            raise PlaitError(f"unknown collective {kind!r}; choose one of {', '.join(ROUNDS)}.")
        messages = ROUNDS[kind] * (self.size - 1)
        return messages * (num_bytes / self.size * self.seconds_per_byte + self.latency)

    def exchange(self, collectives: Iterable[Collective], rows: int) -> float:
        """Seconds of one after the other, for a micro-batch of so many rows."""
        return sum(self.seconds(c.kind, c.bytes_per_row * rows + c.fixed_bytes) for c in collectives)


def group_links(group: Sequence[int], groups: Iterable[Sequence[int]], cluster: Cluster) -> GroupLinks:
    """Of one of the tensor groups (devices of the cluster) of a stage."""
    if len(group) < 2:
        return GroupLinks(len(group), 0.0, 0.0)
    busy: dict[int, float] = {}
    for other in groups:
        for a, b in ring_of(other, cluster):
            for channel in cluster.route(a, b):
                busy[channel] = busy.get(channel, 0.0) + 1 / cluster.channel_bandwidth(channel)
    own = ring_of(group, cluster)
    slowest = max((busy[channel] for a, b in own for channel in cluster.route(a, b)), default=0.0)
    return GroupLinks(len(group), slowest, max(cluster.latency(a, b) for a, b in own))


def of_atoms(sharding: Sharding, phase: str, first: int, last: int) -> list[Collective]:
    """Those in a phase of atoms `first..last-1`."""
    return [c for c in sharding.collectives if c.phase == phase and first <= c.atom < last]
