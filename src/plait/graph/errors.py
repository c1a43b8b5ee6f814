"""What can go wrong between a model and its graph."""

from plait.errors import PlaitError


class CaptureError(PlaitError):
    """The model cannot be captured as it is."""
