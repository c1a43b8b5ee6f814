"""GPipe: all forwards, then all backwards."""

from plait.schedule.schedule import Action, Positions, Schedule, only_stages


def gpipe(positions: Positions, micro_batches: int) -> Schedule:
    """
    >>> [str(action) for action in gpipe([[0], [1]], 2).lanes[1]]
    ['1F0', '1F1', '1B0', '1B1']
    """
    return Schedule(
        "gpipe",
        tuple(
            tuple(Action(stage, kind, m) for kind in ("F", "B") for m in range(micro_batches))
            for stage in only_stages("gpipe", positions)
        ),
    )
