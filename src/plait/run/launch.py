"""Starting the ranks of a plan on this machine, and ending all of them when one ends badly.

torch.distributed is the engine and torchrun the launcher across machines; on one machine this spares the
user the typing and says what went wrong in one paragraph.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import torch.distributed as dist

from plait.run.control import ABORTED, ADDRESS_VARIABLE, ControlServer, Message

_STOP_LIMIT = 3.0


class RunFailed(RuntimeError):
    """A rank failed; the message names it, its stage and micro-batch, and the original error."""


class RankProcess(Protocol):
    """A rank as its launcher sees it: the part of `subprocess.Popen` that is used."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class Place(Protocol):
    """Where ranks run: how they are started there, and how they reach their launcher and one another.

    `host` is the launcher's address as ranks see it, `interface` the network interface of their messages.
    """

    host: str
    interface: str

    def listening(self) -> AbstractContextManager[object]:
        """Sockets made inside can be reached at `host`."""
        ...

    def start(self, rank: int, arguments: Sequence[str], environment: dict[str, str], log: Path) -> RankProcess: ...


class ThisMachine:
    """Ranks are processes beside the launcher."""

    def __init__(self) -> None:
        self.host = "127.0.0.1"
        # Loopback: the only interface that is always there and reaches all ranks of one machine.
        self.interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")

    def listening(self) -> AbstractContextManager[object]:
        return nullcontext()

    def start(self, rank: int, arguments: Sequence[str], environment: dict[str, str], log: Path) -> RankProcess:
        del rank
        with log.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "plait", *arguments],
                env={**os.environ, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )


def launch(
    arguments: Sequence[str],
    num_ranks: int,
    *,
    logs: Path,
    on_message: Callable[[int, Message], None],
    on_start: Callable[[list[int]], None] = lambda pids: None,
    place: Place | None = None,
) -> None:
    """Runs `python -m plait ARGUMENTS` once per rank and waits for all; raises RunFailed when one fails."""
    place = place or ThisMachine()
    with place.listening():
        server = ControlServer(num_ranks, on_message, host=place.host)
        # The launcher keeps the store, as torchrun's agent does, so that no rank has to guess a free port.
        store = dist.TCPStore(place.host, 0, is_master=True, wait_for_workers=False)
    logs.mkdir(parents=True, exist_ok=True)
    processes: list[RankProcess] = []
    try:
        for rank in range(num_ranks):
            environment = _environment(rank, num_ranks, store.port, server.address(place.host), place)
            processes.append(place.start(rank, arguments, environment, logs / f"rank-{rank}.log"))
        on_start([process.pid for process in processes])
        _wait(processes, server, logs)
        if not server.wait_finished(_STOP_LIMIT):
            raise RunFailed(f"all ranks ended, but not all said how it went. See {logs}.")
    finally:
        _stop(processes)
        server.close()


def _environment(rank: int, num_ranks: int, port: int, control: str, place: Place) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": place.host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": place.interface,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        ADDRESS_VARIABLE: control,
    }


def _wait(processes: Sequence[RankProcess], server: ControlServer, logs: Path) -> None:
    while not server.failed.wait(0.05):
        codes = [process.poll() for process in processes]
        if all(code == 0 for code in codes):
            return
        bad = [rank for rank, code in enumerate(codes) if code not in (None, 0, ABORTED)]
        if bad and server.failure is None:
            # A rank that dies before it has greeted the server is seen only here.
            server.report({"kind": 1, "rank": bad[0], "where": "at its start", "why": _tail(logs, bad[0])})
    failure = server.failure
    assert failure is not None
    rank = failure["rank"]
    raise RunFailed(
        f"rank {rank} failed, {failure['where']}: {_reason(processes[rank], failure)}. All ranks were stopped. "
        f"See {logs / f'rank-{rank}.log'}."
    )


def _reason(process: RankProcess, failure: Message) -> str:
    """The original error; for a process killed by a signal, that signal."""
    if failure["kind"] == 1:
        try:
            code = process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            code = 0
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
    return str(failure["why"]).rstrip(".")


def _tail(logs: Path, rank: int) -> str:
    lines = (logs / f"rank-{rank}.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "the process ended without a word"


def _stop(processes: Sequence[RankProcess]) -> None:
    """Ends what still runs: asked first, made to after a moment."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    limit = time.monotonic() + _STOP_LIMIT
    for process in processes:
        try:
            process.wait(timeout=max(limit - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
