"""Work in processes of its own, so that whatever happens to it (an error, a hang, a crash) is one line of a table.

Processes are forked, so that what is imported once need not be imported again.
"""

import multiprocessing
import os
import re
import signal
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_FORK = multiprocessing.get_context("fork")


class Failed(Exception):
    """The work did not end well; the text says why, in one line."""


def in_a_process(work: Callable[[], Any], seconds: float) -> Any:
    """What `work` returns (plain data). Raises Failed where it raised, crashed or took longer than `seconds`."""
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_report, args=(work, sender))
    process.start()
    sender.close()
    try:
        return _answer(receiver, seconds)
    finally:
        _end(process.pid)
        process.join()


def on_ranks(num_ranks: int, work: Callable[[int], dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """What `work(rank)` returns on ranks that can reach each other over gloo: tensors and plain data."""
    with tempfile.TemporaryDirectory() as folder:
        receivers = {}
        for rank in range(num_ranks):
            receiver, sender = _FORK.Pipe(duplex=False)
            _FORK.Process(target=_report, args=(lambda rank=rank: _rank(work, rank, num_ranks, folder), sender)).start()
            sender.close()
            receivers[receiver] = rank
        while receivers:
            ready = wait(list(receivers), seconds)
            if not ready:
                raise Failed(f"no answer after {seconds:.0f} s")
            for receiver in ready:
                assert isinstance(receiver, Connection)
                _answer(receiver, 0.0)  # of the rank that fails first: the others only miss it
                del receivers[receiver]
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(num_ranks)]


def _rank(work: Callable[[int], dict[str, Any]], rank: int, num_ranks: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(Path(folder) / "store"), num_ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=30))
    torch.save(work(rank), Path(folder) / f"{rank}.pt")


def _report(work: Callable[[], Any], sender: Connection) -> None:
    if _is_first_below_the_bench():
        os.setsid()  # so that its own children can be ended with it
    try:
        sender.send(("done", work()))
    except Exception as error:  # noqa: BLE001 - handed to the process that waits
        sender.send(("failed", one_line(error)))


def _is_first_below_the_bench() -> bool:
    parent = multiprocessing.parent_process()
    return parent is not None and parent.name == "MainProcess"


def _answer(receiver: Connection, seconds: float) -> Any:
    if not receiver.poll(seconds):
        raise Failed(f"no answer after {seconds:.0f} s")
    try:
        kind, answer = receiver.recv()
    except EOFError:
        raise Failed("the process crashed") from None
    if kind == "failed":
        raise Failed(answer)
    return answer


def _end(session: int | None) -> None:
    """Ends a process and those it started."""
    assert session is not None
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        return


def one_line(error: BaseException, longest: int = 160) -> str:
    """The innermost cause, as a reader of a table wants it; of a cause without words, its kind and what it stopped."""
    outer = error
    while error.__cause__ is not None:
        outer, error = error, error.__cause__
    text = " ".join(str(error).split()) or f"{type(error).__name__}: {' '.join(str(outer).split())}"
    text = re.sub(r"(?<![\w/:])(?:/[\w.+@-]+)+/", "", text)  # where a file lies is this machine's own affair
    return text if len(text) <= longest else text[: longest - 1] + "…"
