"""Schedules in the CSV form of PyTorch's pipelining ("compute only"): a row per rank, a cell per action.

PyTorch's loader, `_PipelineScheduleRuntime._load_csv(file, format="compute_only")`, reads what is written here, and
what its `_dump_csv(file, format="compute_only")` writes is read here. An empty cell is a bubble and means nothing.
"""

import csv
from pathlib import Path

from plait.errors import PlaitError
from plait.schedule.check import check_schedule
from plait.schedule.clock import Lanes
from plait.schedule.schedule import Action, Schedule, parse_action


def write_csv(schedule: Schedule, path: str | Path) -> None:
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(schedule.lanes)


def read_csv(path: str | Path) -> Schedule:
    """The schedule, named after the file. Raises PlaitError where a cell or the order as a whole is not right."""
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PlaitError(
            f"{path} cannot be read as CSV: {error}. Give a file that write_csv or PyTorch wrote."
        ) from None
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    if not rows:
        raise PlaitError(f"{path} is empty; a schedule has a row of actions per rank.")
    schedule = Schedule(path.stem, tuple(_lane(path, number, row) for number, row in enumerate(rows, start=1)))
    try:
        check_schedule(schedule, positions_of(schedule.lanes), _num_micro_batches(schedule.lanes))
    except PlaitError as error:
        raise PlaitError(f"{path}: {error} (Lane n is row n+1; empty cells do not count.)") from None
    return schedule


def positions_of(lanes: Lanes) -> tuple[tuple[int, ...], ...]:
    """The stages of each lane, in order."""
    return tuple(tuple(sorted({action.stage for action in lane})) for lane in lanes)


def _num_micro_batches(lanes: Lanes) -> int:
    return max(action.micro_batch for lane in lanes for action in lane) + 1


def _lane(path: Path, row: int, cells: list[str]) -> tuple[Action, ...]:
    actions = []
    for column, cell in enumerate(cells, start=1):
        if cell.strip():
            try:
                actions.append(parse_action(cell.strip()))
            except PlaitError as error:
                raise PlaitError(
                    f"{path}, row {row}, column {column}: {error} Communication and overlapped pairs are not read: "
                    'write the file from PyTorch with format="compute_only".'
                ) from None
    return tuple(actions)
