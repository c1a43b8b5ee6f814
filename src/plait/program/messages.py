"""Who sends which rows to whom: a stage on 3 devices may feed one on 2.

Row ranges of sender and receiver are intersected, so every row travels once. A value without a batch
dimension is the same on all its makers; each receiver takes it whole from one of them, and its gradient
goes back the same way, to be summed there.
"""

from collections.abc import Iterator, Sequence

from plait.graph import Value
from plait.plan.rows import Span


def transfers(value: Value, senders: Sequence[Span], receivers: Sequence[Span]) -> Iterator[tuple[int, int, Span]]:
    """(sender, receiver, rows) for every message of one value and one micro-batch, in a fixed order."""
    if value.batch_dim is None:
        working = [index for index, (first, last) in enumerate(senders) if last > first]
        for receiver, span in enumerate(receivers):
            if span[1] > span[0]:
                yield working[receiver % len(working)], receiver, span
        return
    nearest = 0  # rows follow one another on both sides
    for sender, (first, last) in enumerate(senders):
        while nearest < len(receivers) and receivers[nearest][1] <= first:
            nearest += 1
        for receiver in range(nearest, len(receivers)):
            low, high = receivers[receiver]
            if low >= last:
                break
            overlap = max(first, low), min(last, high)
            if overlap[0] < overlap[1]:
                yield sender, receiver, overlap
