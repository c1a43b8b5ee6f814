"""Finding the plan: partition, candidates, ranking by simulation; what the user pins."""

from plait.search.contradictions import limits_of
from plait.search.judge import Candidate, evaluate
from plait.search.pins import Pin, as_pins, load_pins, parse_pin
from plait.search.planner import DEFAULT_BUDGET, Answer, find_plans
from plait.search.problem import Problem
from plait.search.wishes import Wishes

__all__ = [
    "DEFAULT_BUDGET",
    "Answer",
    "Candidate",
    "Pin",
    "Problem",
    "Wishes",
    "as_pins",
    "evaluate",
    "find_plans",
    "limits_of",
    "load_pins",
    "parse_pin",
]
