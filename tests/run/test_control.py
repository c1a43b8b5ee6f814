"""The control channel: who is listened to, whose failure is told, and what a rank does when told to stop."""

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from plait.run.control import ABORTED, ADDRESS_VARIABLE, ControlClient, ControlServer
from plait.run.worker import _control

LIMIT = 10.0
OWN_ERROR, CONSEQUENCE = 0, 2


class Rank:
    """A rank's end of the wire, spoken by hand."""

    def __init__(self, server: ControlServer, rank: int, *, token: str | None = None) -> None:
        host, port, right = server.address().split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=LIMIT)
        self.say({"token": right if token is None else token, "rank": rank})

    def say(self, message: dict[str, Any]) -> None:
        self.shout(json.dumps(message).encode() + b"\n")

    def shout(self, raw: bytes) -> None:
        self.socket.sendall(raw)

    def fail(self, kind: int, why: str) -> None:
        self.say({"type": "failed", "kind": kind, "where": "in step 3", "why": why})

    def heard(self) -> list[dict[str, Any]]:
        """What the server has said, once it has said something or hung up."""
        return [json.loads(line) for line in self.socket.recv(4096).decode().splitlines()]

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def messages() -> list[tuple[int, dict[str, Any]]]:
    return []


@pytest.fixture
def server(messages: list[tuple[int, dict[str, Any]]]) -> Iterator[ControlServer]:
    server = ControlServer(2, lambda rank, message: messages.append((rank, message)))
    yield server
    server.close()


def wait_until(condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < limit, "it never happened"
        time.sleep(0.01)


def test_a_stranger_without_the_token_is_ignored(server, messages) -> None:
    stranger = Rank(server, 0, token="guess")
    assert stranger.socket.recv(10) == b"", "the server should have hung up"
    listener = socket.create_connection(stranger.socket.getpeername(), timeout=LIMIT)
    listener.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert listener.recv(10) == b""
    Rank(server, 1).say({"type": "step", "loss": 1.0})
    wait_until(lambda: messages)
    assert messages == [(1, {"type": "step", "loss": 1.0})]
    assert not server.failed.is_set()


def test_a_closed_server_leaves_no_thread_that_listens() -> None:
    before = set(threading.enumerate())
    server = ControlServer(1, lambda rank, message: None)
    assert set(threading.enumerate()) - before
    server.close()
    assert not set(threading.enumerate()) - before


def test_garbage_between_messages_is_ignored(server, messages) -> None:
    rank = Rank(server, 1)
    for garbage in (b"\xff\xfe\x00garbage\n", b"{\n", b"[1, 2]\n", b'"word"\n', b"\n", b"null\n"):
        rank.shout(garbage)
    rank.say({"type": "step", "loss": 2.0})
    wait_until(lambda: messages)
    assert messages == [(1, {"type": "step", "loss": 2.0})]
    assert not server.failed.is_set()


def test_a_cause_that_comes_a_moment_later_wins_over_its_consequence(server) -> None:
    told: list[dict[str, Any]] = []
    server._on_failure = told.append
    first, second = Rank(server, 0), Rank(server, 1)
    first.fail(CONSEQUENCE, "waited in vain")
    time.sleep(0.1)
    second.fail(OWN_ERROR, "ZeroDivisionError: division by zero")
    assert server.failed.wait(LIMIT)
    assert (server.failure["rank"], server.failure["why"]) == (1, "ZeroDivisionError: division by zero")
    assert [failure["rank"] for failure in told] == [1], "one message and no more"
    assert first.heard() == second.heard() == [{"type": "abort"}]


def test_of_two_causes_the_first_is_told(server) -> None:
    first, second = Rank(server, 0), Rank(server, 1)
    second.fail(OWN_ERROR, "the first")
    time.sleep(0.1)
    first.fail(OWN_ERROR, "the second")
    assert server.failed.wait(LIMIT)
    assert (server.failure["rank"], server.failure["why"]) == (1, "the first")


def test_a_death_without_a_word_is_told_with_the_last_position(server) -> None:
    survivor, victim = Rank(server, 0), Rank(server, 1)
    victim.say({"type": "position", "where": "in step 7 at F s1 m2 rows 0:4"})
    time.sleep(0.05)
    survivor.fail(CONSEQUENCE, "Connection closed by peer")
    victim.close()
    assert server.failed.wait(LIMIT)
    assert server.failure["rank"] == 1
    assert server.failure["where"] == "last seen in step 7 at F s1 m2 rows 0:4"
    assert "ended without a word" in server.failure["why"]
    assert survivor.heard() == [{"type": "abort"}]


def test_ranks_that_finish_may_leave(server) -> None:
    first, second = Rank(server, 0), Rank(server, 1)
    first.say({"type": "finished"})
    first.close()
    assert not server.wait_finished(0.1)
    second.say({"type": "finished"})
    second.close()
    assert server.wait_finished(LIMIT)
    assert not server.failed.wait(0.6), "leaving after the last word is no failure"


def test_all_is_quiet_after_the_server_closes(server) -> None:
    rank = Rank(server, 0)
    rank.say({"type": "position", "where": "somewhere"})
    server.close()
    rank.close()
    assert not server.failed.wait(0.6)


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Codes with which this process would have ended."""
    codes: list[int] = []
    monkeypatch.setattr("plait.run.control.os._exit", codes.append)
    return codes


def test_a_client_tells_where_it_is_and_what_it_wants_to_say(server, messages, exits) -> None:
    client = ControlClient(server.address(), 1, lambda: "in step 0 at LOSS")
    client.send({"type": "step", "loss": 0.5})
    wait_until(lambda: server._positions.get(1) == "in step 0 at LOSS")
    client.finish()
    assert messages == [(1, {"type": "step", "loss": 0.5})]
    assert exits == []


def test_a_client_ends_its_process_when_another_rank_fails(server, exits) -> None:
    client = ControlClient(server.address(), 0, lambda: "")
    Rank(server, 1).fail(OWN_ERROR, "out of memory")
    wait_until(lambda: exits)
    assert exits == [ABORTED]
    client.finish()


def test_a_client_ends_its_process_when_the_launcher_is_gone(exits) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    client = ControlClient(f"127.0.0.1:{listener.getsockname()[1]}:token", 0, lambda: "")
    connection, _ = listener.accept()
    connection.close()
    listener.close()
    wait_until(lambda: exits)
    assert exits == [ABORTED]
    client.finish()


def test_a_client_that_has_finished_does_not_mind_an_order_to_stop(server, exits) -> None:
    ControlClient(server.address(), 0, lambda: "").finish()
    other = Rank(server, 1)
    other.fail(OWN_ERROR, "late")
    assert other.heard() == [{"type": "abort"}]
    assert exits == []


def test_a_client_reports_its_own_failure_and_ends(server, exits) -> None:
    client = ControlClient(server.address(), 1, lambda: "")
    why = "ValueError: no"
    reporter = threading.Thread(
        target=lambda: client.fail(where="in step 2 at STEP s0.0", why=why, is_consequence=False)
    )
    reporter.start()
    assert server.failed.wait(LIMIT)
    reporter.join(LIMIT)
    assert {key: server.failure[key] for key in ("rank", "where", "why", "kind")} == {
        "rank": 1,
        "where": "in step 2 at STEP s0.0",
        "why": why,
        "kind": OWN_ERROR,
    }
    assert 1 in exits
    client.finish()


def test_the_rank_that_hosts_the_server_waits_for_the_others_last_words(monkeypatch, exits) -> None:
    """As under torchrun: a rank that found the server gone would take that for the end of a failed run."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}.items():
        monkeypatch.setenv(name, value)
    order: list[str] = []

    def slow_rank() -> None:
        client = ControlClient(store.get("plait/control").decode(), 1, lambda: "")
        time.sleep(0.5)
        order.append("rank 1 finishes")
        client.finish()

    other = threading.Thread(target=slow_rank)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with _control(0, lambda: "", None) as client:
            other.start()
            client.finish()
        order.append("the server is gone")
    finally:
        signal.signal(signal.SIGTERM, handler)
    other.join(LIMIT)
    assert order == ["rank 1 finishes", "the server is gone"]
    assert exits == []
