"""`plait switch`: an aggregating switch on this machine, and what one is doing."""

import threading
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from plait.cluster.units import format_seconds
from plait.emulate.testbed import stopped_by_signals
from plait.errors import PlaitError
from plait.run.launch import RunFailed
from plait.switch.channel import call
from plait.switch.daemon import Switch
from plait.switch.errors import SwitchUnavailable
from plait.switch.plane import DROPPED
from plait.switch.roster import Parent

app = typer.Typer(help="Run a switch that sums gradients as they pass, or ask one what it is doing.")

_PORT = 4790
KeyOption = Annotated[
    str,
    typer.Option(
        "--job-key", envvar="PLAIT_JOB_KEY", help="What workers must know to join; better given in PLAIT_JOB_KEY."
    ),
]


@app.callback(invoke_without_command=True)
def command(
    context: typer.Context,
    key: KeyOption = "",
    ports: Annotated[
        str, typer.Option("--ports", metavar="CONTROL[,DATA]", help="TCP port to join at, UDP port to sum at.")
    ] = str(_PORT),
    listen: Annotated[str, typer.Option("--listen", metavar="ADDRESS", help="This machine's address.")] = "0.0.0.0",  # noqa: S104 - a switch is there for others
    slots: Annotated[int, typer.Option("--slots", help="Slots for all jobs together; a job asks for 64.")] = 1024,
    parent: Annotated[
        str | None,
        typer.Option(
            "--parent", metavar="HOST:PORT,I/N", help="The switch above, and which of its N children this is."
        ),
    ] = None,
) -> None:
    """Sum gradients of many workers as they pass, until stopped."""
    if context.invoked_subcommand is not None:
        return
    console = Console(highlight=False)
    control, data = _ports(ports)
    above = None if parent is None else _parent(parent)
    if not key:
        raise PlaitError("a switch needs a job key that workers must know: set PLAIT_JOB_KEY or give --job-key.")
    with (
        stopped_by_signals(),
        Switch(key=key, host=listen, control_port=control, data_port=data, slots=slots, parent=above) as switch,
    ):
        console.print(
            f"switch on {switch.address[0]}, TCP {switch.address[1]}, UDP {switch.data_port}, {slots} slots; "
            "Ctrl-C ends it",
            soft_wrap=True,
        )
        threading.Event().wait()


@app.command("status")
def status(
    place: Annotated[str, typer.Argument(metavar="HOST[:PORT]", help="Where the switch listens.")] = "127.0.0.1",
    key: KeyOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """What a running switch is doing: jobs, slots, packets, and what it dropped and why."""
    address = _address(place, default=_PORT)
    try:
        channel, found = call(address, {"type": "status"}, key, 5.0)
    except SwitchUnavailable as error:
        raise RunFailed(f"{error}. Is `plait switch` running there, with this job key?") from error
    channel.close()
    console = Console(highlight=False)
    if as_json:
        console.print_json(data=found)
    else:
        _show(console, place, found)


def _show(console: Console, place: str, found: dict[str, Any]) -> None:
    console.print(
        f"switch {escape(place)}: up {format_seconds(found['seconds'])}, {found['free_slots']} of {found['slots']} "
        "slots free"
    )
    if found["jobs"]:
        table = Table("job", "state", "workers", "slots", "epoch", "contributions", "chunks summed")
        for job in found["jobs"]:
            here = f"{len(job['workers'])} of {job['count']}"
            figures = (job[name] for name in ("slots", "epoch", "summed", "completed"))
            table.add_row(escape(job["name"]), job["state"], here, *(f"{figure:,}" for figure in figures))
        console.print(table)
    counters: dict[str, int] = found["counters"]
    done = ", ".join(f"{name} {count:,}" for name, count in counters.items() if name not in DROPPED and count)
    dropped = ", ".join(f"{name} {counters[name]:,}" for name in DROPPED if counters[name])
    console.print(f"packets: {done or 'none yet'}")
    console.print(f"dropped: {dropped or 'none'}")


def _ports(text: str) -> tuple[int, int]:
    numbers = text.split(",")
    try:
        found = [int(number) for number in numbers]
    except ValueError:
        found = []
    if len(found) not in (1, 2) or not all(0 <= port < 1 << 16 for port in found):
        raise PlaitError(f"--ports {text!r} is no port or two: write 4790, or 4790,4791 for TCP and UDP apart.")
    return found[0], found[-1]


def _address(text: str, *, default: int | None = None) -> tuple[str, int]:
    host, colon, port = text.partition(":")
    if host and not colon and default is not None:
        return host, default
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise PlaitError(f"{text!r} is no address of a switch: write HOST:PORT, as in 10.0.0.1:4790.")
    return host, int(port)


def _parent(text: str) -> Parent:
    place, _, position = text.partition(",")
    worker, _, count = position.partition("/")
    if not worker.isdigit() or not count.isdigit() or not int(worker) < int(count):
        raise PlaitError(
            f"--parent {text!r} does not say which of how many children this switch is: write HOST:PORT,I/N, as in "
            "10.0.0.1:4790,0/4 for the first of four."
        )
    return Parent(_address(place), int(worker), int(count))
