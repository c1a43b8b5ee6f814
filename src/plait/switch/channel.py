"""The control channel between a switch and whoever joins or asks: JSON lines on TCP.

The switch opens with a nonce; every request carries an HMAC of nonce and request under the job key, so that the key
itself never travels. Who joined keeps the connection: the kernel closes it when the process ends, however it ends.
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from typing import Any

from plait.switch.errors import SwitchUnavailable

PROTOCOL = 1
_LONGEST_LINE = 1 << 20
_KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}  # a host that vanished is noticed in 11 s

Message = dict[str, Any]


class Garbled(Exception):
    """The other side does not speak this protocol."""


class Channel:
    """One connection, either side of it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._waiting = b""

    def send(self, message: Message) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float | None) -> Message | None:
        """The next message; None where the other side has closed. Raises TimeoutError, OSError, Garbled."""
        self.socket.settimeout(seconds)
        while b"\n" not in self._waiting:
            if len(self._waiting) > _LONGEST_LINE:
                raise Garbled("a line does not end")
            read = self.socket.recv(65536)
            if not read:
                return None
            self._waiting += read
        line, _, self._waiting = self._waiting.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Garbled(f"not JSON: {line[:80]!r}") from error
        if not isinstance(message, dict):
            raise Garbled(f"not an object: {line[:80]!r}")
        return message

    def close(self) -> None:
        # Shutting down wakes whoever reads here; closing alone would not.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def greeting() -> Message:
    return {"type": "hello", "protocol": PROTOCOL, "nonce": secrets.token_hex(16)}


def sign(request: Message, key: str, nonce: str) -> Message:
    return {**request, "proof": _proof(request, key, nonce)}


def is_signed(request: Message, key: str, nonce: str) -> bool:
    rest = {name: value for name, value in request.items() if name != "proof"}
    return hmac.compare_digest(str(request.get("proof", "")).encode(), _proof(rest, key, nonce).encode())


def _proof(request: Message, key: str, nonce: str) -> str:
    text = nonce + json.dumps(request, sort_keys=True)
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def call(address: tuple[str, int], request: Message, key: str, seconds: float) -> tuple[Channel, Message]:
    """Connects, asks, and returns the open channel with the answer. Raises SwitchUnavailable."""
    place = f"the switch at {address[0]}:{address[1]}"
    try:
        connection = socket.create_connection(address, timeout=min(seconds, 10.0))
    except OSError as error:
        raise SwitchUnavailable(f"{place} cannot be reached: {error}") from error
    channel = Channel(connection)
    try:
        hello = channel.receive(min(seconds, 10.0))
        if hello is None or hello.get("type") != "hello" or hello.get("protocol") != PROTOCOL:
            raise Garbled(f"it says {hello} instead of a greeting of protocol {PROTOCOL}")
        channel.send(sign(request, key, str(hello["nonce"])))
        answer = channel.receive(seconds)
    except TimeoutError as error:
        channel.close()
        raise SwitchUnavailable(f"{place} did not answer a request to {request['type']} in {seconds:g} s") from error
    except (OSError, Garbled, KeyError) as error:
        channel.close()
        raise SwitchUnavailable(f"{place} does not speak Plait's protocol: {error}") from error
    if answer is None or answer.get("type") == "refused":
        channel.close()
        raise SwitchUnavailable(f"{place} refused: {(answer or {}).get('reason', 'it hung up')}")
    return channel, answer
