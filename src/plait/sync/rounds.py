"""Rings of messages: parts summed each at its owner, and given from there to everybody.

G ranks, part j owned by the rank at position j of the ring; there may be fewer parts than ranks. In round t of the
sum part j is passed from position j+1+t to the next one, which adds its own: after G-1 rounds it is at j, added in one
order, so the sum has the same bits wherever it is handed to. The way out is the same ring once more.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from plait.sync.collectives import Collectives, Group, Pending
from plait.sync.hosts import Ranks


def directions(what: str, ranks: Ranks) -> list[Group]:
    """The process groups that messages between `ranks` need."""
    return [(f"{what} {way}", tuple(sorted(ranks))) for way in ("up", "down")]


def direction(what: str, ranks: Ranks, source: int, sink: int) -> Group:
    up, down = directions(what, ranks)
    return up if source < sink else down


def sum_at_owners(collectives: Collectives, parts: Sequence[Tensor], ring: Ranks, what: str) -> None:
    """`parts[j]` at `ring[j]` becomes the sum over the ring; what others then hold of it means nothing."""
    size, own = len(ring), ring.index(collectives.rank)
    for turn in range(size - 1):
        arriving = (own - 2 - turn) % size
        passed = torch.empty_like(parts[arriving]) if arriving < len(parts) else None
        _pass_on(collectives, parts, (own - 1 - turn) % size, passed, ring, what)
        if passed is not None:
            parts[arriving].add_(passed)


def give_to_all(collectives: Collectives, parts: Sequence[Tensor], ring: Ranks, what: str) -> None:
    """Everybody gets `parts[j]` of `ring[j]`."""
    size, own = len(ring), ring.index(collectives.rank)
    for turn in range(size - 1):
        arriving = (own - 1 - turn) % size
        into = parts[arriving] if arriving < len(parts) else None
        _pass_on(collectives, parts, (own - turn) % size, into, ring, what)


def _pass_on(
    collectives: Collectives, parts: Sequence[Tensor], leaving: int, into: Tensor | None, ring: Ranks, what: str
) -> None:
    """One round: a part to the next rank of the ring, and at the same time one from the rank before."""
    rank = collectives.rank
    own = ring.index(rank)
    after, before = ring[(own + 1) % len(ring)], ring[own - 1]
    pending: list[Pending] = []
    if into is not None and into.numel():
        pending.append(collectives.receive_from(into, before, direction(what, ring, before, rank)))
    if leaving < len(parts) and parts[leaving].numel():
        pending.append(collectives.send_to(parts[leaving], after, direction(what, ring, rank, after)))
    for message in pending:
        message.wait()
