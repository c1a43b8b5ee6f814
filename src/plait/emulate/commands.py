"""Talking to the kernel: iproute2 in batches, and stepping into a network namespace."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from plait.errors import PlaitError

NAMESPACES = Path("/run/netns")  # where `ip netns` keeps them
_CLONE_NEWNET = 0x40000000
_LIMIT = 60.0


class BedFailed(RuntimeError):
    """The kernel refused something the bed needs."""


def missing() -> str:
    """What this machine lacks for a test bed, and the fix; empty where nothing is."""
    if not sys.platform.startswith("linux"):
        return f"an emulated cluster is made of Linux network namespaces, and this is {sys.platform}: use Linux"
    if os.geteuid() != 0:
        return "an emulated cluster needs root to make network namespaces: run as root, e.g. with sudo"
    if tools := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"an emulated cluster needs iproute2, and {' and '.join(tools)} is missing: apt-get install iproute2"
    return ""


def check_machine() -> None:
    if lack := missing():
        raise PlaitError(f"{lack}. `plait simulate` needs none of this.")


def batch(tool: str, lines: Sequence[str], *, namespace: str | None = None, force: bool = False) -> None:
    """Gives `ip` or `tc` many commands at once; with `force` goes on behind those that fail."""
    if not lines:
        return
    words = [tool, *(["-n", namespace] if namespace else []), *(["-force"] if force else []), "-batch", "-"]
    done = subprocess.run(
        words, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=_LIMIT, check=False
    )
    if done.returncode and not force:
        place = f" in {namespace}" if namespace else ""
        raise BedFailed(f"`{tool}`{place} failed: {' '.join(done.stderr.split())[:300]}")


def enter(namespace: str) -> None:
    """Moves the calling thread into a namespace."""
    with (NAMESPACES / namespace).open() as file:
        _set_namespace(file.fileno())


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """The calling thread is in the namespace: sockets it makes, and threads it starts, are there for good."""
    with Path("/proc/thread-self/ns/net").open() as home:
        enter(namespace)
        try:
            yield
        finally:
            _set_namespace(home.fileno())


def _set_namespace(descriptor: int) -> None:
    if sys.version_info >= (3, 12):
        os.setns(descriptor, _CLONE_NEWNET)
        return
    import ctypes

    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
