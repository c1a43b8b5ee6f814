"""The plan as data, and its file."""

from plait.plan.file import load_plan, save_plan
from plait.plan.plan import Plan, StagePlan, even_stages, validate
from plait.plan.rows import micro_batch_sizes, split_rows

__all__ = [
    "Plan",
    "StagePlan",
    "even_stages",
    "load_plan",
    "micro_batch_sizes",
    "save_plan",
    "split_rows",
    "validate",
]
