"""Ranks as forked processes that reach each other over gloo on the loopback interface.

What earlier tests left to be collected is collected before, and never in a rank: it may want to join threads, of which
a forked process has none.
"""

import faulthandler
import gc
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LIMIT = 60.0
_FORK = multiprocessing.get_context("fork")


class RankError(AssertionError):
    """A rank raised; the text is its traceback."""


def on_ranks(num_ranks: int, work: Callable[[int], Any], *, seconds: float = LIMIT) -> list[Any]:
    """What `work(rank)` returns on each rank (plain data). Raises what the first one raised, or that one hangs."""
    processes = []
    receivers = {}
    with tempfile.TemporaryDirectory() as folder:
        gc.collect()
        gc.freeze()
        for rank in range(num_ranks):
            receiver, sender = _FORK.Pipe(duplex=False)
            process = _FORK.Process(target=_rank, args=(work, rank, num_ranks, folder, seconds, sender), daemon=True)
            process.start()
            sender.close()
            processes.append(process)
            receivers[receiver] = rank
        gc.unfreeze()
        try:
            return _answers(receivers, Path(folder), seconds)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _answers(receivers: dict[Any, int], folder: Path, seconds: float) -> list[Any]:
    found: dict[int, Any] = {}
    while receivers:
        ready = wait(list(receivers), seconds)
        if not ready:
            stacks = "".join(path.read_text() for path in sorted(folder.glob("stack-*")))
            raise RankError(f"ranks {sorted(receivers.values())} hang\n{stacks}")
        for receiver in ready:
            rank = receivers.pop(receiver)
            try:
                kind, answer = receiver.recv()
            except EOFError:
                raise RankError(f"rank {rank} died") from None
            if kind == "failed":
                raise RankError(f"rank {rank}: {answer}")
            found[rank] = answer
    return [found[rank] for rank in sorted(found)]


def _rank(work: Callable[[int], Any], rank: int, num_ranks: int, folder: str, seconds: float, sender: Any) -> None:
    stack = (Path(folder) / f"stack-{rank}").open("w")
    faulthandler.dump_traceback_later(0.9 * seconds, file=stack)
    try:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = dist.FileStore(str(Path(folder) / "store"), num_ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=30))
        answer = work(rank)
        dist.barrier()
        sender.send(("done", answer))
    except BaseException:  # noqa: BLE001 - told to whoever waits
        sender.send(("failed", traceback.format_exc()))
    finally:
        os._exit(0)
