"""`plait switch` and `plait switch status`, as a user sees them."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from command_line import CommandLine

from plait.switch import native
from plait.switch.daemon import Switch
from plait.switch.worker import SwitchWorker

needs_library = pytest.mark.skipif(native.missing() is not None, reason=str(native.missing()))


@needs_library
def test_a_switch_below_another_runs_until_it_is_stopped() -> None:
    with Switch(key="k") as spine:
        _run_below(spine)


def _run_below(spine: Switch) -> None:
    words = [sys.executable, "-m", "plait", "switch", "--ports", "0", "--listen", "127.0.0.1"]
    words += ["--parent", f"127.0.0.1:{spine.address[1]},0/1"]
    environment = {**os.environ, "PLAIT_JOB_KEY": "k"}
    running = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert running.stdout is not None
        found = re.search(r"TCP (\d+)", running.stdout.readline())
        assert found
        with SwitchWorker(("127.0.0.1", int(found[1])), job="job", key="k", worker=0, count=1) as worker:
            tensor = torch.arange(5.0)
            worker.all_reduce(tensor)
            assert torch.equal(tensor, torch.arange(5.0))
        assert spine.status()["counters"]["completed"] == 2
        running.send_signal(signal.SIGTERM)
        _, error = running.communicate(timeout=20)
        assert running.returncode == 130 and "Traceback" not in error
    finally:
        running.kill()
        running.wait()


@needs_library
def test_status_says_what_a_switch_does(plait: CommandLine) -> None:
    with Switch(key="k") as switch:
        place = f"127.0.0.1:{switch.address[1]}"
        idle = plait("switch", "status", place, "--job-key", "k")
        assert idle.code == 0 and "1024 of 1024 slots free" in idle.out and "dropped: none" in idle.out
        with SwitchWorker(switch.address, job="gradients", key="k", worker=0, count=1) as worker:
            worker.all_reduce(torch.ones(10))
            busy = plait("switch", "status", place, "--job-key", "k")
            told = plait("switch", "status", place, "--job-key", "k", "--json")
        assert "gradients" in busy.out and "1 of 1" in busy.out and "completed 2" in busy.out
        assert json.loads(told.out)["jobs"][0]["summed"] == 2
        wrong = plait("switch", "status", place, "--job-key", "x")
        assert wrong.code == 1 and "the job key is wrong" in wrong.error


def test_status_where_no_switch_is(plait: CommandLine) -> None:
    outcome = plait("switch", "status", "127.0.0.1:1", "--job-key", "k")
    assert outcome.code == 1 and "cannot be reached" in " ".join(outcome.error.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--job-key", "k", "--ports", "x"], "4790,4791"),
        (["--job-key", "k", "--ports", "70000"], "4790,4791"),
        (["--ports", "0"], "PLAIT_JOB_KEY"),
        (["--job-key", "k", "--parent", "10.0.0.1:4790"], "HOST:PORT,I/N"),
        (["--job-key", "k", "--slots", "0"], "at least one"),
        (["status", "nowhere:port", "--job-key", "k"], "HOST:PORT"),
    ],
)
def test_bad_input(plait: CommandLine, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str) -> None:
    monkeypatch.delenv("PLAIT_JOB_KEY", raising=False)
    outcome = plait("switch", *words)
    assert outcome.code == 2 and said in " ".join(outcome.error.split()), outcome.error
    assert "Traceback" not in outcome.error
