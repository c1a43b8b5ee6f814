"""Flags that several commands share, each described once."""

from pathlib import Path
from typing import Annotated

import typer

from plait.errors import PlaitError
from plait.search import Pin, Wishes, load_pins, parse_pin

_JOB_HELP = "A built-in job (gpt2-tiny, resnet50, …), file.py, or hf:DIR."
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help=_JOB_HELP)]
OptionalJobArgument = Annotated[str | None, typer.Argument(metavar="JOB", help=_JOB_HELP)]
ProfileOption = Annotated[
    Path | None, typer.Option("--profile", help="A profile of PipeDream (text) or Piper (JSON) instead of a job.")
]
ClusterOption = Annotated[str, typer.Option("--cluster", help="local:N for N processes here, or a cluster file.")]
BatchOption = Annotated[int | None, typer.Option("--batch", min=1, help="Rows of the global batch.")]
StagesOption = Annotated[int | None, typer.Option("--stages", min=1, help="Number of pipeline stages.")]
ReplicasOption = Annotated[
    str | None, typer.Option("--replicas", help="Devices per stage, one number each, as in 3,2.")
]
MicroBatchesOption = Annotated[int | None, typer.Option("--micro-batches", min=1, help="Micro-batches per step.")]
ScheduleOption = Annotated[str | None, typer.Option("--schedule", help="gpipe or 1f1b.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seeds weights, data and dropout.")]
PinOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        help='Where to cut and where not: "cut before MODULE", "no cut after MODULE", "keep MODULE, MODULE", '
        '"keep each MODULE", "stage 0 = MODULE, MODULE". As often as you like.',
    ),
]
PinsOption = Annotated[Path | None, typer.Option("--pins", help='A TOML file with pins = ["cut before …", …].')]
PlanOption = Annotated[Path | None, typer.Option("--plan", help="A plan file; planned now if not given.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="float32, float64 or bfloat16.")]

_DTYPES = ("float32", "float64", "bfloat16")


def wishes(
    stages: int | None,
    replicas: str | None,
    micro_batches: int | None,
    schedule: str | None,
    pin: list[str] | None,
    pins: Path | None,
) -> Wishes:
    """What the flags fix."""
    return Wishes(_replicas(replicas), stages, micro_batches, schedule, _pins(pin, pins))


def _pins(pin: list[str] | None, file: Path | None) -> tuple[Pin, ...]:
    return (*(load_pins(file) if file is not None else ()), *map(parse_pin, pin or ()))


def _replicas(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise PlaitError(f"--replicas {text!r} must be one positive number per stage, separated by commas, as in 3,2.")
    return counts


def checked_dtype(dtype: str) -> str:
    if dtype not in _DTYPES:
        raise PlaitError(f"--dtype {dtype!r} is not known; choose one of {', '.join(_DTYPES)}.")
    return dtype
