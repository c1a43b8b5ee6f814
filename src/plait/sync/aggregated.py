"""Sums that a switch makes of packets as they pass: PASSING, and in-network alone.

PASSING sums within hosts first, so that each host sends its gradients over its uplink once: S/R for S bytes, R what
the uplink or the switch's memory lets through, where a ring takes 2(N-1)/N S/B. Each rank of a host contributes the
shard it owns. With every rank a host of its own that is in-network aggregation: G S/R for G ranks behind an uplink.
Chunks follow one another through the phases: summed in the host, by the switch, handed down.

[Note: agreement] A switch may fail one worker and serve the others, so nobody uses a sum before all ranks have said
that they have it: a number is summed behind each of them. If anybody has not, all take the hierarchical ring for that
sum, from the numbers they started with, which are kept until then.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from plait.errors import PlaitError
from plait.switch.errors import SwitchUnavailable
from plait.sync.chunks import CHUNK_BYTES, chunks_of
from plait.sync.collectives import Collectives, Group
from plait.sync.conveyor import Chunk
from plait.sync.hierarchical import Hierarchical, InHost, inside_groups
from plait.sync.hosts import Ranks, is_flat, ring_order
from plait.sync.ring import Ring
from plait.sync.turns import IN_FLIGHT, Turns

_LOG = logging.getLogger("plait.sync")


class Contributor(Protocol):
    """One worker of a job at a switch: `plait.switch.worker.SwitchWorker`."""

    def all_reduce(self, tensor: Tensor) -> None: ...

    def close(self) -> None: ...


Join = Callable[[str, int, int], Contributor]  # joins the job called so as this worker of so many


@dataclass
class _Attempt:
    """One sum. `why_not` is what kept this rank from having it of the switch."""

    number: int
    goes: bool = True
    why_not: str = ""


class Aggregated:
    """`hosts` are the ranks that sum before the switch does, `machines` those that share one, for the ring instead.

    `wait_seconds` bounds how long a sum waits for those before it.
    """

    num_phases = 4

    def __init__(
        self,
        name: str,
        hosts: Sequence[Ranks],
        machines: Sequence[Ranks],
        join: Join,
        *,
        job: str,
        chunk_bytes: int = CHUNK_BYTES,
        wait_seconds: float = 300.0,
    ) -> None:
        self.name = name
        self.hosts = hosts
        self.instead = Ring(machines) if is_flat(machines) else Hierarchical(machines, purpose="instead ")
        self.turns = Turns()
        self._uplink = _Uplink(join, job)
        self._chunk_bytes = chunk_bytes
        self._wait_seconds = wait_seconds
        self._room = threading.Semaphore(IN_FLIGHT)
        self._begun = 0

    @property
    def ranks(self) -> Ranks:
        return ring_order(self.hosts)

    def groups(self) -> list[Group]:
        return [*inside_groups(self.hosts), self._agreement, *self.instead.groups()]

    @property
    def _agreement(self) -> Group:
        return "agreement", tuple(sorted(self.ranks))

    def chunks(self, collectives: Collectives, tensor: Tensor) -> list[Chunk]:
        if tensor.dtype == torch.float64:
            raise PlaitError(
                f"{self.name} sums have 32 bits a number at most, and this tensor is float64: sum it by a way that "
                "torch.distributed knows (ring, hierarchical, parameter-server), or train in float32."
            )
        attempt = _Attempt(self._begun)
        self._begun += 1
        is_plain = tensor.dtype == torch.float32 and tensor.device.type == "cpu"
        copy = torch.empty(tensor.numel(), dtype=torch.float32)
        copies = chunks_of(copy, self._chunk_bytes)
        found: list[Chunk] = [(partial(self._take_turn, attempt), *[_nothing] * 3)]
        for copied, given in zip(copies, tensor.tensor_split(len(copies)), strict=True):
            inside = InHost(collectives, self.hosts, given if is_plain else copied)
            found.append(
                (
                    partial(self._sum_up, attempt, inside, copied, given),
                    partial(self._cross, attempt, inside),
                    partial(self._hand_down, attempt, inside),
                    _nothing,
                )
            )
        end = partial(self._agree, attempt, collectives, tensor, copy, is_plain)
        return [*found, (*[_nothing] * 3, end)]

    def _take_turn(self, attempt: _Attempt) -> None:
        if not self._room.acquire(timeout=self._wait_seconds):
            raise TimeoutError(f"the {IN_FLIGHT} sums before it were not done within {self._wait_seconds:g} s")
        attempt.goes = not self.turns.stays_away(attempt.number)

    def _sum_up(self, attempt: _Attempt, inside: InHost, copied: Tensor, given: Tensor) -> None:
        if attempt.goes:
            copied.copy_(given)
            inside.sum_up()

    def _cross(self, attempt: _Attempt, inside: InHost) -> None:
        if not attempt.goes or attempt.why_not or inside.shard is None or not inside.own_shard.numel():
            return
        if not self.turns.may_go(attempt.number):
            attempt.why_not = "a sum before it failed"
            return
        try:
            self._uplink.sum(inside, self.turns.attempt)
        except SwitchUnavailable as error:
            attempt.why_not = str(error)

    def _hand_down(self, attempt: _Attempt, inside: InHost) -> None:
        if attempt.goes:
            inside.hand_down()

    def _agree(self, attempt: _Attempt, collectives: Collectives, tensor: Tensor, copy: Tensor, is_plain: bool) -> None:
        """See [Note: agreement]. A plain tensor was summed in place, another one in its copy."""
        try:
            if attempt.goes:
                failures = torch.tensor([1.0 if attempt.why_not else 0.0])
                collectives.all_reduce(failures, self._agreement[1], self._agreement[0]).wait()
                has_failed = bool(failures.item())
                self.turns.outcome(attempt.number, failed=has_failed)
                if has_failed == is_plain:
                    tensor.copy_(copy)
                if not has_failed:
                    return
                why = attempt.why_not or "not all ranks got it from the switch"
                _LOG.warning(
                    "rank %d: sum %d goes over the hierarchical ring: %s", collectives.rank, attempt.number, why
                )
            for chunk in self.instead.chunks(collectives, tensor):
                for do in chunk:
                    do()
        finally:
            self._room.release()

    def close(self, collectives: Collectives) -> None:
        del collectives
        self._uplink.leave()


class _Uplink:
    """This rank's place at the switch, taken anew after each time that the switch was given up."""

    def __init__(self, join: Join, job: str) -> None:
        self._join = join
        self._job = job
        self._contributor: Contributor | None = None
        self._attempt = self._lost = -1

    def sum(self, inside: InHost, attempt: int) -> None:
        """Raises SwitchUnavailable within a bounded time, and from then on until the next attempt."""
        if self._attempt != attempt:
            self.leave()
            self._attempt = attempt
        if self._lost == attempt:
            raise SwitchUnavailable("it failed in a sum before")
        try:
            if self._contributor is None:
                job = f"{self._job}.{inside.shard}.{attempt}"
                self._contributor = self._join(job, inside.others.index(inside.rank), len(inside.others))
            self._contributor.all_reduce(inside.own_shard)
        except SwitchUnavailable:
            self._lost = attempt
            self.leave()
            raise

    def leave(self) -> None:
        contributor, self._contributor = self._contributor, None
        if contributor is not None:
            contributor.close()


def _nothing() -> None:
    return None
