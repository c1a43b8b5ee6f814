"""What all tests share."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

# Small models gain nothing from threads, and on busy cores lose minutes to them.
torch.set_num_threads(1)

# The first draw of a fresh clone builds Hypothesis' tables of characters, and machines are shared: time proves nothing.
# `make test` draws the same cases every time; `make test-all` draws new ones.
_LENIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _LENIENT, derandomize=True, database=None)
settings.register_profile("new", _LENIENT, print_blob=True)
settings.load_profile(os.environ.get("PLAIT_CASES", "same"))


def pytest_configure(config: pytest.Config) -> None:
    """Tests are of ranks on CPUs, also where there are GPUs; those of GPUs are asked for by their mark."""
    if "gpu" not in str(config.option.markexpr).replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


class WarmRanks:
    """A process that starts ranks in a blink; see tests/run/warm_ranks.py."""

    def __init__(self) -> None:
        script = Path(__file__).parent / "run" / "warm_ranks.py"
        self._process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._changed = threading.Condition()
        self._started: list[int] = []
        self._codes: dict[int, int] = {}
        self._ready = False
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()
        self._wait_for(lambda: self._ready, 60.0)

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            answer = json.loads(line)
            with self._changed:
                if "started" in answer:
                    self._started.append(answer["started"])
                elif "pid" in answer:
                    self._codes[answer["pid"]] = answer["code"]
                else:
                    self._ready = True
                self._changed.notify_all()

    def _wait_for(self, condition: Any, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    def start(self, request: dict[str, Any]) -> int:
        with self._lock:
            number = len(self._started)
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            assert self._wait_for(lambda: len(self._started) > number, 20.0)
            return self._started[number]

    def code(self, pid: int, seconds: float = 0.0) -> int | None:
        self._wait_for(lambda: pid in self._codes, seconds)
        return self._codes.get(pid)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=20)

    def popen(self, command: list[str], *, env: dict[str, str], stdout: Any, **_: Any) -> "WarmRank":
        assert command[1:3] == ["-m", "plait"]
        folder, log = Path.cwd(), Path(stdout.name).resolve()
        return WarmRank(
            self, self.start({"arguments": command[3:], "env": env, "folder": str(folder), "log": str(log)})
        )


class WarmRank:
    """One rank, as `subprocess.Popen` would show it."""

    def __init__(self, ranks: WarmRanks, pid: int) -> None:
        self._ranks, self.pid = ranks, pid

    def poll(self) -> int | None:
        return self._ranks.code(self.pid)

    def wait(self, timeout: float = 60.0) -> int:
        code = self._ranks.code(self.pid, timeout)
        if code is None:
            raise subprocess.TimeoutExpired("rank", timeout)
        return code

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@pytest.fixture
def public_profile() -> Callable[[str], Path]:
    """Finds a profile that another tool measured and that is not shipped here; skips where it is not at hand."""
    folder = Path(os.environ.get("PLAIT_PROFILES") or Path(__file__).parents[2] / "shared" / "profiles")

    def find(name: str) -> Path:
        if not (folder / name).is_file():
            repository = "msr-fiddle/piper" if name.endswith(".json") else "msr-fiddle/pipedream"
            pytest.skip(
                f"{folder / name} is absent: it is public in github.com/{repository}; name its folder in PLAIT_PROFILES"
            )
        return (folder / name).resolve()

    return find


@pytest.fixture(scope="session")
def warm_ranks_process() -> Iterator[WarmRanks]:
    ranks = WarmRanks()
    yield ranks
    ranks.close()


@pytest.fixture
def warm_ranks(warm_ranks_process: WarmRanks, monkeypatch: pytest.MonkeyPatch) -> WarmRanks:
    """The launcher starts its ranks by forking a warm process instead of running Python anew."""
    wanted = SimpleNamespace(
        Popen=warm_ranks_process.popen,
        STDOUT=subprocess.STDOUT,
        DEVNULL=subprocess.DEVNULL,
        TimeoutExpired=subprocess.TimeoutExpired,
    )
    monkeypatch.setattr("plait.run.launch.subprocess", wanted)
    return warm_ranks_process
