"""Finding the plan: partition, candidates, ranking by simulation."""

from plait.search.planner import Answer, Candidate, Wishes, evaluate, find_plans

__all__ = ["Answer", "Candidate", "Wishes", "evaluate", "find_plans"]
