"""The control channel: how one rank's end becomes known to all within moments, and what is told about it.

Every rank keeps one TCP connection to the control server, in the launcher on one machine or in rank 0 under
torchrun. A process that ends, for whatever reason, closes its connection; the kernel sees to that, so nothing
is polled and a slow rank is never mistaken for a dead one. The server then tells every other rank to stop
and keeps the first cause. Ranks also send where they are, their progress and their timelines this way.

Messages are JSON, one per line; the first must carry the run's token.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

ADDRESS_VARIABLE = "PLAIT_CONTROL"
ABORTED = 70  # exit code of a rank that was told to stop; EX_SOFTWARE, to tell it from a rank's own failure
_GRACE = 0.4  # seconds in which a cause may overtake its consequences
_REPORT_EVERY = 0.1
_CONNECT_LIMIT = 30.0
_CLOSING = 1.0

Message = dict[str, Any]


class ControlServer:
    """Listens to all ranks. `failure` is the first cause once something has gone wrong."""

    def __init__(
        self,
        num_ranks: int,
        on_message: Callable[[int, Message], None],
        *,
        host: str = "127.0.0.1",
        on_failure: Callable[[Message], None] = lambda failure: None,
    ) -> None:
        self.num_ranks = num_ranks
        self._on_failure = on_failure
        self.failure: Message | None = None
        self.failed = threading.Event()
        self._all_finished = threading.Event()
        self._on_message = on_message
        self._token = secrets.token_hex(16)
        self._socket = socket.create_server((host, 0))
        self._lock = threading.Lock()
        self._connections: dict[int, socket.socket] = {}
        self._positions: dict[int, str] = {}
        self._finished: set[int] = set()
        self._reports: list[Message] = []
        self._closing = False
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def address(self, host: str = "127.0.0.1") -> str:
        """What a rank needs to connect: goes into its environment."""
        return f"{host}:{self._socket.getsockname()[1]}:{self._token}"

    def wait_finished(self, seconds: float) -> bool:
        """Waits until every rank's last words have been heard."""
        return self._all_finished.wait(seconds)

    def close(self) -> None:
        self._closing = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # closing alone does not wake the thread that accepts
        self._socket.close()
        self._accepting.join(_CLOSING)

    def report(self, failure: Message) -> None:
        """Something ended badly. Waits a moment for the cause behind it, then stops every rank."""
        with self._lock:
            self._reports.append(failure)
            if len(self._reports) > 1:
                return
        time.sleep(_GRACE)
        with self._lock:
            # An error of the rank's own explains most, then a death, then a peer that was lost.
            self.failure = min(self._reports, key=lambda report: report["kind"])
            connections = list(self._connections.values())
        self._on_failure(self.failure)
        for connection in connections:
            _send(connection, {"type": "abort"})
        self.failed.set()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection: socket.socket) -> None:
        rank = -1
        with connection, connection.makefile("r", encoding="utf-8", errors="replace") as lines:
            try:
                for line in lines:
                    message = _parse(line)
                    if rank < 0:
                        rank = self._greet(message, connection)
                        if rank < 0:
                            return
                    elif message is not None:
                        self._handle(rank, message)
            except OSError:
                pass  # a connection that breaks is one that ends
        self._ended(rank)

    def _greet(self, message: Message | None, connection: socket.socket) -> int:
        if message is None or message.get("token") != self._token:
            return -1  # a stranger
        rank = int(message["rank"])
        with self._lock:
            self._connections[rank] = connection
        return rank

    def _handle(self, rank: int, message: Message) -> None:
        kind = message.get("type")
        if kind == "position":
            self._positions[rank] = message["where"]
        elif kind == "failed":
            self._finished.add(rank)
            self.report({**message, "rank": rank})
        elif kind == "finished":
            self._finished.add(rank)
            if len(self._finished) == self.num_ranks:
                self._all_finished.set()
        else:
            self._on_message(rank, message)

    def _ended(self, rank: int) -> None:
        if rank < 0 or rank in self._finished or self._closing or self.failed.is_set():
            return
        where = self._positions.get(rank, "before the first step")
        self.report({"kind": 1, "rank": rank, "where": f"last seen {where}", "why": "the process ended without a word"})


class ControlClient:
    """A rank's end of the channel. A thread sends the position and obeys the order to stop."""

    def __init__(self, address: str, rank: int, position: Callable[[], str]) -> None:
        host, port, token = address.rsplit(":", 2)
        self.rank = rank
        self._position = position
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._socket = socket.create_connection((host, int(port)), timeout=_CONNECT_LIMIT)
        self._socket.settimeout(None)
        self.send({"token": token, "rank": rank})
        threading.Thread(target=self._obey, daemon=True).start()
        threading.Thread(target=self._keep_telling, daemon=True).start()

    def send(self, message: Message) -> None:
        with self._lock:
            _send(self._socket, message)

    def tell_position(self) -> None:
        """At once: for moments after which the last word would mislead, such as the beginning of the first step."""
        self.send({"type": "position", "where": self._position()})

    def fail(self, *, where: str, why: str, is_consequence: bool) -> None:
        """Reports this rank's failure and ends the process once the server has heard it."""
        self.send({"type": "failed", "kind": 2 if is_consequence else 0, "where": where, "why": why})
        time.sleep(2.0)  # the order to stop usually comes first and ends the process
        os._exit(1)

    def finish(self) -> None:
        self.send({"type": "finished"})
        self._done.set()

    def _obey(self) -> None:
        with self._socket.makefile("r", encoding="utf-8") as lines:
            try:
                for line in lines:
                    message = _parse(line)
                    if message is not None and message.get("type") == "abort":
                        break
            except OSError:
                pass
        if not self._done.is_set():  # told to stop, or whoever started this rank is gone
            os._exit(ABORTED)

    def _keep_telling(self) -> None:
        told = ""
        while not self._done.wait(_REPORT_EVERY):
            where = self._position()
            if where != told:
                self.send({"type": "position", "where": where})
                told = where


def _send(connection: socket.socket, message: Message) -> None:
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return  # the other side is gone; its own end is reported by whoever sees it


def _parse(line: str) -> Message | None:
    try:
        message = json.loads(line)
    except json.JSONDecodeError:
        return None
    return message if isinstance(message, dict) else None
