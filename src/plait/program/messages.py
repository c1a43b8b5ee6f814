"""Who sends which rows to whom: a stage on 3 devices may feed one on 2.

Row ranges of sender and receiver are intersected, so every row travels once. A value without a batch
dimension is the same on all its makers; each receiver takes it whole from one of them, and its gradient
goes back the same way, to be summed there.

A value is whole on every device of a tensor group, so between two groups nothing is summed: the device at place i of a
group gets a value from the one at place i modulo P of the P devices that make it, and a gradient likewise.
"""

from collections.abc import Iterator, Sequence

from plait.graph import Value
from plait.plan.rows import Span
from plait.program.program import StageTable


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


def forward_messages(
    value: Value, making: StageTable, using: StageTable, micro_batch: int
) -> Iterator[tuple[int, int, Span]]:
    """(place of the sender among the ranks of its stage, place of the receiver, rows) for every message."""
    for i, j, rows in transfers(value, making.spans(micro_batch), using.spans(micro_batch)):
        for k in range(using.tensor):
            yield i * making.tensor + k % making.tensor, j * using.tensor + k, rows


def gradient_messages(
    value: Value, making: StageTable, using: StageTable, micro_batch: int
) -> Iterator[tuple[int, int, Span]]:
    """The same of the value's gradient, on its way from the stage that uses the value to the one that makes it."""
    for i, j, rows in transfers(value, making.spans(micro_batch), using.spans(micro_batch)):
        for k in range(making.tensor):
            yield j * using.tensor + k % using.tensor, i * making.tensor + k, rows
