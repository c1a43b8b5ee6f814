"""The noun `SwitchWorker`: one contributor of a job at an aggregating switch."""

import contextlib
import ctypes
import os
import threading
import time
from types import TracebackType

import torch
from torch import Tensor

from plait.errors import PlaitError
from plait.switch.channel import Channel, Garbled, call
from plait.switch.datagrams import elements_for, make_socket, path_mtu, usual_slots
from plait.switch.errors import SwitchUnavailable
from plait.switch.native import Outcome, Report, Ticket, library

__all__ = ["SwitchUnavailable", "SwitchWorker"]

_SLICE = 0.2  # seconds in C at a time, so that Ctrl-C is heard


class SwitchWorker:
    """Worker `worker` of the `count` of a job. Returns once all have joined; raises SwitchUnavailable where they do not
    within `timeout_seconds`, or the switch refuses.

    All workers must call `all_reduce` in the same order with tensors of the same size. Once it has raised, the worker
    is of no use any more: close it and join again.
    """

    def __init__(
        self,
        control: tuple[str, int],
        *,
        job: str,
        key: str,
        worker: int,
        count: int,
        timeout_seconds: float = 60.0,
        silence_seconds: float = 5.0,
        slots: int | None = None,
    ) -> None:
        """`timeout_seconds` is how long other workers may take, `silence_seconds` how long the switch may not answer;
        `slots` are asked for, and are packets under way at once: what fills most links unless given."""
        self._library = library()
        self._job, self._worker, self._count = job, worker, count
        self._timeout, self._silence = timeout_seconds, silence_seconds
        self._lock = threading.Lock()
        self._scratch = torch.empty(0)
        self._ended = ""
        self._handle: int | None = None
        self._socket = make_socket("")
        try:
            self._channel, self._ticket = self._join(control, key, slots)
        except BaseException:
            self._socket.close()
            raise
        self._handle = self._library.plait_worker_make(
            self._socket.fileno(), self._channel.socket.fileno(), ctypes.byref(self._ticket), silence_seconds
        )
        if not self._handle:
            raise MemoryError("no memory for the packets under way to the switch")

    def _join(self, control: tuple[str, int], key: str, slots: int | None) -> tuple[Channel, Ticket]:
        try:
            self._socket.connect(control)  # only to ask for the route; the data port is told later
        except OSError as error:
            raise SwitchUnavailable(f"the switch at {control[0]}:{control[1]} cannot be reached: {error}") from error
        elements = elements_for(path_mtu(self._socket))
        request = {
            "type": "join",
            "job": self._job,
            "worker": self._worker,
            "count": self._count,
            "port": self._socket.getsockname()[1],
            "elements": elements,
            "slots": usual_slots(elements) if slots is None else slots,
        }
        channel, answer = call(control, request, key, self._timeout)
        try:
            ticket = Ticket(**{name: int(answer[name]) for name, *_ in Ticket._fields_})
            self._socket.connect((channel.socket.getpeername()[0], int(answer["port"])))
        except (KeyError, ValueError, TypeError, OSError) as error:
            channel.close()
            raise SwitchUnavailable(f"the switch's answer {answer} is no ticket") from error
        return channel, ticket

    @property
    def report(self) -> Report:
        """Packets sent, received and sent again, the round trip with a full window and the time-out, in seconds."""
        report = Report()
        self._library.plait_worker_report(self._open(), ctypes.byref(report))
        return report

    @property
    def slots(self) -> int:
        return int(self._ticket.slots)

    @property
    def elements(self) -> int:
        """Values in a packet."""
        return int(self._ticket.elements)

    def all_reduce(self, tensor: Tensor, *, out: Tensor | None = None) -> None:
        """Sums a contiguous float32 CPU tensor over the job's workers, in place; bit-identical on all of them.

        With `out` the sum goes there, and `tensor` keeps its own values, so that whoever must agree with others on
        whether all have it can still go another way. Raises SwitchUnavailable within a bounded time where the switch
        cannot; `tensor` then has its own values, `out` anything.
        """
        _check(tensor)
        if out is not None:
            _check(out)
            if out.numel() != tensor.numel():
                raise PlaitError(f"the sum of {tensor.numel()} values does not go into {out.numel()}: make them equal.")
        with self._lock:
            handle = self._open()
            if self._ended:
                raise SwitchUnavailable(self._ended)
            if tensor.numel() == 0:
                return
            target = self._room(tensor.numel()) if out is None or _overlap(tensor, out) else out
            self._sum(handle, tensor, target)
            if target is not out:
                (tensor if out is None else out).view(-1).copy_(target)

    def _room(self, length: int) -> Tensor:
        if self._scratch.numel() < length:
            self._scratch = torch.empty(length, dtype=torch.float32)
        return self._scratch[:length]

    def _sum(self, handle: int, tensor: Tensor, target: Tensor) -> None:
        begin = time.monotonic()
        started = self._library.plait_worker_begin(
            handle, tensor.data_ptr(), target.data_ptr(), tensor.numel(), self._timeout
        )
        if not started:
            raise MemoryError(f"no memory for the scales of {tensor.numel()} values")
        outcome = Outcome.PENDING
        try:
            while outcome is Outcome.PENDING:
                outcome = Outcome(self._library.plait_worker_run(handle, _SLICE))
        except BaseException:  # chunks are under way: what comes back belongs to no later tensor
            self._ended = f"a sum of job {self._job} was broken off on worker {self._worker}"
            self._give_up()
            raise
        if outcome is not Outcome.DONE:
            self._ended = f"job {self._job}, worker {self._worker}: {self._reason(outcome, time.monotonic() - begin)}"
            self._give_up()
            raise SwitchUnavailable(self._ended)

    def _give_up(self) -> None:
        """Lets the switch end the job, so that no other worker waits for what will not come."""
        with contextlib.suppress(OSError):
            self._channel.send({"type": "failed", "reason": self._ended})
        self._channel.close()

    def _reason(self, outcome: Outcome, seconds: float) -> str:
        report = self.report
        absent = [worker for worker in range(self._ticket.count) if not report.here >> worker & 1]
        names = f"worker{'s' * (len(absent) > 1)} {', '.join(map(str, absent))}"
        match outcome:
            case Outcome.SILENT:
                return f"the switch has not answered for {self._silence:g} s"
            case Outcome.LATE if report.here:
                return f"{names} did not contribute within {seconds:.1f} s"
            case Outcome.LATE:
                return f"nothing came back within {seconds:.1f} s"
            case Outcome.SIZES:
                return "others sum a tensor of another size: all workers must sum the same tensors in the same order"
            case Outcome.LEFT:
                return f"{names} left the job"
            case Outcome.FAILED:
                return f"the socket failed: {os.strerror(report.error)}"
            case _:
                return self._last_words()

    def _last_words(self) -> str:
        try:
            message = self._channel.receive(0.5)
        except (OSError, Garbled) as error:
            return f"the control connection broke: {error}"
        return "the switch has ended or was restarted" if message is None else str(message.get("reason", message))

    def _open(self) -> int:
        if self._handle is None:
            raise SwitchUnavailable(f"this worker of job {self._job} is closed")
        return self._handle

    def close(self) -> None:
        """Leaves the job; the last one to leave ends it. Does nothing the second time."""
        with self._lock:
            if self._handle is None:
                return
            handle, self._handle = self._handle, None
            if not self._ended:
                with contextlib.suppress(OSError):
                    self._channel.send({"type": "leave"})
            self._channel.close()
            self._socket.close()
            self._library.plait_worker_free(handle)

    def __enter__(self) -> "SwitchWorker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._ended = self._ended or "broken off"
        self.close()


def _check(tensor: Tensor) -> None:
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise PlaitError(
            f"an aggregating switch sums contiguous float32 tensors on the CPU, and this one is {tensor.dtype} on "
            f"{tensor.device}{'' if tensor.is_contiguous() else ', not contiguous'}: copy it into one that is."
        )


def _overlap(one: Tensor, other: Tensor) -> bool:
    first, second = (tensor.data_ptr() for tensor in (one, other))
    return first < second + 4 * other.numel() and second < first + 4 * one.numel()
