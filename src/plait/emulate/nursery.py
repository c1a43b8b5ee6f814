"""Forks ranks off a process that has imported everything: `python -m plait.emulate.nursery`.

To import PyTorch takes a rank seconds of a processor, and a bed has more ranks than the machine has processors. A
request is a line of JSON on standard input; answers are lines with a rank's process id and later its exit code. Ranks
end when this process does, and this process ends with its standard input, which is with whoever started it.
"""

import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from plait.emulate.commands import enter
from plait.emulate.task import Task
from plait.emulate.worker import run_emulated_rank

_DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this, who then ends it
    gc.freeze()
    waiting = b""
    children: dict[int, int] = {}  # by descriptor
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd:
                    selector.unregister(key.fd)
                    _bury(children.pop(key.fd), key.fd)
                    continue
                read = os.read(0, 65536)
                if not read:
                    return  # and the ranks with it
                *lines, waiting = (waiting + read).split(b"\n")
                for line in lines:
                    pid = _fork(json.loads(line))
                    descriptor = os.pidfd_open(pid)
                    children[descriptor] = pid
                    selector.register(descriptor, selectors.EVENT_READ)


def _fork(request: dict[str, Any]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        _tell({"rank": request["rank"], "pid": pid})
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() == parent:
            _become(request)
            run_emulated_rank(Task.read(Path(request["arguments"][0])))
            code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - a child must never go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _become(request: dict[str, Any]) -> None:
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(request["environment"])
    with contextlib.suppress(OSError):  # a container may forbid it
        # Ranks sleep most of the time. Woken before whatever else the machine computes, they are on time.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    enter(request["namespace"])


def _bury(pid: int, descriptor: int) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(descriptor)
    _tell({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(answer: dict[str, int]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
