"""Processes that keep the other cores busy while costs are measured.

Ranks on one machine share its memory bandwidth, caches and clock: a core with busy neighbours is slower than one
with idle ones. So what a rank takes is measured beside neighbours.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# A mixture like training's: matrix products and sweeps over memory. It ends by itself when its parent is gone.
_LOAD = """
import os, torch
parent = os.getppid()
torch.set_num_threads(1)
matrix, vector = torch.randn(384, 384), torch.randn(1 << 20)
print("ready", flush=True)
while os.getppid() == parent:
    for _ in range(20):
        matrix @ matrix
        vector.mul(1.5).add_(vector)
"""
_STOP_LIMIT = 5.0


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """`count` cores are kept busy inside the context."""
    processes = [
        subprocess.Popen([sys.executable, "-c", _LOAD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # it prints when it starts working, or ends and closes the pipe
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait(timeout=_STOP_LIMIT)
            assert process.stdout is not None
            process.stdout.close()
