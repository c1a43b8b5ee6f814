"""The C allocator of a process that trains: memory freed by one micro-batch is kept for the next.

glibc hands large blocks back to the kernel when they are freed; a training step would take the same pages
again at once, and page faults are then a tenth of its time on a CPU.
"""

import ctypes
import sys

# From <malloc.h>.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGEST_INT = (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Applies to the whole process, from now on. False where the C library is not glibc: nothing is changed."""
    if sys.platform != "linux":
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl
        return False
    settings = {_MMAP_THRESHOLD: 1 << 30, _TRIM_THRESHOLD: _LARGEST_INT, _TOP_PAD: 1 << 26}
    return all(set_option(option, value) == 1 for option, value in settings.items())
