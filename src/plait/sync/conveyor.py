"""Sums that pass through several phases, chunk after chunk: while one chunk is in a phase the next is in that before.

Each phase is a thread that takes chunks in the order in which they were added, so phases of all ranks meet in the same
order, and a sum goes on whether or not somebody waits for it. A thread ends when there has been nothing to do for a
while. A chunk's failure is its sum's, and that of all sums behind it: what ranks agreed on no longer holds.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence

Chunk = Sequence[Callable[[], None]]  # what to do in each phase
_LINGER_SECONDS = 0.05


class Job:
    """One sum. `done` hears of its end: of nothing, or of what went wrong."""

    def __init__(self, chunks: Sequence[Chunk], done: Callable[[Exception | None], None]) -> None:
        self.chunks = chunks
        self.done = done


class Conveyor:
    def __init__(self, num_phases: int) -> None:
        self._phases = [_Phase(self, number, number == num_phases - 1) for number in range(num_phases)]
        self._adding = threading.Lock()
        self.failure: Exception | None = None

    def add(self, job: Job) -> None:
        with self._adding:  # jobs do not mix
            for number in range(len(job.chunks)):
                self._phases[0].put(job, number)

    def passed(self, phase: int, job: Job, number: int) -> None:
        if phase + 1 < len(self._phases):
            self._phases[phase + 1].put(job, number)


class _Phase:
    def __init__(self, conveyor: Conveyor, number: int, is_last: bool) -> None:
        self._conveyor = conveyor
        self._number = number
        self._is_last = is_last
        self._waiting: deque[tuple[Job, int]] = deque()
        self._changed = threading.Condition()
        self._working = False

    def put(self, job: Job, number: int) -> None:
        with self._changed:
            self._waiting.append((job, number))
            self._changed.notify()
            if not self._working:
                self._working = True
                # A daemon: a process that fails must not wait for a sum that never comes.
                threading.Thread(target=self._work, daemon=True, name=f"plait-sum-{self._number}").start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._changed.wait_for(lambda: bool(self._waiting), _LINGER_SECONDS):
                    self._working = False
                    return
                job, number = self._waiting.popleft()
            self._do(job, number)

    def _do(self, job: Job, number: int) -> None:
        conveyor = self._conveyor
        if conveyor.failure is None:
            try:
                job.chunks[number][self._number]()
            except Exception as error:  # noqa: BLE001 - it is raised where the sum is waited for
                conveyor.failure = conveyor.failure or error
        conveyor.passed(self._number, job, number)
        if self._is_last and number == len(job.chunks) - 1:
            job.done(conveyor.failure)
