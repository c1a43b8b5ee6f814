"""Orders of micro-batches: one file per schedule, `recipes` for all of them by name, `sweep` for those of one's own."""

from plait.schedule.check import check_schedule
from plait.schedule.csv_file import read_csv, write_csv
from plait.schedule.lanes import lanes_text, schedule_from_lanes
from plait.schedule.recipes import RECIPES, SCHEDULES, Recipe, make_schedule, positions_for
from plait.schedule.schedule import Action, Kind, Positions, Schedule, parse_action
from plait.schedule.sweep import Swept, sweep

__all__ = [
    "RECIPES",
    "SCHEDULES",
    "Action",
    "Kind",
    "Positions",
    "Recipe",
    "Schedule",
    "Swept",
    "check_schedule",
    "lanes_text",
    "make_schedule",
    "parse_action",
    "positions_for",
    "read_csv",
    "schedule_from_lanes",
    "sweep",
    "write_csv",
]
