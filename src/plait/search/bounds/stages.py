"""The fewest devices that can finish within T, where a device holds one stage.

A stage of atoms i..j-1 on r devices needs

    T >= head(i) + t(i, j) / (rate of the best r) + n(i, j) sum(r),

head(i) being what one row alone takes before stage work can begin (and after it has ended, where backwards stay
whole: the last backward of the stage is followed by that of all atoms before it), t its work, n its parameter bytes
and sum(r) the seconds a byte takes among r replicas. With r(i, j) the smallest r that meets it, stages are disjoint,
so a plan needs at least

    V(L),   V(j) = min over i of V(i) + r(i, j),   V(0) = 0

devices. The least T with V(L) <= D is found by bisection, from below. O(L^2 log D) for each T.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
PRECISION = 1e-3


def least_seconds(head: Array, seconds: Array, num_bytes: Array, rates: Array, sums: Array, low: float) -> float:
    """At least `low`. `head` and `seconds` are by atom, `rates` and `sums` by number of replicas, from one on."""
    done, held = (np.concatenate([[0.0], np.cumsum(each)]) for each in (seconds, num_bytes))
    if not low > 0 or _devices(low, head, done, held, rates, sums) <= len(rates):
        return low
    high = low + head.max() + seconds.sum() / rates[0]
    while high > low * (1 + PRECISION):
        middle = (low + high) / 2
        if _devices(middle, head, done, held, rates, sums) <= len(rates):
            high = middle
        else:
            low = middle
    return low


def _devices(limit: float, head: Array, done: Array, held: Array, rates: Array, sums: Array) -> float:
    """V(L); infinite where some atom is in no stage that ends in time."""
    fewest = np.full(len(done), np.inf)
    fewest[0] = 0.0
    for end in range(1, len(done)):
        needed = _replicas(limit - head[:end], done[end] - done[:end], held[end] - held[:end], rates, sums)
        fewest[end] = (fewest[:end] + needed).min()
    return float(fewest[-1])


def _replicas(left: Array, work: Array, num_bytes: Array, rates: Array, sums: Array) -> Array:
    """The smallest number of replicas with work / rate + bytes x sum <= left; more replicas never sum faster."""
    count = np.zeros(len(left), dtype=np.int64)
    while True:
        free = left - num_bytes * sums[count]
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(free > 0, work / free, np.inf)
        wanted = np.maximum(np.searchsorted(rates, rate * (1 - 1e-12)), count)
        hopeless = wanted >= len(rates)
        wanted = np.where(hopeless, count, wanted)
        if (wanted == count).all():
            return np.where(hopeless, np.inf, count + 1.0)
        count = wanted
