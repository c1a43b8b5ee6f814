"""PE, the order of S3: that of a unit-time sweep in which channels are serial resources like positions.

Every action takes one unit, and so does every transfer; the two directions of a channel take turns. With S positions
in a line that is a pipeline of 2S-1 resources, each with 2M units to do: the sweep ends after 2M + 4S-4.

S3 puts no limit on memory. The gradient of a micro-batch is back at position p 4 (S-1-p) + 2 units after its forward
started, and in two units one more comes; so more than 2 (S-p) - 1 in flight make nothing faster, and that is the limit
unless others are given.
"""

from collections.abc import Sequence

from plait.schedule.placement import check_fit
from plait.schedule.schedule import Positions, Schedule
from plait.schedule.sweep import sweep


def pe(positions: Positions, micro_batches: int, *, limits: Sequence[int] | None = None) -> Schedule:
    """
    >>> [str(action) for action in pe([[0], [1]], 4).lanes[0]]
    ['0F0', '0F1', '0F2', '0B0', '0F3', '0B1', '0B2', '0B3']
    """
    check_fit("pe", "line", positions, micro_batches)
    if limits is None:
        limits = [most_needed(position, len(positions)) for position in range(len(positions))]
    return Schedule("pe", sweep(positions, micro_batches, limits=limits, full_duplex=False).lanes)


def most_needed(position: int, num_positions: int) -> int:
    return 2 * (num_positions - position) - 1
