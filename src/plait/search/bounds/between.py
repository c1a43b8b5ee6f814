"""Gradient sums that nothing of their stage can hide, where they may go on in the next step (overlap `full`).

Take the buckets that a stage's forward first reads in atoms up to x, and S(x), the seconds of their sums. In a row of
steps these sums lie between the time at which its last backward in one step has come down to x, for none of these
gradients is final sooner, and the time at which its first forward in the next step comes to x, which needs the last of
them. Where backwards are in halves, all sums come after the start of the last W. Of that time a rank computes no more
than B(x) (or W) and F(x), the longest that its backwards and forwards take below x. So

    A = max over x of S(x) - B(x) - F(x)

is exposed: besides all its forwards and backwards a rank needs A in every step.
"""

from collections import defaultdict
from collections.abc import Sequence

from plait.search.bounds.sums import Due, Sum
from plait.simulate.times import Times


def exposed_seconds(
    times: Times, sums: Sequence[Sum], stage: int, rank: int, rows: int, weights: float | None
) -> float:
    """A over one rank of a stage, which takes at most so many rows, and so long for a W where backwards are in halves.

    On hosts whose ranks share cores it is nothing, for there computations may take longer.
    """
    device = times.plan.cluster.devices[times.plan.devices[rank]]
    if any(host.name == device.host and host.compute_slots is not None for host in times.plan.cluster.hosts):
        return 0.0
    own = [
        [(due.atoms[found.stages.index(stage)], due) for due in found.due]
        for found in sums
        if stage in found.stages and rank in found.ranks
    ]
    start, exposed = times.program.stages[stage].start, 0.0
    for until in {atom for dues in own for atom, _ in dues}:
        beside = times.phase(rank, stage, "forward", start, until, rows)
        if weights is None:
            beside += times.phase(rank, stage, "backward", start, until, rows)
        else:
            beside += weights
        exposed = max(exposed, _longest(own, until) - beside)
    return exposed


def _longest(sums: Sequence[Sequence[tuple[int, Due]]], until: int) -> float:
    """Seconds of what is due by an atom: sums over the same ranks follow one another, and so do those on a channel."""
    busy: defaultdict[int, float] = defaultdict(float)
    longest = 0.0
    for dues in sums:
        due = max((found for found in dues if found[0] <= until), key=lambda found: found[0], default=None)
        if due is not None:
            longest = max(longest, due[1].seconds)
            for channel, seconds in due[1].hops:
                busy[channel] += seconds
    return max([longest, *busy.values()])
