"""A bed as the place where a launcher starts ranks: one in the namespace of each device, by way of the nursery."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from plait.emulate.commands import BedFailed, inside
from plait.emulate.namespaces import DATA_INTERFACE, Bed

_START_LIMIT = 60.0


class Nursery:
    """The process that ranks are forked from; a context. It can warm up while the bed is made."""

    def __enter__(self) -> "Nursery":
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "plait.emulate.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._changed = threading.Condition()
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._ended = False
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, request: dict[str, object]) -> "RankInBed":
        rank = int(str(request["rank"]))
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        with self._changed:
            self._changed.wait_for(lambda: rank in self._pids or self._ended, _START_LIMIT)
            if rank not in self._pids:
                raise BedFailed(f"rank {rank} could not be started within {_START_LIMIT:.0f} s")
            return RankInBed(self, self._pids.pop(rank))

    def code(self, pid: int, seconds: float | None = 0.0) -> int | None:
        """How a rank ended, waited for at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._codes or self._ended, seconds)
            return self._codes.get(pid, -signal.SIGKILL if self._ended else None)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._changed:
                if "code" in answer:
                    self._codes[answer["pid"]] = answer["code"]
                else:
                    self._pids[answer["rank"]] = answer["pid"]
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class RankInBed:
    """A rank as its launcher sees it (`plait.run.launch.RankProcess`)."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid

    def poll(self) -> int | None:
        return self._nursery.code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        code = self._nursery.code(self.pid, timeout)
        if code is None:
            raise subprocess.TimeoutExpired("rank", timeout or 0.0)
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and the word of it is on its way
                os.kill(self.pid, number)


@contextmanager
def _without_standard_error() -> Iterator[None]:
    """A store that opens where no names can be looked up complains, and works. What fails is still raised."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a device, for its descriptor
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class InBed:
    """`plait.run.launch.Place`: rank r runs in the namespace of the topology's device r."""

    def __init__(self, bed: Bed, nursery: Nursery, more: Mapping[str, str] | None = None) -> None:
        """`more` is for the ranks' environment."""
        self._more = more or {}
        self.host = bed.host
        self.interface = DATA_INTERFACE
        self._bed = bed
        self._nursery = nursery
        bed.own([nursery.pid])

    @contextmanager
    def listening(self) -> Iterator[None]:
        with inside(self._bed.office), _without_standard_error():
            yield

    def start(self, rank: int, arguments: Sequence[str], environment: dict[str, str], log: Path) -> RankInBed:
        started = self._nursery.start(
            {
                "rank": rank,
                "arguments": list(arguments),
                "environment": {**environment, **self._more},
                "namespace": self._bed.namespace(rank),
                "log": str(log.absolute()),
            }
        )
        self._bed.own([started.pid])
        return started
