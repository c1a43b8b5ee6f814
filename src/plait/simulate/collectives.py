"""What ranks do together: gradient sums, and meetings at which everybody waits for the last."""

from collections import deque
from collections.abc import Generator, Mapping
from functools import partial
from heapq import heappush

from plait.program import Instruction, Program
from plait.simulate.network import NOT_YET, Network
from plait.simulate.times import Times


class _Sum:
    """One gradient sum: who has joined, and when it is done."""

    __slots__ = ("end", "instruction", "joined", "start", "waiters")

    def __init__(self) -> None:
        self.joined = 0
        self.start = self.end = NOT_YET
        self.waiters: list[int] = []
        self.instruction: Instruction


class _Group:
    """Ranks that sum together. Their sums follow one another: the next is ready for the links when the last is done."""

    __slots__ = ("busy", "queue")

    def __init__(self) -> None:
        self.busy = False
        self.queue: deque[_Sum] = deque()


class Collectives:
    """`carried` has the ends of the sums of the step before, by rank and bucket, that the rank has yet to use."""

    def __init__(
        self, program: Program, times: Times, network: Network, carried: Mapping[tuple[int, str], float]
    ) -> None:
        self.program = program
        self.carried = dict(carried)
        self.times = times
        self.network = network
        self.sums = {bucket.name: _Sum() for bucket in program.buckets}
        self.groups = {bucket.ranks: _Group() for bucket in program.buckets}
        self.meetings: dict[object, dict[int, float]] = {}

    def join(self, instruction: Instruction, now: float) -> None:
        """The last to join makes the sum ready."""
        found = self.sums[instruction.name]
        found.joined += 1
        ranks = self.program.bucket_by_name[instruction.name].ranks
        if found.joined < len(ranks):
            return
        found.instruction = instruction
        group = self.groups[ranks]
        group.queue.append(found)
        if not group.busy:
            self._begin_next(group, ranks, now)

    def _begin_next(self, group: _Group, ranks: tuple[int, ...], now: float) -> None:
        group.busy = bool(group.queue)
        if not group.busy:
            return
        found = group.queue.popleft()
        seconds, hops = self.times.reduce(found.instruction.name)
        found.start, found.end = self.network.occupy(hops, now, seconds)
        if self.network.records is not None:
            self.network.records += [(member, "reduce", found.instruction, found.start, found.end) for member in ranks]
        for waiter in found.waiters:
            heappush(self.network.events, (now, waiter))
        self.network.call_later(found.end, partial(self._begin_next, group, ranks))

    def await_carried(self, rank: int, instruction: Instruction, now: float) -> float:
        """Gives the time at which a sum of the step before is there."""
        end = self.carried.get((rank, instruction.name), 0.0)
        if end > now and self.network.records is not None:
            self.network.records.append((rank, "wait", instruction, now, end))
        return max(now, end)

    def await_sum(self, rank: int, instruction: Instruction, now: float) -> Generator[None, float, float]:
        """Gives the time at which the sum is there."""
        found = self.sums[instruction.name]
        if found.end < 0.0:
            found.waiters.append(rank)
            now = yield
        if found.end > now and self.network.records is not None:
            self.network.records.append((rank, "wait", instruction, max(now, found.start), found.end))
        return max(now, found.end)

    def meet(self, rank: int, now: float, where: object, size: int) -> Generator[None, float, float]:
        """Gives the time at which all `size` ranks have come; the last wakes the others."""
        arrived = self.meetings.setdefault(where, {})
        arrived[rank] = now
        if len(arrived) < size:
            yield
        else:
            for other in arrived:
                if other != rank:
                    heappush(self.network.events, (now, other))
        return max(arrived.values())
