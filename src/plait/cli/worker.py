"""`plait worker`: one rank, started by `plait train` or `plait verify`."""

from pathlib import Path

from plait.run.settings import Settings
from plait.run.worker import run_worker


def command(settings: Path) -> None:
    """Run one rank of a plan (internal)."""
    run_worker(Settings.read(settings))
