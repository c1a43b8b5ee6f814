"""Moving tensors between ranks: what the executor needs, and how torch.distributed provides it.

Gradient sums and the exchanges inside a split BatchNorm have groups of their own, so that nothing waits behind anything
it does not depend on ([Note: groups] in `plait.sync.collectives`).
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from plait.sync.collectives import Collectives, Done, Group, Pending, TorchCollectives

__all__ = ["Done", "Pending", "ReplicaExchange", "TorchTransport", "Transport"]


class Transport(Collectives, Protocol):
    """Ranks 0..num_ranks-1 of one plan."""

    num_ranks: int

    def send(self, tensor: Tensor, peer: int) -> Pending: ...

    def receive(self, tensor: Tensor, peer: int) -> Pending: ...

    def all_gather(self, tensor: Tensor, ranks: tuple[int, ...], purpose: str = "exchange") -> list[Tensor]: ...

    def broadcast(self, tensor: Tensor, ranks: tuple[int, ...], root: int, purpose: str = "gradients") -> Pending: ...


class TorchTransport(TorchCollectives):
    def __init__(self, groups: Iterable[Group], *, device: torch.device, timeout_seconds: float) -> None:
        self.num_ranks = dist.get_world_size()
        everybody = tuple(range(self.num_ranks))
        super().__init__([("meeting", everybody), *groups], device=device, timeout_seconds=timeout_seconds)
        self._upward = self.new_group(everybody)
        self._downward = self.new_group(everybody)

    def send(self, tensor: Tensor, peer: int) -> Pending:
        return self._sent(tensor, peer, self._direction(self.rank, peer))

    def receive(self, tensor: Tensor, peer: int) -> Pending:
        return self._received(tensor, peer, self._direction(peer, self.rank))

    def _direction(self, source: int, sink: int) -> dist.ProcessGroup:
        return self._upward if source < sink else self._downward

    def close(self) -> None:
        """Ends the process groups; a process that keeps them may hang at exit."""
        dist.destroy_process_group()


class ReplicaExchange:
    """A stage's replicas as the split operations of `graph.synced` see them."""

    def __init__(self, transport: Transport, ranks: Sequence[int]) -> None:
        self._transport = transport
        self._ranks = tuple(ranks)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return self._transport.all_gather(tensor, self._ranks)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        result = tensor.clone()
        self._transport.all_reduce(result, self._ranks, "exchange").wait()
        return result
