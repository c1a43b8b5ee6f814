"""When one rank fails, all end within seconds, and one message says which, where and why."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from comparison import Case, job_case, make_case, make_plan

from plait.jobs import load_job
from plait.plan import save_plan
from plait.run.launch import RunFailed, launch
from plait.run.settings import Settings

LIMIT = 5.0  # seconds from a failure to the end of everything
STEADY = "gpt2-tiny?layers=2&width=32&heads=2&sequence=64&dropout=0"
FRAGILE = str(Path(__file__).with_name("fragile_job.py"))
IN_A_STEP = r"(in step \d+(, stage \d, micro-batch \d \([A-Z]+ s\d m\d.*\)| at [A-Z_]+.*)|before step \d+)"


class Run:
    """A run that would never end, in a thread of its own."""

    def __init__(
        self,
        folder: Path,
        case: Case,
        job: str,
        layout: tuple[int, ...],
        *,
        boundaries: list[int] | None = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> None:
        plan = make_plan(case, layout, 2, boundaries=boundaries, **options)
        save_plan(plan, folder / "plan.json")
        settings = Settings(
            job=job,
            plan=folder / "plan.json",
            steps=10**6,
            batch_size=8,
            dtype="float64",
            timeout_seconds=timeout,
        )
        settings.write(folder / "settings.json")
        self.folder = folder
        self.num_ranks = plan.num_ranks
        self.pids: list[int] = []
        self.steps = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._launch, daemon=True)
        self._thread.start()
        self._until(lambda: self.pids, 30)

    def _launch(self) -> None:
        arguments = ["worker", str(self.folder / "settings.json")]
        logs = self.folder / "logs"
        try:
            launch(arguments, self.num_ranks, logs=logs, on_message=self._hear, on_start=self.pids.extend)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test wants to see it
            self.error = error

    def _hear(self, _: int, message: dict[str, Any]) -> None:
        self.steps += message["type"] == "step"

    def _until(self, condition: Any, seconds: float) -> None:
        limit = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < limit and self.error is None, self.error or "it takes too long"
            time.sleep(0.01)

    def wait_for_step(self, step: int) -> None:
        self._until(lambda: self.steps >= step, 40)

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.pids[rank], number)

    def failure(self, seconds: float) -> str:
        """Waits for the end; the message, once it is sure that no process is left."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            for pid in filter(is_alive, self.pids):
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"not over after {seconds} s")
        assert isinstance(self.error, RunFailed), self.error
        assert not any(is_alive(pid) for pid in self.pids)
        return str(self.error)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def steady(tmp_path: Path, warm_ranks: Any) -> Run:
    """A pipeline of two stages with two replicas each, at work."""
    return Run(tmp_path, job_case(STEADY, 8), STEADY, (2, 2))


@cache
def fragile_case() -> Case:
    torch.manual_seed(0)
    job = load_job(FRAGILE)
    return make_case(job.model(), [next(job.batches(8, 0))])


def fragile(folder: Path, monkeypatch: pytest.MonkeyPatch, order: str, **options: Any) -> Run:
    """Four stages of one layer each, one of which does as ordered."""
    case = fragile_case()
    modules = [atom.module for atom in case.model.graph.atoms]
    monkeypatch.setenv("FRAGILE", order)
    boundaries = [modules.index(f"layers.{layer}") for layer in (1, 2, 3)]
    return Run(folder, case, FRAGILE, (1, 1, 1, 1), boundaries=boundaries, **options)


# Killed


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_killed_while_training_ends_the_run(steady: Run, rank: int) -> None:
    steady.wait_for_step(3)
    time.sleep(random.uniform(0, 0.5))
    steady.signal(rank, signal.SIGKILL)
    message = steady.failure(LIMIT)
    assert re.match(
        rf"rank {rank} failed, last seen {IN_A_STEP}: killed by SIGKILL\. All ranks were stopped\.", message
    )
    assert f"rank-{rank}.log" in message


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_killed_while_starting_ends_the_run(steady: Run, rank: int) -> None:
    time.sleep(random.uniform(0, 1.0))
    steady.signal(rank, signal.SIGKILL)
    message = steady.failure(LIMIT)
    assert re.match(rf"rank {rank} failed, (last seen|at its start).*: killed by SIGKILL", message)


def test_a_rank_killed_before_it_has_said_a_word_ends_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, job_case(STEADY, 8), STEADY, (1, 1))  # started anew, so it is still importing
    time.sleep(0.3)
    run.signal(1, signal.SIGKILL)
    assert re.match(r"rank 1 failed, at its start: killed by SIGKILL", run.failure(LIMIT))


@pytest.mark.parametrize(
    ("order", "where"),
    [
        # with two micro-batches, the third forward is the first of step 1
        ("2 forward 3 kill", "rank 2 failed, last seen in step 1, stage 2, micro-batch 0 (F s2 m0 rows 0:4)"),
        ("0 backward 4 kill", "rank 0 failed, last seen in step 1, stage 0, micro-batch 1 (B s0 m1 rows 0:4)"),
    ],
    ids=["forward", "backward"],
)
def test_a_death_is_told_with_its_stage_and_micro_batch(tmp_path, monkeypatch, warm_ranks, order, where) -> None:
    assert fragile(tmp_path, monkeypatch, order).failure(20).startswith(f"{where}: killed by SIGKILL")


def test_a_death_inside_a_tensor_group_ends_the_others_exchanges(tmp_path, monkeypatch, warm_ranks) -> None:
    monkeypatch.setenv("FRAGILE", "1 forward 11 kill")  # a step makes eight calls
    split = {"layers.0.weight": 0, "layers.0.bias": 0, "layers.1.weight": 1}
    run = Run(tmp_path, fragile_case(), FRAGILE, (1,), tensor=(3,), splits=[split])
    where = "rank 1 failed, last seen in step 1, stage 0, micro-batch 0 (F s0 m0 rows 0:4)"
    assert run.failure(20).startswith(f"{where}: killed by SIGKILL")


def test_a_process_that_just_leaves_is_noticed(tmp_path, monkeypatch, warm_ranks) -> None:
    message = fragile(tmp_path, monkeypatch, "1 optimizer 2 leave").failure(20)
    assert re.match(r"rank 1 failed, last seen in step 1 at STEP s1.0: the process ended without a word", message)


# Raised


@pytest.mark.parametrize(
    ("order", "where"),
    [
        (
            "2 forward 5 raise",
            r"rank 2 failed, in step 2, stage 2, micro-batch 0 \(F.*\): ValueError: forward is fragile",
        ),
        ("1 backward 6 raise", r"rank 1 failed, in step 2, stage 1, micro-batch 1 \(B.*\): ValueError: backward is fr"),
        ("1 optimizer 3 raise", r"rank 1 failed, in step 2 at STEP s1\.0: ValueError: optimizer is fragile\."),
        ("0 batches 3 raise", r"rank 0 failed, before step 2: .*fragile_job\.py, line \d+: .*batches is fragile\."),
    ],
    ids=["forward", "backward", "optimizer", "batches"],
)
def test_an_error_on_one_rank_ends_all_and_is_told(tmp_path, monkeypatch, warm_ranks, order, where) -> None:
    run = fragile(tmp_path, monkeypatch, order)
    run.wait_for_step(1)
    message = run.failure(LIMIT)
    assert re.match(where, message), message
    assert "fragile" in (tmp_path / "logs" / f"rank-{order[0]}.log").read_text(), "the traceback is in the log"


# Stuck


def test_a_stopped_rank_is_found_by_the_time_limit_of_who_waits_for_it(tmp_path: Path, warm_ranks: Any) -> None:
    run = Run(tmp_path, job_case(STEADY, 8), STEADY, (2, 2), timeout=2.0)
    run.wait_for_step(2)
    run.signal(1, signal.SIGSTOP)
    message = run.failure(2.0 + LIMIT)
    assert re.match(
        r"rank [023] failed, in step \d+(, stage| at) .*: waited for .* in vain: .*[Tt]imed? ?out", message
    ), message


def test_a_rank_stuck_in_its_model_is_found_too(tmp_path, monkeypatch, warm_ranks) -> None:
    message = fragile(tmp_path, monkeypatch, "1 forward 3 hang", timeout=2.0).failure(20)
    assert re.match(r"rank [023] failed, in step 1(, stage| at) .*: waited for .* in vain", message), message


LAUNCHER = """
import sys
from pathlib import Path
from plait.run.launch import launch

folder = Path(sys.argv[1])
launch(
    ["worker", str(folder / "settings.json")], 2, logs=folder / "logs",
    on_message=lambda rank, message: print(message["type"], flush=True),
    on_start=lambda pids: print(*pids, flush=True),
)
"""


def test_ranks_end_by_themselves_when_the_launcher_is_killed(tmp_path: Path) -> None:
    save_plan(make_plan(job_case(STEADY, 8), (1, 1), 2), tmp_path / "plan.json")
    settings = Settings(job=STEADY, plan=tmp_path / "plan.json", steps=10**6, batch_size=8, dtype="float64")
    settings.write(tmp_path / "settings.json")
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, tmp_path], stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(60, launcher.kill)
    watchdog.start()
    try:
        pids = [int(pid) for pid in launcher.stdout.readline().split()]
        assert launcher.stdout.readline() == "step\n"
        launcher.kill()
        launcher.wait(timeout=5)
        limit = time.monotonic() + LIMIT
        while any(is_running(pid) for pid in pids):
            assert time.monotonic() < limit, "orphans are left"
            time.sleep(0.05)
    finally:
        watchdog.cancel()
        launcher.kill()
        launcher.stdout.close()


def is_running(pid: int) -> bool:
    """An orphan that nobody reaps is over too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
