"""What sums are made of, and how torch.distributed provides it.

[Note: groups] Messages from a lower to a higher rank and back go through different process groups: within one
gloo group they share a connection and are nearly half duplex. Every phase of a sum has groups of its own, so that
nothing waits behind anything it does not depend on.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from inspect import signature
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from plait.sync.hosts import Ranks

Group = tuple[str, Ranks]  # what it is for, and who is in it

# Sums go round a group in the order of its ranks, which is chosen with care; sorted only where torch knows no better.
_AS_GIVEN: dict[str, Any] = {"sort_ranks": False} if "sort_ranks" in signature(dist.new_group).parameters else {}


class Pending(Protocol):
    """Something under way. `wait` returns when it is done, or raises; `done` tells of a sum whether it is."""

    def wait(self) -> object: ...

    def done(self) -> bool: ...


class Sum(Pending, Protocol):
    """A sum under way."""

    def future(self) -> "Future[Any]":
        """Done by itself, whether or not anybody waits; fails where `wait` would raise."""
        ...


class Collectives(Protocol):
    """What strategies need of whoever moves bytes. All ranks of a group ask for the same things in the same order."""

    rank: int

    def send_to(self, tensor: Tensor, peer: int, group: Group) -> Pending: ...

    def receive_from(self, tensor: Tensor, peer: int, group: Group) -> Pending: ...

    def all_reduce(self, tensor: Tensor, ranks: Ranks, purpose: str = "gradients") -> Sum: ...


class _Work:
    """A torch.distributed work handle with what must outlive it, and a copy to make when it is done."""

    def __init__(self, work: dist.Work, keep: Tensor, copy_to: Tensor | None = None) -> None:
        self._work = work
        self._keep = keep
        self._copy_to = copy_to

    def wait(self) -> None:
        self._work.wait()
        self._copy()

    def _copy(self) -> None:
        if self._copy_to is not None:
            self._copy_to.copy_(self._keep, non_blocking=True)

    def done(self) -> bool:
        return bool(self._work.is_completed())

    def future(self) -> "Future[Any]":
        def copied(done: "Future[Any]") -> None:
            done.wait()  # raises what went wrong
            self._copy()

        summed = self._work.get_future()
        return summed if self._copy_to is None else summed.then(copied)


class Done:
    """A pending operation that needed no work."""

    def wait(self) -> None:
        return None

    def done(self) -> bool:
        return True

    def future(self) -> "Future[Any]":
        finished: Future[Any] = Future()
        finished.set_result(None)
        return finished


class TorchCollectives:
    """torch.distributed: gloo between CPUs, NCCL between GPUs, host memory in between where gloo serves GPUs."""

    def __init__(
        self, groups: Iterable[Group], *, device: torch.device, timeout_seconds: float, backend: str | None = None
    ) -> None:
        self.rank = dist.get_rank()
        self._timeout = timedelta(seconds=timeout_seconds)
        self._backend = backend
        # All ranks make all groups, in one order: torch.distributed asks for that.
        wanted = sorted({group for group in groups if len(group[1]) > 1})
        self._groups = {group: self.new_group(group[1], **_AS_GIVEN) for group in wanted}
        some = next(iter(self._groups.values()), None)
        self._through_host = device.type == "cuda" and "nccl" not in dist.get_backend_config(some)

    def new_group(self, ranks: Sequence[int], **options: Any) -> dist.ProcessGroup:
        return dist.new_group(list(ranks), timeout=self._timeout, backend=self._backend, **options)

    def all_reduce(self, tensor: Tensor, ranks: Ranks, purpose: str = "gradients") -> Sum:
        if len(ranks) == 1:
            return Done()
        payload = self._payload(tensor)
        work = dist.all_reduce(payload, group=self._groups[purpose, ranks], async_op=True)
        assert work is not None
        return _Work(work, payload, tensor if payload is not tensor else None)

    def broadcast(self, tensor: Tensor, ranks: Ranks, root: int, purpose: str = "gradients") -> Pending:
        if len(ranks) == 1:
            return Done()
        payload = self._payload(tensor)
        work = dist.broadcast(payload, root, group=self._groups[purpose, ranks], async_op=True)
        assert work is not None
        return _Work(work, payload, tensor if payload is not tensor else None)

    def all_gather(self, tensor: Tensor, ranks: Ranks, purpose: str = "exchange") -> list[Tensor]:
        payload = self._payload(tensor)
        parts = [torch.empty_like(payload) for _ in ranks]
        dist.all_gather(parts, payload, group=self._groups[purpose, ranks])
        return [part.to(tensor.device) for part in parts]

    def send_to(self, tensor: Tensor, peer: int, group: Group) -> Pending:
        return self._sent(tensor, peer, self._groups[group])

    def receive_from(self, tensor: Tensor, peer: int, group: Group) -> Pending:
        return self._received(tensor, peer, self._groups[group])

    def _sent(self, tensor: Tensor, peer: int, group: dist.ProcessGroup) -> Pending:
        payload = tensor.to("cpu") if self._through_host else tensor
        work = dist.isend(payload, peer, group=group)
        assert work is not None
        return _Work(work, payload)

    def _received(self, tensor: Tensor, peer: int, group: dist.ProcessGroup) -> Pending:
        buffer = torch.empty_like(tensor, device="cpu", pin_memory=True) if self._through_host else tensor
        work = dist.irecv(buffer, peer, group=group)
        assert work is not None
        return _Work(work, buffer, tensor if self._through_host else None)

    def _payload(self, tensor: Tensor) -> Tensor:
        return tensor.to("cpu") if self._through_host else tensor.contiguous()
