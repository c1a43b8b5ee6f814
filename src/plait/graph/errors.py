"""What can go wrong between a model and its graph, and where."""

import traceback
from dataclasses import dataclass

from plait.errors import PlaitError


@dataclass(frozen=True)
class Place:
    """A module of the model, by its path; the model itself has none."""

    path: str
    kind: str

    def __str__(self) -> str:
        return f"{self.path or 'the model'} ({self.kind})"


class CaptureError(PlaitError):
    """The model cannot be captured as it is.

    Where one of its modules is at fault and could be kept in one piece instead, `at` is that module and `cause` says
    in a few words why. `branches`: it looks at values, so that its rows may depend on one another.
    """

    def __init__(self, message: str, *, at: Place | None = None, cause: str = "", branches: bool = False) -> None:
        super().__init__(message)
        self.at = at
        self.cause = cause
        self.branches = branches


def is_users(frame: traceback.FrameSummary) -> bool:
    """Is this a line of the user's (or a model library's), neither PyTorch's nor Plait's?"""
    path = frame.filename.replace("\\", "/")
    return "/torch/" not in path and not path.startswith("<") and "/plait/graph/" not in path


def user_line(frames: traceback.StackSummary) -> str:
    """The innermost frame that is neither PyTorch's nor Plait's."""
    for frame in reversed(frames):
        if is_users(frame):
            return f'file "{frame.filename}", line {frame.lineno}'
    return "line unknown"
