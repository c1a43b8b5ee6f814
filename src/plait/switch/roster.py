"""Jobs as they come and go at a switch: who gathers, who runs on which slots, and what ends them."""

import contextlib
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass

from plait.switch.channel import Channel, Garbled, Message, call
from plait.switch.errors import SwitchUnavailable
from plait.switch.jobs import MOST_LEAVES, Job, Member, Refused, Request, SlotRanges
from plait.switch.plane import MOST_JOBS, Opening, Plane, Route, Upward

_PARENT_SECONDS = 60.0


@dataclass(frozen=True)
class Parent:
    """The switch above this one, which sees this one as worker `worker` of `count` in every job."""

    address: tuple[str, int]
    worker: int
    count: int


class Roster:
    """All jobs of a switch. Each worker's control connection has a thread, which calls `admit` and then `attend`.

    `fitting` says how many packets of so many integers the switch's receive buffer holds.
    """

    def __init__(
        self,
        plane: Plane,
        ranges: SlotRanges,
        *,
        key: str,
        data_port: int,
        fitting: Callable[[int], int],
        parent: Parent | None,
    ) -> None:
        self._plane, self._ranges = plane, ranges
        self._key, self._data_port, self._fitting, self._parent = key, data_port, fitting, parent
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        self._epoch = secrets.randbits(31)  # one that an earlier switch of this address has not used

    def status(self) -> Message:
        with self._lock:
            return {
                "slots": self._ranges.total,
                "free_slots": self._ranges.free,
                "jobs": [self._job_status(job) for job in self._jobs.values()],
            }

    def _job_status(self, job: Job) -> Message:
        summed, completed = (0, 0) if job.index is None else self._plane.job_counters(job.index)
        return {
            "name": job.name,
            "state": "gathering" if job.index is None else "running",
            "workers": sorted(job.members),
            "count": job.count,
            "epoch": job.epoch,
            "slots": job.slots,
            "summed": summed,
            "completed": completed,
        }

    def admit(self, message: Message, channel: Channel) -> tuple[Job, Member]:
        asked = Request.parse(message)
        route = Route(channel.socket.getpeername()[0], asked.port, channel.socket.getsockname()[0])
        member = Member(asked, channel, route)
        with self._lock:
            job = self._jobs.setdefault(asked.job, Job(asked.job, asked.count))
            job.add(member)
            job.starting = job.is_complete
        if job.starting:
            self._start(job)
        return job, member

    def _start(self, job: Job) -> None:
        """All workers are there. Whatever forbids the job is told to all of them."""
        try:
            if job.leaves > MOST_LEAVES:
                raise Refused(
                    f"{job.leaves} workers are more than {MOST_LEAVES}, whose sum 32 bits hold exactly enough"
                )
            with self._lock:
                # Every worker has a window under way at once, and the opening has two integers for each slot.
                fitting = self._fitting(job.elements) // job.count
                job.slots = max(1, min(job.asked_slots, fitting, job.elements // 2))
                index = self._free_index()
                job.first_slot = self._ranges.take(job.slots)
                job.index, taken = index, job.slots
                self._epoch = (self._epoch + 1) % (1 << 32)
                job.epoch = self._epoch
            ticket: Message = {
                "type": "joined",
                "token": secrets.randbits(63),
                "epoch": job.epoch,
                "job": index,
                "slots": taken,
                "elements": job.elements,
                "summands": job.leaves,
                "count": job.count,
                "port": self._data_port,
            }
            upward = self._climb(job, ticket) if self._parent else None
        except (Refused, SwitchUnavailable) as why:
            self._end(job, str(why), kind="refused")
            return
        with self._lock:
            if job.ended:
                return
            job.slots = ticket["slots"]
            self._plane.open(
                Opening(
                    index,
                    job.epoch,
                    ticket["token"],
                    job.first_slot,
                    job.slots,
                    ticket["elements"],
                    job.routes,
                    upward,
                )
            )
            members = list(job.members.items())
        for worker, member in members:
            with contextlib.suppress(OSError):  # whoever has gone is missed by the thread that reads from it
                member.channel.send({**ticket, "worker": worker})

    def _free_index(self) -> int:
        taken = {job.index for job in self._jobs.values()}
        for index in range(MOST_JOBS):
            if index not in taken:
                return index
        raise Refused(f"{MOST_JOBS} jobs are running, more than which a switch does not take: wait for one to end")

    def _climb(self, job: Job, ticket: Message) -> Upward:
        """Joins the switch above for all workers of the job, whose ticket becomes that of the whole tree."""
        assert self._parent is not None
        asked = {
            "type": "join",
            "job": job.name,
            "worker": self._parent.worker,
            "count": self._parent.count,
            "port": self._data_port,
            "elements": job.elements,
            "slots": job.slots,
            "leaves": job.leaves,
        }
        channel, given = call(self._parent.address, asked, self._key, _PARENT_SECONDS)
        for name in ("slots", "elements", "summands"):
            ticket[name] = int(given[name])
        with self._lock:
            job.upstream = channel
            if job.ended:
                channel.close()
        threading.Thread(target=self._watch_parent, args=(job, channel), daemon=True).start()
        return Upward(
            channel.socket.getpeername()[0],
            given["port"],
            given["job"],
            given["worker"],
            given["count"],
            given["epoch"],
            given["token"],
        )

    def _watch_parent(self, job: Job, channel: Channel) -> None:
        reason = "the switch above has ended or was restarted"
        with contextlib.suppress(OSError, Garbled):
            if message := channel.receive(None):
                reason = f"at the switch above: {message.get('reason', message)}"
        self._end(job, reason)

    def attend(self, job: Job, member: Member) -> None:
        """Until the worker leaves or its connection breaks, which ends the job."""
        reason = f"worker {member.asked.worker} ended without leaving job {job.name}"
        try:
            message = member.channel.receive(None)
        except (OSError, Garbled) as error:
            message, reason = None, f"the connection of worker {member.asked.worker} broke: {error}"
        with self._lock:
            if job.ended:
                return
            if not job.starting:  # it did not wait for the others, who still may
                del job.members[member.asked.worker]
                if not job.members:
                    del self._jobs[job.name]
                return
            if message is not None and message.get("type") == "leave" and job.index is not None:
                member.has_left = True
                self._plane.left(job.index, member.asked.worker)
                if not all(one.has_left for one in job.members.values()):
                    return
                reason = "all workers have left"
            elif message is not None:
                reason = str(message.get("reason", message))[:1000]
        self._end(job, reason)

    def _end(self, job: Job, reason: str, *, kind: str = "ended") -> None:
        with self._lock:
            if job.ended:
                return
            job.ended = True
            if self._jobs.get(job.name) is job:
                del self._jobs[job.name]
            if job.index is not None:
                self._plane.close_job(job.index)
                self._ranges.give_back(job.first_slot)
            upstream, members = job.upstream, list(job.members.values())
        if upstream is not None:
            with contextlib.suppress(OSError):
                if all(member.has_left for member in members):
                    upstream.send({"type": "leave"})
            upstream.close()
        for member in members:
            if not member.has_left:
                with contextlib.suppress(OSError):
                    member.channel.send({"type": kind, "reason": reason})

    def end_all(self, reason: str) -> None:
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            self._end(job, reason)
