"""Moving tensors between ranks: what the executor needs, and how torch.distributed provides it.

[Note: groups] Messages from a lower to a higher rank and back go through different process groups: within one
gloo group they share a connection and are nearly half duplex. Gradient sums and the exchanges inside a
split BatchNorm have groups of their own, so that nothing waits behind anything it does not depend on.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from inspect import signature
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

# Sums go round a group in the order of its ranks, which is chosen with care; sorted only where torch knows no better.
_AS_GIVEN: dict[str, Any] = {"sort_ranks": False} if "sort_ranks" in signature(dist.new_group).parameters else {}


class Pending(Protocol):
    """Something under way. `wait` returns when it is done, or raises; `done` tells of a sum whether it is."""

    def wait(self) -> None: ...

    def done(self) -> bool: ...


class Transport(Protocol):
    """Ranks 0..num_ranks-1 of one plan."""

    rank: int
    num_ranks: int

    def send(self, tensor: Tensor, peer: int) -> Pending: ...

    def receive(self, tensor: Tensor, peer: int) -> Pending: ...

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...], purpose: str = "gradients") -> Pending: ...

    def all_gather(self, tensor: Tensor, ranks: tuple[int, ...], purpose: str = "exchange") -> list[Tensor]: ...

    def reduce(self, tensor: Tensor, ranks: tuple[int, ...], root: int, purpose: str) -> Pending:
        """The sum comes to be at `root`; what the others then hold means nothing."""
        ...

    def broadcast(self, tensor: Tensor, ranks: tuple[int, ...], root: int, purpose: str = "gradients") -> Pending: ...


class _Work:
    """A torch.distributed work handle with what must outlive it, and a copy to make when it is done."""

    def __init__(self, work: dist.Work, keep: Tensor, copy_to: Tensor | None = None) -> None:
        self._work = work
        self._keep = keep
        self._copy_to = copy_to

    def wait(self) -> None:
        self._work.wait()
        if self._copy_to is not None:
            self._copy_to.copy_(self._keep, non_blocking=True)

    def done(self) -> bool:
        return bool(self._work.is_completed())


class Done:
    """A pending operation that needed no work."""

    def wait(self) -> None:
        return None

    def done(self) -> bool:
        return True


class TorchTransport:
    """torch.distributed: gloo between CPUs, NCCL between GPUs, host memory in between where gloo serves GPUs."""

    def __init__(
        self, groups: Iterable[tuple[str, tuple[int, ...]]], *, device: torch.device, timeout_seconds: float
    ) -> None:
        self.rank = dist.get_rank()
        self.num_ranks = dist.get_world_size()
        self._timeout = timedelta(seconds=timeout_seconds)
        everybody = tuple(range(self.num_ranks))
        # All ranks make all groups, in one order: torch.distributed asks for that.
        self._upward = dist.new_group(list(everybody), timeout=self._timeout)
        self._downward = dist.new_group(list(everybody), timeout=self._timeout)
        wanted = sorted({("meeting", everybody), *(g for g in groups if len(g[1]) > 1)})
        self._groups = {key: dist.new_group(list(key[1]), timeout=self._timeout, **_AS_GIVEN) for key in wanted}
        self._through_host = device.type == "cuda" and "nccl" not in dist.get_backend_config(self._upward)

    def send(self, tensor: Tensor, peer: int) -> Pending:
        payload = tensor.to("cpu") if self._through_host else tensor
        work = dist.isend(payload, peer, group=self._direction(self.rank, peer))
        assert work is not None
        return _Work(work, payload)

    def receive(self, tensor: Tensor, peer: int) -> Pending:
        buffer = torch.empty_like(tensor, device="cpu", pin_memory=True) if self._through_host else tensor
        work = dist.irecv(buffer, peer, group=self._direction(peer, self.rank))
        assert work is not None
        return _Work(work, buffer, tensor if self._through_host else None)

    def _direction(self, source: int, sink: int) -> dist.ProcessGroup:
        return self._upward if source < sink else self._downward

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...], purpose: str = "gradients") -> Pending:
        if len(ranks) == 1:
            return Done()
        payload = tensor.to("cpu") if self._through_host else tensor
        work = dist.all_reduce(payload, group=self._groups[purpose, ranks], async_op=True)
        assert work is not None
        return _Work(work, payload, tensor if self._through_host else None)

    def reduce(self, tensor: Tensor, ranks: tuple[int, ...], root: int, purpose: str) -> Pending:
        if len(ranks) == 1:
            return Done()
        payload = tensor.to("cpu") if self._through_host else tensor
        work = dist.reduce(payload, root, group=self._groups[purpose, ranks], async_op=True)
        assert work is not None
        return _Work(work, payload, tensor if self._through_host else None)

    def all_gather(self, tensor: Tensor, ranks: tuple[int, ...], purpose: str = "exchange") -> list[Tensor]:
        payload = tensor.to("cpu") if self._through_host else tensor.contiguous()
        parts = [torch.empty_like(payload) for _ in ranks]
        dist.all_gather(parts, payload, group=self._groups[purpose, ranks])
        return [part.to(tensor.device) for part in parts]

    def broadcast(self, tensor: Tensor, ranks: tuple[int, ...], root: int, purpose: str = "gradients") -> Pending:
        if len(ranks) == 1:
            return Done()
        payload = tensor.to("cpu") if self._through_host else tensor.contiguous()
        work = dist.broadcast(payload, root, group=self._groups[purpose, ranks], async_op=True)
        assert work is not None
        return _Work(work, payload, None if payload is tensor else tensor)

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
