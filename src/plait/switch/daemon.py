"""The noun `Switch`: a data plane, and the control channel by which jobs come and go."""

import contextlib
import socket
import threading
import time
from types import TracebackType

from plait.errors import PlaitError
from plait.switch.channel import Channel, Garbled, Message, greeting, is_signed
from plait.switch.datagrams import LARGEST_FRAME, elements_for, make_socket, packets_that_fit
from plait.switch.faults import Faults
from plait.switch.jobs import Refused, SlotRanges
from plait.switch.plane import Plane
from plait.switch.roster import Parent, Roster

_HANDSHAKE_SECONDS = 5.0
_MOST_CONNECTIONS = 1024


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
        self._key = key
        self._lock = threading.Lock()
        self._since = time.monotonic()
        self._closing = False
        self._connections: set[Channel] = set()
        with contextlib.ExitStack() as undo:
            try:
                self._data = undo.enter_context(make_socket(host, data_port))
                self._listener = undo.enter_context(socket.create_server((host, control_port)))
            except OSError as error:
                raise PlaitError(
                    f"a switch cannot listen on {host}, ports {control_port} (TCP) and {data_port} (UDP): {error}. "
                    "Give ports that are free and an address of this machine."
                ) from error
            self._plane = Plane(
                self._data, slots=slots, elements=elements_for(LARGEST_FRAME), faults=faults or Faults()
            )
            undo.pop_all()
        self._host = host
        self._roster = Roster(
            self._plane,
            SlotRanges(slots),
            key=key,
            data_port=self.data_port,
            fitting=lambda elements: packets_that_fit(self._data, elements),
            parent=parent,
        )
        self._plane.start(on_failure=self._roster.end_all)
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
        return {
            "type": "status",
            "seconds": time.monotonic() - self._since,
            **self._roster.status(),
            "counters": self._plane.counters(),
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
                job, member = self._roster.admit(request, channel)
            except Refused as why:
                channel.send({"type": "refused", "reason": str(why)})
            else:
                self._roster.attend(job, member)
        else:
            channel.send({"type": "refused", "reason": f"a request to {request.get('type')!r} is not known"})

    def close(self) -> None:
        """Workers notice at once: their connections close."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            connections = list(self._connections)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake the thread that accepts
        self._listener.close()
        self._accepting.join(1.0)
        self._roster.end_all("the switch is ending")
        for channel in connections:
            channel.close()
        self._plane.close()
        self._data.close()

    def __enter__(self) -> "Switch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
