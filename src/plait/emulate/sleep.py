"""Sleeping to a moment: the kernel is asked for all but the last of it, which is spun away."""

import time

_SPIN = 2e-4  # seconds; a timer's usual lateness. More would take the processor from other ranks


def sleep_until(deadline: float) -> float:
    """Returns at `deadline` of `time.perf_counter`, or later by the seconds it gives back."""
    left = deadline - time.perf_counter() - _SPIN
    if left > 0.0:
        time.sleep(left)
    while (now := time.perf_counter()) < deadline:
        pass
    return now - deadline
