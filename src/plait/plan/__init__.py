"""The plan as data, and its file."""

from plait.plan.file import load_plan, save_plan
from plait.plan.plan import DEFAULT_BUCKET_BYTES, OVERLAPS, Plan, StagePlan, even_stages
from plait.plan.rows import micro_batch_sizes, split_rows
from plait.plan.source import ProfileSource, check_has_model, profile_source
from plait.plan.validate import validate

__all__ = [
    "DEFAULT_BUCKET_BYTES",
    "OVERLAPS",
    "Plan",
    "ProfileSource",
    "StagePlan",
    "check_has_model",
    "even_stages",
    "load_plan",
    "micro_batch_sizes",
    "profile_source",
    "save_plan",
    "split_rows",
    "validate",
]
