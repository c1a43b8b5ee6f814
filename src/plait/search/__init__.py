"""Finding the plan: partition, candidates, ranking by simulation; what the user pins."""

from plait.search.contradictions import limits_of
from plait.search.pins import Pin, as_pins, load_pins, parse_pin
from plait.search.planner import Answer, Candidate, Wishes, evaluate, find_plans

__all__ = [
    "Answer",
    "Candidate",
    "Pin",
    "Wishes",
    "as_pins",
    "evaluate",
    "find_plans",
    "limits_of",
    "load_pins",
    "parse_pin",
]
