"""Dividing rows: a batch into micro-batches, a micro-batch over replicas."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

Span = tuple[int, int]


def split_rows(rows: int, shares: Sequence[float]) -> tuple[Span, ...]:
    """`rows` in consecutive ranges proportional to `shares`, each within one row of its exact part.

    >>> split_rows(8, [1, 1])
    ((0, 4), (4, 8))
    >>> split_rows(7, [2, 1])
    ((0, 5), (5, 7))
    """
    total = sum(shares)
    edges = [0, *(round(rows * part / total) for part in accumulate(shares))]
    return tuple(pairwise(edges))


def micro_batch_sizes(batch_rows: int, micro_batches: int, smallest: int = 1) -> tuple[int, ...]:
    """Sizes of the micro-batches of a batch, as equal as possible.

    A short batch is divided into fewer of them, so that each still has `smallest` rows.

    >>> micro_batch_sizes(10, 4)
    (3, 3, 2, 2)
    >>> micro_batch_sizes(3, 4, smallest=2)
    (3,)
    """
    count = max(1, min(micro_batches, batch_rows // smallest))
    size, larger = divmod(batch_rows, count)
    return tuple(size + (index < larger) for index in range(count))
