"""What ranks do together: gradient sums, and meetings at which everybody waits for the last."""

from collections.abc import Generator
from heapq import heappush

from plait.program import Instruction, Program
from plait.simulate.network import NOT_YET, Network
from plait.simulate.times import Times


class _Sum:
    """One gradient sum: who has joined, and when it is done."""

    __slots__ = ("end", "joined", "ready", "start", "waiters")

    def __init__(self) -> None:
        self.joined = 0
        self.ready = 0.0
        self.start = self.end = NOT_YET
        self.waiters: list[int] = []


class Collectives:
    def __init__(self, program: Program, times: Times, network: Network) -> None:
        self.program = program
        self.times = times
        self.network = network
        self.sums = {bucket.name: _Sum() for bucket in program.buckets}
        self.group_free: dict[tuple[int, ...], float] = {}
        self.meetings: dict[object, dict[int, float]] = {}

    def join(self, instruction: Instruction, now: float) -> None:
        """The last to join starts the sum; sums over the same ranks follow one another."""
        found = self.sums[instruction.name]
        found.joined += 1
        found.ready = max(found.ready, now)
        ranks = self.program.bucket_by_name[instruction.name].ranks
        if found.joined < len(ranks):
            return
        seconds, hops = self.times.reduce(instruction.name)
        ready = max(found.ready, self.group_free.get(ranks, 0.0))
        found.start, found.end = self.network.occupy(hops, ready, seconds)
        self.group_free[ranks] = found.end
        if self.network.records is not None:
            self.network.records += [(member, "reduce", instruction, found.start, found.end) for member in ranks]
        for waiter in found.waiters:
            heappush(self.network.events, (now, waiter))

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

    def working(self, stage: int, micro_batch: int) -> int:
        """How many replicas of the stage have rows of this micro-batch."""
        return sum(last > first for first, last in self.program.stages[stage].rows[micro_batch])
