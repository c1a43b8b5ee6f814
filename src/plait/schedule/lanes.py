"""Schedules as a plan's file holds them: one line of text per position."""

from collections.abc import Iterator, Sequence

from plait.errors import PlaitError
from plait.schedule.check import check_schedule
from plait.schedule.schedule import Action, Positions, Schedule, parse_action


def lanes_text(schedule: Schedule) -> tuple[str, ...]:
    """
    >>> lanes_text(Schedule("mine", ((Action(0, "F", 0), Action(0, "B", 0)),)))
    ('0F0,0B0',)
    """
    return tuple(",".join(map(str, lane)) for lane in schedule.lanes)


def schedule_from_lanes(name: str, lanes: Sequence[str], positions: Positions, micro_batches: int) -> Schedule:
    """The schedule in `lanes`, without the micro-batches that a short last batch does not have.

    Dropping a micro-batch takes nothing away that another waits for. Raises PlaitError where the lanes are not right.
    """
    schedule = Schedule(
        name,
        tuple(
            tuple(action for action in _parsed(number, lane) if action.micro_batch < micro_batches)
            for number, lane in enumerate(lanes)
        ),
    )
    check_schedule(schedule, positions, micro_batches)
    return schedule


def _parsed(number: int, lane: str) -> Iterator[Action]:
    for index, text in enumerate(lane.split(",") if lane.strip() else ()):
        try:
            yield parse_action(text.strip())
        except PlaitError as error:
            raise PlaitError(f"lane {number}, action {index}: {error}") from None
