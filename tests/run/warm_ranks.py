"""Starts ranks by forking a process that has imported everything: `python warm_ranks.py`, requests on standard input.

A rank takes seconds of CPU time to import PyTorch and to capture for the first time, and tests of failures start
many. A request is a line of JSON with arguments, environment, folder and log file of one `python -m plait`; answers
are lines with its pid and later its exit code. Everything from there on is what any rank does.
"""

import json
import os
import select
import signal
import sys
from typing import Any

import torch

import plait.cli
from plait.graph import build_graph
from plait.jobs import load_job

WARM_UP = "gpt2-tiny?layers=1&width=8&heads=1&sequence=4"


def main() -> None:
    torch.set_num_threads(1)
    job = load_job(WARM_UP)
    build_graph(job.model(), next(job.batches(2, 0)))
    children: set[int] = set()
    tell({"ready": True})
    waiting = b""
    while True:
        if select.select([0], [], [], 0.02)[0]:
            read = os.read(0, 65536)
            if not read:
                break
            *lines, waiting = (waiting + read).split(b"\n")
            for line in lines:
                children.add(start(json.loads(line)))
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.discard(pid)
                tell({"pid": pid, "code": os.waitstatus_to_exitcode(status)})
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def start(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        tell({"started": pid})
        return pid
    code = 1
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = ["plait", *request["arguments"]]
        plait.cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def tell(answer: dict[str, Any]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
