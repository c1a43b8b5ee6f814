"""Orders of micro-batches: one file per schedule."""

from collections.abc import Callable

from plait.errors import PlaitError
from plait.schedule.gpipe import gpipe
from plait.schedule.one_f_one_b import one_f_one_b
from plait.schedule.schedule import Action, Positions, Schedule, parse_action

SCHEDULES: dict[str, Callable[[Positions, int], Schedule]] = {"gpipe": gpipe, "1f1b": one_f_one_b}


def make_schedule(name: str, positions: Positions, micro_batches: int) -> Schedule:
    """The order of actions at every position of a pipeline. Raises PlaitError where `name` does not fit them."""
    if name not in SCHEDULES:
        raise PlaitError(f"unknown schedule {name!r}; choose one of {', '.join(SCHEDULES)}.")
    return SCHEDULES[name](positions, micro_batches)


__all__ = ["SCHEDULES", "Action", "Positions", "Schedule", "gpipe", "make_schedule", "one_f_one_b", "parse_action"]
