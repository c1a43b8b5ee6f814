"""Orders of micro-batches: one file per schedule."""

from collections.abc import Callable

from plait.errors import PlaitError
from plait.schedule.gpipe import gpipe
from plait.schedule.one_f_one_b import one_f_one_b
from plait.schedule.schedule import Action, Schedule, parse_action

SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {"gpipe": gpipe, "1f1b": one_f_one_b}


def make_schedule(name: str, num_stages: int, micro_batches: int) -> Schedule:
    if name not in SCHEDULES:
        raise PlaitError(f"unknown schedule {name!r}; choose one of {', '.join(SCHEDULES)}.")
    return SCHEDULES[name](num_stages, micro_batches)


__all__ = ["SCHEDULES", "Action", "Schedule", "gpipe", "make_schedule", "one_f_one_b", "parse_action"]
