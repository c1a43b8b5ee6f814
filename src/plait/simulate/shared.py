"""Devices that are processes on one machine: they share its cores evenly when more are busy than there are."""

from collections import Counter

from plait.plan import Plan
from plait.program import Instruction

_DONE = 1e-12  # of the time of day, which is all that floating point keeps of the work left


class SharedHost:
    """Even processor sharing. `event` is the number its events have in the engine's heap."""

    def __init__(self, event: int, slots: int) -> None:
        self.event = event
        self.slots = slots
        self.busy: dict[int, list[float]] = {}  # rank -> [seconds of work left, when it started]
        self.what: dict[int, Instruction] = {}
        self.clock = 0.0
        self.scheduled = -1.0  # the one event in the heap that still counts

    def start(self, rank: int, now: float, seconds: float, instruction: Instruction) -> None:
        self._work_until(now)
        self.busy[rank] = [seconds, now]
        self.what[rank] = instruction

    def next_end(self) -> float:
        """The next moment somebody is done, if nobody starts before."""
        self.scheduled = self.clock + max(min(left for left, _ in self.busy.values()), 0.0) / self._rate()
        return self.scheduled

    def finish(self, now: float) -> list[tuple[int, float, Instruction]]:
        """Those whose work is done at `now`. An event that others have overtaken finds nobody."""
        self._work_until(now)
        done = [rank for rank, (left, _) in self.busy.items() if left <= _DONE * max(now, 1.0)]
        return [(rank, self.busy.pop(rank)[1], self.what.pop(rank)) for rank in done]

    def _rate(self) -> float:
        return min(1.0, self.slots / len(self.busy))

    def _work_until(self, now: float) -> None:
        if self.busy:
            worked = (now - self.clock) * self._rate()
            for entry in self.busy.values():
                entry[0] -= worked
        self.clock = max(self.clock, now)


def shared_hosts(plan: Plan, *, first_event: int) -> list[SharedHost | None]:
    """Per rank: the host whose cores it shares, or None where it has its own."""
    names = [plan.cluster.devices[device].host for device in plan.devices]
    slots = {host.name: host.compute_slots for host in plan.cluster.hosts}
    made: dict[str, SharedHost] = {}
    for name, count in Counter(names).items():
        capacity = slots[name]
        if capacity is not None and capacity < count:
            made[name] = SharedHost(first_event + len(made), capacity)
    return [made.get(name) for name in names]
