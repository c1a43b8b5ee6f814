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
from contextlib import ExitStack
from pathlib import Path

import torch.distributed as dist

from plait.run.control import ABORTED, ADDRESS_VARIABLE, ControlServer, Message

_STOP_LIMIT = 3.0


class RunFailed(RuntimeError):
    """A rank failed; the message names it, its stage and micro-batch, and the original error."""


def launch(
    arguments: Sequence[str],
    num_ranks: int,
    *,
    logs: Path,
    on_message: Callable[[int, Message], None],
    on_start: Callable[[list[int]], None] = lambda pids: None,
) -> None:
    """Runs `python -m plait ARGUMENTS` once per rank and waits for all; raises RunFailed when one fails."""
    server = ControlServer(num_ranks, on_message)
    # The launcher keeps the store, as torchrun's agent does, so that no rank has to guess a free port.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    logs.mkdir(parents=True, exist_ok=True)
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as files:
        try:
            for rank in range(num_ranks):
                log = files.enter_context((logs / f"rank-{rank}.log").open("wb"))
                environment = _environment(rank, num_ranks, store.port, server.address())
                command = [sys.executable, "-m", "plait", *arguments]
                processes.append(
                    subprocess.Popen(
                        command, env=environment, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
                    )
                )
            on_start([process.pid for process in processes])
            _wait(processes, server, logs)
            if not server.wait_finished(_STOP_LIMIT):
                raise RunFailed(f"all ranks ended, but not all said how it went. See {logs}.")
        finally:
            _stop(processes)
            server.close()


def _environment(rank: int, num_ranks: int, port: int, control: str) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        # Loopback: the only interface that is always there and reaches all ranks of one machine.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        ADDRESS_VARIABLE: control,
    }


def _wait(processes: list[subprocess.Popen[bytes]], server: ControlServer, logs: Path) -> None:
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


def _reason(process: subprocess.Popen[bytes], failure: Message) -> str:
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


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
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
