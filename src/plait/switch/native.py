"""The C library: built beside its sources, in the folder `native`, when the package is installed, and loaded by ctypes,
which lets other threads run while a call is in C."""

import ctypes
import enum
import functools
import sys
from ctypes import POINTER, c_char_p, c_double, c_int, c_uint, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from plait.errors import PlaitError

_FOLDER, _NAME = "native", "_library"  # a folder that is no package: the library is no module


class Ticket(ctypes.Structure):
    """What a worker was told when it joined; `struct plait_ticket` in worker.h."""

    _fields_ = (
        ("token", c_uint64),
        ("epoch", c_uint32),
        ("summands", c_uint32),
        ("job", c_uint16),
        ("slots", c_uint16),
        ("elements", c_uint16),
        ("worker", c_uint8),
        ("count", c_uint8),
    )


class Report(ctypes.Structure):
    """How a worker fares; `struct plait_report` in worker.h."""

    _fields_ = (
        ("sent", c_uint64),
        ("received", c_uint64),
        ("retransmitted", c_uint64),
        ("ignored", c_uint64),
        ("here", c_uint64),
        ("round_trip", c_double),
        ("timeout", c_double),
        ("error", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


class FaultRates(ctypes.Structure):
    """Shares of packets in millionths; `struct plait_faults` in plane.h."""

    _fields_ = (("seed", c_uint64), ("loss", c_uint32), ("duplicate", c_uint32), ("reorder", c_uint32))


class Outcome(enum.IntEnum):
    """`enum plait_outcome` in worker.h."""

    DONE = 0
    PENDING = 1
    SILENT = 2
    LATE = 3
    ENDED = 4
    SIZES = 5
    LEFT = 6
    FAILED = 7


_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "plait_plane_make": (c_void_p, (c_uint32, c_uint16)),
    "plait_plane_free": (None, (c_void_p,)),
    "plait_plane_worker": (None, (c_void_p, c_uint, c_uint, c_char_p, c_uint16, c_char_p)),
    "plait_plane_parent": (
        None,
        (c_void_p, c_uint, c_char_p, c_uint16, c_uint16, c_uint8, c_uint8, c_uint32, c_uint64),
    ),
    "plait_plane_open": (None, (c_void_p, c_uint, c_uint8, c_uint32, c_uint64, c_uint32, c_uint16, c_uint16)),
    "plait_plane_close": (None, (c_void_p, c_uint)),
    "plait_plane_left": (None, (c_void_p, c_uint, c_uint)),
    "plait_plane_counters": (None, (c_void_p, POINTER(c_uint64))),
    "plait_plane_job_counters": (None, (c_void_p, c_uint, POINTER(c_uint64))),
    "plait_serve": (c_int, (c_void_p, c_int, c_int, FaultRates)),
    "plait_worker_make": (c_void_p, (c_int, c_int, POINTER(Ticket), c_double)),
    "plait_worker_free": (None, (c_void_p,)),
    "plait_worker_begin": (c_int, (c_void_p, c_void_p, c_void_p, c_uint64, c_double)),
    "plait_worker_run": (c_int, (c_void_p, c_double)),
    "plait_worker_report": (None, (c_void_p, POINTER(Report))),
}


def missing() -> str | None:
    """Why the C library cannot be used here, and the fix; None where it can."""
    if not sys.platform.startswith("linux"):
        return f"the aggregating switch uses Linux system calls, and this is {sys.platform}: use Linux"
    if sys.byteorder != "little":
        return "the aggregating switch speaks little-endian, and this processor is big-endian: use another"
    path = _path()
    if path is None:
        return (
            "the C library of the aggregating switch was not built, for want of a C compiler when Plait was installed: "
            "apt-get install gcc, then install Plait again (make setup)"
        )
    try:
        _load(path)
    except (OSError, AttributeError) as error:
        return f"the C library of the aggregating switch does not load ({error}): install Plait again (make setup)"
    return None


def library() -> ctypes.CDLL:
    """The loaded library. Raises PlaitError where `missing` says why it is not there."""
    if lack := missing():
        raise PlaitError(f"{lack}.")
    path = _path()
    assert path is not None
    return _load(path)


def _path() -> Path | None:
    folder = Path(__file__).parent / _FOLDER
    found = (folder / f"{_NAME}{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in found if path.is_file()), None)


@functools.cache
def _load(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
