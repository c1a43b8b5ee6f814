"""The command line: one small file per command."""

import sys

import typer
from rich.console import Console
from rich.markup import escape

from plait.cli import doctor, emulate, grid, plan, profile, report, simulate, switch, train, verify, worker
from plait.errors import PlaitError
from plait.run.launch import RunFailed

app = typer.Typer(
    help="Plans the fastest synchronous way to train a PyTorch model on given machines, and runs it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("plan")(plan.command)
app.command("train")(train.command)
app.command("simulate")(simulate.command)
app.command("emulate")(emulate.command)
app.command("verify")(verify.command)
app.command("grid")(grid.command)
app.command("profile")(profile.command)
app.command("report")(report.command)
app.add_typer(switch.app, name="switch")
app.command("doctor")(doctor.command)
app.command("worker", hidden=True)(worker.command)


def main() -> None:
    """Bad input ends with one paragraph and code 2, a failed run with code 1; only defects show a traceback."""
    try:
        app()
    except PlaitError as error:
        _say(str(error))
        sys.exit(2)
    except RunFailed as error:
        _say(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        _say("stopped")
        sys.exit(130)


def _say(message: str) -> None:
    # Escaped: a message may quote TOML tables, paths or lists, whose brackets are no markup.
    Console(stderr=True, highlight=False, soft_wrap=True).print("[bold red]error:[/]", escape(message))
