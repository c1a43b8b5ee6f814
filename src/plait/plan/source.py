"""Plans made from another tool's profile: marked as such, since there is no model in them to train."""

from dataclasses import dataclass, replace

from plait.errors import PlaitError
from plait.plan.plan import Plan

_KEY = "profile"


@dataclass(frozen=True)
class ProfileSource:
    """The profile's file as the user named it, and the rows it was measured with where the user said so."""

    file: str
    rows: int | None

    def mark(self, plan: Plan) -> Plan:
        return replace(plan, notes={**plan.notes, _KEY: {"file": self.file, "rows": self.rows}})


def profile_source(plan: Plan) -> ProfileSource | None:
    """The profile a plan was made from; None where it was made from a model."""
    note = plan.notes.get(_KEY)
    if note is None:
        return None
    if isinstance(note, dict) and isinstance(file := note.get("file"), str):
        rows = note.get("rows")
        if rows is None or (type(rows) is int and rows >= 1):
            return ProfileSource(file, rows)
    raise PlaitError(f"the plan's note of its profile is damaged ({note!r}). Plan again with `plait plan --profile`.")


def check_has_model(plan: Plan) -> None:
    """Raises PlaitError where the plan came from a profile, which has no code to run."""
    if (source := profile_source(plan)) is not None:
        raise PlaitError(
            f"the plan was made from the profile {source.file}, which holds times and sizes but no model, so there is "
            "nothing to train. It can be shown with `plait simulate`; to train, plan a model with `plait plan JOB`."
        )
