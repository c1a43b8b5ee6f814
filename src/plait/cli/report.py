"""`plait report`: a finished run's timelines, shown again."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from plait.cli.files import write_file
from plait.cli.outcome import show_timelines
from plait.errors import PlaitError
from plait.report import timelines_svg
from plait.simulate import Timeline


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder `plait train` wrote.")],
    svg: Annotated[Path | None, typer.Option("--svg", help="Also write the timelines as a picture.")] = None,
) -> None:
    """Show the predicted and measured timeline of a finished run."""
    timelines = _load(run)
    console = Console()
    show_timelines(console, timelines)
    if svg is not None:
        write_file(svg, timelines_svg(timelines), flag="--svg")
        console.print(f"wrote {escape(str(svg))}")


def _load(run: Path) -> list[Timeline]:
    try:
        data = json.loads((run / "timelines.json").read_text())
        timelines = [Timeline.from_dict(entry) for entry in data]
        if not timelines:
            raise ValueError("no timeline in it")
        return timelines
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlaitError(
            f"{run} holds no finished run ({error}). Give the folder that `plait train --out` wrote."
        ) from error
