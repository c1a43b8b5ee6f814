"""The noun `Switch`: a data plane, and the control channel by which jobs come and go."""

import contextlib
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from types import TracebackType

from plait.errors import PlaitError
from plait.switch.channel import Channel, Garbled, Message, call, greeting, is_signed
from plait.switch.datagrams import LARGEST_FRAME, elements_for, make_socket, packets_that_fit
from plait.switch.errors import SwitchUnavailable
from plait.switch.faults import Faults
from plait.switch.jobs import MOST_LEAVES, Job, Member, Refused, Request, SlotRanges
from plait.switch.plane import MOST_JOBS, Opening, Plane, Route, Upward

_HANDSHAKE_SECONDS = 5.0
_PARENT_SECONDS = 60.0
_MOST_CONNECTIONS = 1024


@dataclass(frozen=True)
class Parent:
    """The switch above this one, which sees this one as worker `worker` of `count` in every job."""

    address: tuple[str, int]
    worker: int
    count: int


class Switch:
    """Listens from the start until it is closed. `port` is of both planes, TCP to join and UDP to sum; 0 takes any."""

    def __init__(
        self,
        *,
        key: str,
        host: str = "127.0.0.1",
        control_port: int = 0,
        data_port: int = 0,
        slots: int = 1024,
        faults: Faults | None = None,
        parent: Parent | None = None,
    ) -> None:
        if not key:
            raise PlaitError("a switch needs a job key that workers must know: give one that is not empty.")
        if slots < 1:
            raise PlaitError(f"a switch with {slots} slots can sum nothing: give it at least one.")
        self._key, self._parent = key, parent
        self._lock = threading.RLock()
        self._ranges = SlotRanges(slots)
        self._jobs: dict[str, Job] = {}
        self._epoch = secrets.randbits(31)  # one that an earlier switch of this address has not used
        self._since = time.monotonic()
        self._closing = False
        self._connections: set[Channel] = set()
        elements = elements_for(LARGEST_FRAME)
        try:
            self._data = make_socket(host, data_port)
            self._listener = socket.create_server((host, control_port))
        except OSError as error:
            raise PlaitError(
                f"a switch cannot listen on {host}, ports {control_port} (TCP) and {data_port} (UDP): {error}. "
                "Give ports that are free and an address of this machine."
            ) from error
        self._host = host
        self._plane = Plane(
            self._data, slots=slots, elements=elements, faults=faults or Faults(), on_failure=self._fail
        )
        self._accepting = threading.Thread(target=self._accept, name="plait-switch-control", daemon=True)
        self._accepting.start()

    @property
    def address(self) -> tuple[str, int]:
        """Where workers join."""
        return self._host, self._listener.getsockname()[1]

    @property
    def data_port(self) -> int:
        return int(self._data.getsockname()[1])

    def status(self) -> Message:
        with self._lock:
            return {
                "type": "status",
                "seconds": time.monotonic() - self._since,
                "slots": self._ranges.total,
                "free_slots": self._ranges.free,
                "jobs": [self._job_status(job) for job in self._jobs.values()],
                "counters": self._plane.counters(),
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

    # The control channel: one thread for each connection.

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            channel = Channel(connection)
            with self._lock:
                full = self._closing or len(self._connections) >= _MOST_CONNECTIONS
                if not full:
                    self._connections.add(channel)
            if full:
                channel.close()
            else:
                threading.Thread(target=self._converse, args=(channel,), daemon=True).start()

    def _converse(self, channel: Channel) -> None:
        try:
            with contextlib.suppress(OSError, Garbled):
                self._answer(channel)
        finally:
            with self._lock:
                self._connections.discard(channel)
            channel.close()

    def _answer(self, channel: Channel) -> None:
        hello = greeting()
        channel.send(hello)
        request = channel.receive(_HANDSHAKE_SECONDS)
        if request is None:
            return
        if not is_signed(request, self._key, hello["nonce"]):
            channel.send({"type": "refused", "reason": "the job key is wrong"})
        elif request.get("type") == "status":
            channel.send(self.status())
        elif request.get("type") == "join":
            try:
                job, member = self._join(request, channel)
            except Refused as why:
                channel.send({"type": "refused", "reason": str(why)})
            else:
                self._attend(job, member)
        else:
            channel.send({"type": "refused", "reason": f"a request to {request.get('type')!r} is not known"})

    def _join(self, message: Message, channel: Channel) -> tuple[Job, Member]:
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
                fitting = packets_that_fit(self._data, job.elements) // job.count
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
                "port": self.data_port,
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
            "port": self.data_port,
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

    def _attend(self, job: Job, member: Member) -> None:
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

    def _fail(self, why: str) -> None:
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            self._end(job, why)

    def close(self) -> None:
        """Workers notice at once: their connections close."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            connections = list(self._connections)
            jobs = list(self._jobs.values())
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake the thread that accepts
        self._listener.close()
        self._accepting.join(1.0)
        for job in jobs:
            self._end(job, "the switch is ending")
        for channel in connections:
            channel.close()
        with self._lock:
            self._plane.close()
        self._data.close()

    def __enter__(self) -> "Switch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
