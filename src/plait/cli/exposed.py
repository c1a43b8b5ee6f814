"""Exposed communication told: the table by rank and cause, and what would hide it."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from plait.report import exposed_note, exposed_rows, exposed_table, exposed_warning
from plait.simulate import Timeline


def show_exposed(console: Console, timelines: Sequence[Timeline]) -> None:
    """Nothing where nothing is exposed."""
    rows = exposed_rows(timelines)
    if rows:
        console.print(exposed_table(rows))
    for timeline in timelines:
        if warning := exposed_warning(timeline):
            console.print(f"[yellow]warning:[/] {escape(warning)}", highlight=False)
        if note := exposed_note(timeline):
            console.print(f"note: {escape(note)}", style="dim", highlight=False)
