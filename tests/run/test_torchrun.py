"""Under torchrun, as on many machines: `torchrun … -m plait train JOB --plan plan.json`."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from comparison import GPT2, fresh, job_case, make_plan

from plait.jobs import load_job
from plait.plan import save_plan
from plait.run import OneDevice


@contextmanager
def torchrun(plan: Path, *options: str, processes: int = 2) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    command += ["-m", "plait", "train", GPT2, "--plan", str(plan), "--dtype", "float64", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "COLUMNS": "200"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(60, end, [process])
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        end(process)
        process.communicate()


def end(process: subprocess.Popen[str]) -> None:
    """torchrun gives each rank a session of its own, so they are ended one by one."""
    for pid in [*ranks_of(process.pid).values(), process.pid] if process.poll() is None else []:
        os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    save_plan(make_plan(job_case(GPT2), (1, 1), 3), tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_torchrun_trains_like_one_device(plan: Path) -> None:
    with torchrun(plan, "--steps", "3") as process:
        output, errors = process.communicate(timeout=80)
    assert process.returncode == 0, errors
    losses = [float(loss) for loss in re.findall(r"^step \d  loss (\S+)", output, re.MULTILINE)]
    case, job = job_case(GPT2), load_job(GPT2)
    one, batches = OneDevice(fresh(case.model), job.optimizer), job.batches(12, 0)
    expected = [one.step(next(batches), (4, 4, 4)) for _ in range(3)]
    assert losses == pytest.approx(expected, abs=1e-4)


def test_a_rank_that_dies_under_torchrun_ends_the_run_with_a_message(plan: Path) -> None:
    with torchrun(plan, "--steps", "1000000") as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("step 2"):
            assert process.poll() is None, process.communicate()
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    assert re.search(r"rank 1 failed, last seen (in|before) step \d+.*: ", errors), errors


def ranks_of(agent: int) -> dict[int, int]:
    """Processes of the ranks that this torchrun has started, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            variables = dict(v.split(b"=", 1) for v in (entry / "environ").read_bytes().split(b"\0") if b"=" in v)
            if parent == agent:
                found[int(variables[b"RANK"])] = int(entry.name)
        except (OSError, LookupError, ValueError):
            continue
    return found
