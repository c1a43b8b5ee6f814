"""Finding the plan: partition, candidates, ranking by simulation; what the user pins."""

from plait.search.contradictions import limits_of
from plait.search.judge import Candidate, evaluate
from plait.search.pins import Pin, as_pins, load_pins, parse_pin
from plait.search.planner import DEFAULT_BUDGET, Answer, find_plans
from plait.search.problem import Problem
from plait.search.shared_layers import judged_exactly, with_shared_layers, with_stages_of
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
    "judged_exactly",
    "limits_of",
    "load_pins",
    "parse_pin",
    "with_shared_layers",
    "with_stages_of",
]
