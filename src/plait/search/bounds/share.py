"""The least a group of devices must send to do a given part of the work.

Let a group X do the fraction x(a) in [0, 1] of the rows of atom a: of its N rows, x(a) N inside. Each direction of
the links that leave X carries at least

    C(x) = sum over boundaries b of |x(b) - x(b-1)| N d(b)  +  sum over atoms a with 0 < x(a) < 1 of w(a),

d(b) being the bytes a row of the values that atom b-1 makes, atom b reads and gradients flow back through (rows that
leave go out and their gradients come in, rows that enter the other way round), and w(a) the bytes of the trainable
parameters of a: replicas inside and outside need each other's sums, however they are summed.

`least_bytes` finds, for every amount of work sum x(a) t(a), the least C(x) of all x but x = 1 and x = 0. For a given
set of shared atoms that is a linear programme with one constraint besides the bounds of x, so some best x has at most
one value theta between 0 and 1. The dynamic program walks the atoms with a state per level (0, theta, 1) and per amount
of work so far. To cover all theta and all amounts with finitely many, everything is rounded to X's advantage: theta to
intervals (the lower end where it costs, the upper end where it works), work to bins along its running sum, so that a
stretch of equal level is off by at most one bin. Each change of level may move by one bin, for nothing: so some path
of the program is never off by more than two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MOST_BINS, FEWEST_BINS, ATOMS_TIMES_BINS = 1600, 200, 200_000  # for about 0.3 s
OFF = 2  # bins by which the work of a path may be wrong


@dataclass(frozen=True)
class Shares:
    """`sent[v, j, n]`: least v C1 + C2 each way for n bins of work, give or take `OFF`, for each view v.

    Theta may be anywhere in interval j: of those bins the part `kept[j]` is work for sure, and besides them there may
    be `hidden[j]` bins.
    """

    num_bins: int
    sent: Array
    kept: Array
    hidden: Array


def least_bytes(
    seconds: Array, boundary_bytes: Array, parameter_bytes: Array, num_groups: int, views: Sequence[float]
) -> Shares:
    """`boundary_bytes[b]` are N d(b) for the boundary before atom b. O(atoms x bins)."""
    num_bins = max(FEWEST_BINS, min(MOST_BINS, ATOMS_TIMES_BINS // len(seconds)))
    low, high = (np.tile(ends, len(views)) for ends in _thetas(num_groups))
    weight = np.repeat(views, len(low) // len(views))[:, None]
    done = np.concatenate([[0.0], np.cumsum(seconds)]) / max(float(seconds.sum()), 1e-300)
    whole = np.rint(done * num_bins).astype(np.int64)
    # A theta of the first interval is taken for no work at all, so that changes from and to it, which may cost
    # nothing, gain nothing; one of the last is taken for everything.
    counted = np.where(low > 0, high, 0.0)
    parts = np.rint(np.outer(counted, done) * num_bins).astype(np.int64)
    size = num_bins + 1 + OFF
    none, some, full = (np.full((len(low), size), np.inf) for _ in range(3))
    some[:, 0] = 0.0
    bins = np.arange(size)
    for atom, (sent, parameters) in enumerate(zip(boundary_bytes, parameter_bytes, strict=True)):
        if atom:
            none, some, full = _change(none, some, full, sent * weight, low, high, int(whole[atom]))
        full = _worked(full, bins - (whole[atom + 1] - whole[atom]))
        some = _worked(some, bins - (parts[:, atom + 1] - parts[:, atom])[:, None]) + parameters
    sent = np.minimum(np.minimum(none, some), full)
    thetas = len(low) // len(views)
    kept = np.where(low > 0, low / high, 1.0)
    hidden = np.where(low > 0, 0.0, high * num_bins)
    return Shares(num_bins, sent.reshape(len(views), thetas, size), kept[:thetas], hidden[:thetas])


def _change(
    none: Array, some: Array, full: Array, sent: Array, low: Array, high: Array, all_before: int
) -> tuple[Array, Array, Array]:
    """Levels may change at a boundary, also from nothing or from everything until here."""
    up, down = low[:, None] * sent, (1 - high)[:, None] * sent
    kept_none, kept_full = none.copy(), full.copy()
    kept_none[:, 0] = kept_full[:, all_before] = 0.0
    from_none, from_some, from_full = _spread(kept_none), _spread(some), _spread(kept_full)
    alike_none, alike_full = (low == 0)[:, None], (high == 1)[:, None]  # nothing to round
    return (
        np.minimum(none, np.minimum(np.where(alike_none, some, from_some) + up, from_full + sent)),
        np.minimum(
            some,
            np.minimum(
                np.where(alike_none, kept_none, from_none) + up, np.where(alike_full, kept_full, from_full) + down
            ),
        ),
        np.minimum(full, np.minimum(from_none + sent, np.where(alike_full, some, from_some) + down)),
    )


def _spread(costs: Array) -> Array:
    """One bin of work more or less for nothing."""
    spread = costs.copy()
    spread[:, 1:] = np.minimum(spread[:, 1:], costs[:, :-1])
    spread[:, :-1] = np.minimum(spread[:, :-1], costs[:, 1:])
    return spread


def _worked(costs: Array, source: NDArray[np.int64]) -> Array:
    """By bins of work after an atom, of which `source` were there before."""
    before = np.take_along_axis(costs, np.broadcast_to(np.maximum(source, 0), costs.shape), axis=1)
    return np.where(source >= 0, before, np.inf)


def _thetas(num_groups: int) -> tuple[Array, Array]:
    """Ends of the intervals: fine where an even share would be. Below half of that theta counts as nothing, because
    changes to a small theta would cost little and move the work by bins all the same."""
    edges = [0.0, 0.4 / num_groups]
    while edges[-1] * 1.5 < 0.6:
        edges.append(edges[-1] * 1.5)
    edges += [0.6, 0.7, 0.8, 0.9, 1.0]
    return np.array(edges[:-1]), np.array(edges[1:])
