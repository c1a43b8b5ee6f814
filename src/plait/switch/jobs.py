"""The noun `Job`: workers that gather at a switch and then sum together on a range of its slots."""

from dataclasses import dataclass, field
from typing import Any

from plait.switch.channel import Channel
from plait.switch.datagrams import MOST_SLOTS
from plait.switch.plane import MOST_WORKERS, Route

_LONGEST_NAME = 200
MOST_LEAVES = 1023  # with more, rounding errs by more than is promised, and counts of NaN and infinities overflow


class Refused(Exception):
    """Why a worker may not join; told to it as it stands."""


@dataclass(frozen=True)
class Request:
    """What a worker asks when it joins. `leaves` are the workers it stands for: more than one for a switch below."""

    job: str
    worker: int
    count: int
    port: int
    elements: int
    slots: int
    leaves: int

    @classmethod
    def parse(cls, message: dict[str, Any]) -> "Request":
        try:
            numbers = {name: int(message[name]) for name in ("worker", "count", "port", "elements", "slots")}
            asked = cls(job=str(message["job"]), leaves=int(message.get("leaves", 1)), **numbers)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise Refused(f"a request to join lacks or garbles {error}") from error
        if not 1 <= len(asked.job) <= _LONGEST_NAME:
            raise Refused(f"a job's name has 1 to {_LONGEST_NAME} letters, and this one {len(asked.job)}")
        if not 1 <= asked.count <= MOST_WORKERS:
            raise Refused(f"a job has 1 to {MOST_WORKERS} workers at one switch, and {asked.count} were asked for")
        if not 0 <= asked.worker < asked.count:
            raise Refused(f"worker {asked.worker} is none of {asked.count}: they count from 0")
        if not 1 <= asked.leaves <= MOST_LEAVES:
            raise Refused(f"{asked.leaves} workers below one switch are outside 1 to {MOST_LEAVES}")
        if asked.elements < 16 or not 0 < asked.port < 1 << 16:
            raise Refused(f"packets of {asked.elements} integers to port {asked.port} are none")
        if not 1 <= asked.slots <= MOST_SLOTS:
            raise Refused(f"{asked.slots} slots are outside 1 to {MOST_SLOTS}")
        return asked


@dataclass
class Member:
    """One worker and its control connection."""

    asked: Request
    channel: Channel
    route: Route
    has_left: bool = False


@dataclass
class Job:
    """`index` is that of the data plane, None while workers gather."""

    name: str
    count: int
    members: dict[int, Member] = field(default_factory=dict)
    index: int | None = None
    first_slot: int = 0
    slots: int = 0
    epoch: int = 0
    upstream: Channel | None = None
    ended: bool = False
    starting: bool = False

    def add(self, member: Member) -> None:
        asked = member.asked
        if self.starting:
            raise Refused(f"job {self.name} is running already: end it, or give this one another name")
        if asked.count != self.count:
            raise Refused(
                f"job {self.name} is gathering {self.count} workers, and worker {asked.worker} says there are "
                f"{asked.count}: give all the same count"
            )
        if asked.worker in self.members:
            raise Refused(f"job {self.name} has a worker {asked.worker} already: number them 0 to {self.count - 1}")
        self.members[asked.worker] = member

    @property
    def is_complete(self) -> bool:
        return len(self.members) == self.count

    @property
    def leaves(self) -> int:
        return sum(member.asked.leaves for member in self.members.values())

    @property
    def elements(self) -> int:
        """What every worker's packets have room for."""
        return min(member.asked.elements for member in self.members.values())

    @property
    def asked_slots(self) -> int:
        return min(member.asked.slots for member in self.members.values())

    @property
    def routes(self) -> list[Route]:
        return [self.members[worker].route for worker in range(self.count)]


class SlotRanges:
    """Which slots are whose: each job has one range, and no two overlap."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._taken: list[tuple[int, int]] = []  # first and end, in order

    @property
    def free(self) -> int:
        return self.total - sum(end - first for first, end in self._taken)

    def take(self, count: int) -> int:
        """The first slot of a free range. Raises Refused where there is none.

        >>> ranges = SlotRanges(100)
        >>> ranges.take(40), ranges.take(40)
        (0, 40)
        >>> ranges.give_back(0)
        >>> ranges.take(30), ranges.take(20)
        (0, 80)
        """
        start = 0
        for first, end in [*self._taken, (self.total, self.total)]:
            if first - start >= count:
                self._taken = sorted([*self._taken, (start, start + count)])
                return start
            start = end
        raise Refused(
            f"slots are exhausted: {count} in a row were asked for, {self.free} of {self.total} are free. Wait for "
            "other jobs to end, ask for fewer, or start the switch with more"
        )

    def give_back(self, first: int) -> None:
        self._taken = [taken for taken in self._taken if taken[0] != first]
