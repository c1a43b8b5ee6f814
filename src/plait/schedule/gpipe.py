"""GPipe: all forwards, then all backwards."""

from plait.schedule.placement import check_fit
from plait.schedule.schedule import Action, Positions, Schedule


def gpipe(positions: Positions, micro_batches: int) -> Schedule:
    """
    >>> [str(action) for action in gpipe([[0], [1]], 2).lanes[1]]
    ['1F0', '1F1', '1B0', '1B1']
    """
    check_fit("gpipe", "line", positions, micro_batches)
    return Schedule(
        "gpipe",
        tuple(
            tuple(Action(stage, kind, m) for kind in ("F", "B") for m in range(micro_batches)) for (stage,) in positions
        ),
    )
