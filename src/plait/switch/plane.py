"""The data plane in C: a thread that takes packets, adds and answers them, with the interpreter lock released."""

import ctypes
import errno
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plait.switch.faults import Faults
from plait.switch.native import library

MOST_JOBS = 64
MOST_WORKERS = 64

# In the order of `enum plait_counter` in plane.h.
COUNTERS = (
    "received",
    "summed",
    "completed",
    "sent",
    "unsent",
    "answered again",
    "asked",
    "forwarded",
    "lost on purpose",
    "bad length",
    "bad magic",
    "bad kind",
    "bad job",
    "bad epoch",
    "bad key",
    "bad worker",
    "bad slot",
    "bad version",
    "stale",
    "early",
    "differs",
)
DROPPED = COUNTERS[COUNTERS.index("bad length") :]


@dataclass(frozen=True)
class Route:
    """Where a worker is, and by which of our addresses it knows us."""

    address: str
    port: int
    source: str


@dataclass(frozen=True)
class Upward:
    """This switch as one worker of the switch above it."""

    address: str
    port: int
    job: int
    worker: int
    count: int
    epoch: int
    token: int


@dataclass(frozen=True)
class Opening:
    """What the data plane is told of a job; `index` is its place in the plane's table."""

    index: int
    epoch: int
    token: int
    first_slot: int
    slots: int
    elements: int
    workers: Sequence[Route]
    parent: Upward | None = None


class Plane:
    """Slots for `elements` integers each. Serves `data` from its start until it is closed, and then does nothing."""

    def __init__(self, data: socket.socket, *, slots: int, elements: int, faults: Faults) -> None:
        self._library = library()
        self._handle: int | None = self._library.plait_plane_make(slots, elements)
        if not self._handle:
            raise MemoryError(f"no memory for {slots} slots of {elements} integers")
        self._data, self._faults = data, faults
        self._lock = threading.Lock()
        self._stop = os.eventfd(0)
        self._counted = dict.fromkeys(COUNTERS, 0)
        self._thread: threading.Thread | None = None

    def start(self, *, on_failure: Callable[[str], None]) -> None:
        def serve() -> None:
            failed = self._library.plait_serve(self._handle, self._data.fileno(), self._stop, self._faults.rates())
            if failed:
                on_failure(f"the switch's data socket failed: {errno.errorcode.get(failed, failed)}")

        self._thread = threading.Thread(target=serve, name="plait-switch-data", daemon=True)
        self._thread.start()

    def open(self, job: Opening) -> None:
        with self._lock:
            if self._handle is None:
                return
            for worker, route in enumerate(job.workers):
                address, source = route.address.encode(), route.source.encode()
                self._library.plait_plane_worker(self._handle, job.index, worker, address, route.port, source)
            if up := job.parent:
                self._library.plait_plane_parent(
                    self._handle,
                    job.index,
                    up.address.encode(),
                    up.port,
                    up.job,
                    up.worker,
                    up.count,
                    up.epoch,
                    up.token,
                )
            self._library.plait_plane_open(
                self._handle,
                job.index,
                len(job.workers),
                job.epoch,
                job.token,
                job.first_slot,
                job.slots,
                job.elements,
            )

    def left(self, index: int, worker: int) -> None:
        """This worker will contribute no more."""
        with self._lock:
            if self._handle is not None:
                self._library.plait_plane_left(self._handle, index, worker)

    def close_job(self, index: int) -> None:
        with self._lock:
            if self._handle is not None:
                self._library.plait_plane_close(self._handle, index)

    def counters(self) -> dict[str, int]:
        """Packets since the start; those of the end once the plane is closed."""
        with self._lock:
            self._count()
        return dict(self._counted)

    def _count(self) -> None:
        if self._handle is not None:
            values = (ctypes.c_uint64 * len(COUNTERS))()
            self._library.plait_plane_counters(self._handle, values)
            self._counted = dict(zip(COUNTERS, values, strict=True))

    def job_counters(self, index: int) -> tuple[int, int]:
        """Contributions summed, chunks completed."""
        values = (ctypes.c_uint64 * 2)()
        with self._lock:
            if self._handle is not None:
                self._library.plait_plane_job_counters(self._handle, index, values)
        return values[0], values[1]

    def close(self) -> None:
        os.eventfd_write(self._stop, 1)
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._count()
            if self._handle is not None:
                self._library.plait_plane_free(self._handle)
                self._handle = None
                os.close(self._stop)
