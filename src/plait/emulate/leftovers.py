"""What a bed leaves behind when its owner is killed, and how the next one to start finds and clears it.

Every bed keeps a note in one folder: who owns it (a process id and when that process started, since ids come again),
its namespaces and its processes. A note whose owner is gone is cleared by the first to rename it.
"""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from plait.emulate.commands import NAMESPACES, batch

FOLDER = Path("/run/plait/beds")
PREFIX = "plait-"


@dataclass(frozen=True)
class Process:
    """`started` is in clock ticks since boot, as the kernel tells it."""

    pid: int
    started: int

    def is_alive(self) -> bool:
        return started(self.pid) == self.started


@dataclass(frozen=True)
class Note:
    """One bed, as its file tells it."""

    owner: Process
    namespaces: tuple[str, ...] = ()
    processes: tuple[Process, ...] = field(default=())

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_suffix(".tmp")
        staged.write_text(json.dumps(asdict(self)))
        staged.replace(path)


def parse_note(text: str) -> Note | None:
    """None where `text` is no note, as of a disk that was full; and names that are not a bed's are left out.

    >>> parse_note('{"owner": {"pid": 1, "started": 2}, "namespaces": ["plait-a-0", "mine"], "processes": []}')
    Note(owner=Process(pid=1, started=2), namespaces=('plait-a-0',), processes=())
    """
    try:
        data = json.loads(text)
        namespaces = tuple(name for name in map(str, data["namespaces"]) if name.startswith(PREFIX))
        return Note(_process(data["owner"]), namespaces, tuple(map(_process, data["processes"])))
    except (ValueError, TypeError, KeyError):
        return None


def _process(data: dict[str, int]) -> Process:
    return Process(int(data["pid"]), int(data["started"]))


def started(pid: int) -> int | None:
    """When the process started; None where there is none, or where it has ended and nobody has asked how."""
    try:
        # The name in parentheses may hold anything, spaces and parentheses too.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def this_process() -> Process:
    return Process(os.getpid(), started(os.getpid()) or 0)


def clear_leftovers(folder: Path = FOLDER) -> int:
    """Clears beds whose owner is gone; says how many there were."""
    cleared = 0
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            note = parse_note(path.read_text())
            if note is None or note.owner.is_alive():
                continue
            claimed = path.with_suffix(f".clearing-{os.getpid()}")
            path.rename(claimed)
        except OSError:
            continue  # somebody else is at it
        remove(note.namespaces, note.processes)
        claimed.unlink(missing_ok=True)
        cleared += 1
    return cleared


def remove(namespaces: Sequence[str], processes: Sequence[Process] = ()) -> None:
    """Ends the processes, and whatever else runs in the namespaces, and removes those."""
    there = [name for name in namespaces if (NAMESPACES / name).exists()]
    own = [process.pid for process in processes if process.is_alive()]
    for pid in [*own, *(pid for name in there for pid in _inhabitants(name))]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    batch("ip", [f"netns delete {name}" for name in there], force=True)


def _inhabitants(namespace: str) -> list[int]:
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [pid for pid in map(int, found.stdout.split()) if pid != os.getpid()]
