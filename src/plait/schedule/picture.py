"""A schedule as a picture in text: one row per position, one cell per unit of time."""

from plait.schedule.clock import play
from plait.schedule.schedule import Kind, Schedule


def _units(stage: int, kind: Kind) -> int:  # noqa: ARG001 - stages are alike here
    """A whole backward is two halves."""
    return 2 if kind == "B" else 1


def picture(schedule: Schedule) -> str:
    """With F, I and W of one unit and B of two (`=` its second), transfers of none; `.` is a unit of nothing.

    >>> from plait.schedule import make_schedule
    >>> print(picture(make_schedule("1f1b", [[0], [1]], 2)))
    position 0  0F0 0F1 .   .   0B0 =   .   0B1 =
    position 1  .   1F0 1B0 =   1F1 1B1 =
    """
    starts = play(schedule.lanes, seconds=_units).starts
    width = max(len(str(action)) for lane in schedule.lanes for action in lane) + 1
    rows = []
    for position, (lane, begins) in enumerate(zip(schedule.lanes, starts, strict=True)):
        cells: list[str] = []
        for action, start in zip(lane, begins, strict=True):
            cells += ["."] * (int(start) - len(cells))
            cells += [str(action), *["="] * (_units(action.stage, action.kind) - 1)]
        rows.append(f"position {position}  " + "".join(cell.ljust(width) for cell in cells).rstrip())
    return "\n".join(rows)
