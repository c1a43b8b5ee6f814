"""Sums within hosts, then between them, then handed back down.

Each host's sum is cut into shards, one for each of its ranks (as many as the fewest ranks in a host). A ring of
messages within the host sums each shard at its owner; the owners of a shard, one in each host, sum it in a ring of
their own; a ring within the host gives the shards to everybody. 2(G-1)/G S/b within a host of G ranks at rate b,
2(N-1)/N S/B between N hosts at rate B.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from plait.sync.chunks import chunks_of
from plait.sync.collectives import Collectives, Group
from plait.sync.conveyor import Chunk
from plait.sync.hosts import Ranks, owners, ring_order
from plait.sync.rounds import directions, give_to_all, sum_at_owners


@dataclass(frozen=True)
class Hierarchical:
    """With `chunk_bytes` the phases of a chunk overlap with those of the next; without, they follow one another."""

    hosts: Sequence[Ranks]
    chunk_bytes: int | None = None
    purpose: str = ""  # tells the groups of several such sums apart
    name: str = "hierarchical"
    num_phases: int = 3

    @property
    def ranks(self) -> Ranks:
        return ring_order(self.hosts)

    def groups(self) -> list[Group]:
        return [*inside_groups(self.hosts, self.purpose), *((self._across, others) for others in owners(self.hosts))]

    @property
    def _across(self) -> str:
        return f"{self.purpose}across"

    def chunks(self, collectives: Collectives, tensor: Tensor) -> list[Chunk]:
        found: list[Chunk] = []
        for chunk in chunks_of(tensor, self.chunk_bytes):
            inside = InHost(collectives, self.hosts, chunk, self.purpose)
            found.append((inside.sum_up, lambda inside=inside: self._sum_across(collectives, inside), inside.hand_down))  # type: ignore[misc]
        return found

    def close(self, collectives: Collectives) -> None:
        del collectives

    def _sum_across(self, collectives: Collectives, inside: "InHost") -> None:
        if inside.shard is not None and inside.own_shard.numel():
            collectives.all_reduce(inside.own_shard, inside.others, self._across).wait()


def inside_groups(hosts: Sequence[Ranks], purpose: str = "") -> list[Group]:
    """The process groups of what passes within the hosts."""
    return [
        group
        for host in hosts
        if len(host) > 1
        for what in (_sum(purpose), _give(purpose))
        for group in directions(what, host)
    ]


class InHost:
    """One chunk in this rank's host: cut into shards, summed at their owners, and later handed down."""

    def __init__(self, collectives: Collectives, hosts: Sequence[Ranks], chunk: Tensor, purpose: str = "") -> None:
        (self._host,) = (host for host in hosts if collectives.rank in host)
        columns = owners(hosts)
        self._collectives = collectives
        self._purpose = purpose
        self.rank = collectives.rank
        self._parts = list(chunk.tensor_split(len(columns)))
        position = self._host.index(collectives.rank)
        self.shard = position if position < len(columns) else None  # which one this rank owns
        self.others = columns[position] if self.shard is not None else ()

    @property
    def own_shard(self) -> Tensor:
        assert self.shard is not None
        return self._parts[self.shard]

    def sum_up(self) -> None:
        sum_at_owners(self._collectives, self._parts, self._host, _sum(self._purpose))

    def hand_down(self) -> None:
        give_to_all(self._collectives, self._parts, self._host, _give(self._purpose))


def _sum(purpose: str) -> str:
    return f"{purpose}within"


def _give(purpose: str) -> str:
    return f"{purpose}down"
