"""Flags that several commands share, each described once."""

from pathlib import Path
from typing import Annotated

import typer

from plait.cost import SYNCHRONISATIONS
from plait.errors import PlaitError
from plait.plan import OVERLAPS

_JOB_HELP = "A built-in job (gpt2-tiny, resnet50, …), file.py, or hf:DIR."
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help=_JOB_HELP)]
OptionalJobArgument = Annotated[str | None, typer.Argument(metavar="JOB", help=_JOB_HELP)]
ProfileOption = Annotated[
    Path | None, typer.Option("--profile", help="A profile of PipeDream (text) or Piper (JSON) instead of a job.")
]
ClusterOption = Annotated[str, typer.Option("--cluster", help="local:N for N processes here, or a cluster file.")]
BatchOption = Annotated[int | None, typer.Option("--batch", min=1, help="Rows of the global batch.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seeds weights, data and dropout.")]
PlanOption = Annotated[Path | None, typer.Option("--plan", help="A plan file; planned now if not given.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="float32, float64 or bfloat16.")]

_FIXED = "What you fix (the planner chooses the rest)"
StagesOption = Annotated[
    int | None, typer.Option("--stages", min=1, help="Number of pipeline stages.", rich_help_panel=_FIXED)
]
ReplicasOption = Annotated[
    str | None,
    typer.Option(
        "--replicas",
        help="Devices per stage, one number each, as in 3,2: replicas, unless --tensor.",
        rich_help_panel=_FIXED,
    ),
]
TensorOption = Annotated[
    int | None,
    typer.Option(
        "--tensor", min=1, metavar="N", help="Devices of a host that share each layer.", rich_help_panel=_FIXED
    ),
]
MicroBatchesOption = Annotated[
    int | None, typer.Option("--micro-batches", min=1, help="Micro-batches per step.", rich_help_panel=_FIXED)
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        metavar="NAME|FILE.csv",
        help="1f1b, gpipe, zb-h1, … or a file in the CSV notation of PyTorch's pipelining.",
        rich_help_panel=_FIXED,
    ),
]
RecomputeOption = Annotated[
    bool | None,
    typer.Option(
        "--recompute/--no-recompute",
        help="Compute forwards again in the backward, on every stage or on none.",
        show_default=False,
        rich_help_panel=_FIXED,
    ),
]
SyncOption = Annotated[
    str | None,
    typer.Option(
        "--sync",
        metavar="NAME|auto",
        help=f"How replicas sum gradients: {', '.join(SYNCHRONISATIONS)}.",
        rich_help_panel=_FIXED,
    ),
]
OverlapOption = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        metavar="|".join(OVERLAPS),
        help="How far gradient sums pass beside computation: not at all, beside the backward, or into the next step.",
        rich_help_panel=_FIXED,
    ),
]
BucketSizeOption = Annotated[
    str | None,
    typer.Option(
        "--bucket-size",
        metavar="SIZE",
        help='How much of a gradient is summed at a time, as in "8 MiB".',
        rich_help_panel=_FIXED,
    ),
]
BudgetOption = Annotated[
    float | None,
    typer.Option("--budget", min=0.0, metavar="SECONDS", help="Time to search for plans.", rich_help_panel=_FIXED),
]
PinOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        help='Where to cut and where not: "cut before MODULE", "no cut after MODULE", "keep MODULE, MODULE", '
        '"keep each MODULE", "stage 0 = MODULE, MODULE". As often as you like.',
        rich_help_panel=_FIXED,
    ),
]
PinsOption = Annotated[
    Path | None,
    typer.Option("--pins", help='A TOML file with pins = ["cut before …", …].', rich_help_panel=_FIXED),
]

_DTYPES = ("float32", "float64", "bfloat16")


def checked_dtype(dtype: str) -> str:
    if dtype not in _DTYPES:
        raise PlaitError(f"--dtype {dtype!r} is not known; choose one of {', '.join(_DTYPES)}.")
    return dtype
