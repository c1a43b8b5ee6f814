"""`plait grid`: what model and batch parallelism move, by S2's formulas, and the grids that move least."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from plait.cli.options import DtypeOption, JobArgument, SeedOption, checked_dtype
from plait.cli.prepare import capture_job
from plait.cluster.units import format_seconds, parse_bandwidth, parse_seconds
from plait.cost.grid import (
    Choice,
    Grid,
    Wire,
    best_dense,
    best_per_layer,
    best_uniform,
    grids_of,
    on_one_grid,
    prefers_model,
)
from plait.errors import PlaitError
from plait.graph.graph import ITEM_BYTES
from plait.graph.layers import Layer, layers_of

_MOST = 2**20


@dataclass(frozen=True)
class _Row:
    """What one number of processes could do; pure batch only where every process has a row."""

    processes: int
    ways: dict[str, Choice]


def command(
    job: JobArgument,
    processes: Annotated[
        str, typer.Option("--processes", metavar="N,N,…", help="Numbers of processes, separated by commas.")
    ] = "8,32,128,512",
    batch: Annotated[int, typer.Option("--batch", min=1, help="Rows of the global batch.")] = 2048,
    alpha: Annotated[str, typer.Option("--alpha", metavar="TIME", help="Latency of a message.")] = "2 us",
    bandwidth: Annotated[str, typer.Option("--bandwidth", metavar="RATE", help="Of a process.")] = "6 GB/s",
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Show which grid of model x batch parallel processes moves the least of a job's weights and activations."""
    precision = checked_dtype(dtype)
    counts = _counts(processes)
    rate = parse_bandwidth(bandwidth, name="--bandwidth")
    wire = Wire(parse_seconds(alpha, name="--alpha"), ITEM_BYTES[precision] / rate)
    layers = layers_of(capture_job(job, None, batch_size=batch, dtype=precision, seed=seed).model)
    if not layers:
        raise PlaitError(f"{job} has no layer with weights to train: there is nothing to share.")
    rows = [_row(layers, count, batch, wire) for count in counts]
    if as_json:
        typer.echo(json.dumps(_data(layers, rows, batch, wire)))
    else:
        _show(layers, rows, batch, wire, job)


def _counts(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(1 <= count <= _MOST for count in found):
        raise PlaitError(
            f"--processes {text!r} must be whole numbers from 1 to {_MOST} separated by commas, as in 8,32,128."
        )
    return found


def _row(layers: Sequence[Layer], processes: int, batch: int, wire: Wire) -> _Row:
    ways = {
        "uniform": best_uniform(layers, processes, batch, wire),
        "model": on_one_grid(layers, Grid(processes, 1), batch),
        "per layer": best_per_layer(layers, processes, batch, wire),
    }
    if Grid(1, processes) in grids_of(processes, batch):
        ways["batch"] = on_one_grid(layers, Grid(1, processes), batch)
        if any(layer.kind == "convolution" for layer in layers):
            ways["dense"] = best_dense(layers, processes, batch, wire)
    return _Row(processes, ways)


def _show(layers: Sequence[Layer], rows: Sequence[_Row], batch: int, wire: Wire, job: str) -> None:
    console = Console()
    some = [row.ways for row in rows]
    titles = {
        "batch": "pure batch",
        "model": "pure model",
        "uniform": "best P_r x P_c",
        "dense": "convolutions 1 x P, dense on",
        "per layer": "a grid per layer",
    }
    shown = {way: title for way, title in titles.items() if any(way in ways for ways in some)}
    table = Table(title=escape(f"{job}, batch {batch}: communication of a step"), title_justify="left")
    table.add_column("P", justify="right", no_wrap=True)
    for title in shown.values():
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(str(row.processes), *(_cell(row, way, wire) for way in shown))
    console.print(table)
    for row in rows:
        runs = ", ".join(f"{name} {grid}" for name, grid in _runs(layers, row.ways["per layer"]))
        console.print(escape(f"a grid per layer at P = {row.processes}: {runs}"), highlight=False, soft_wrap=True)
    alone = [layer.name for layer in layers if layer.kind != "other" and prefers_model(layer, batch)]
    told = f"by themselves, {', '.join(alone)} would" if alone else "no layer by itself would"
    console.print(escape(f"{told} move less with weights split than with the batch split (3 B d < 2 |W|)"))
    console.print(
        "times less than pure batch in brackets; words are those a process moves; what passes between different grids "
        "is charged in the last column alone",
        style="dim",
    )


def _cell(row: _Row, way: str, wire: Wire) -> str:
    choice = row.ways.get(way)
    if choice is None:
        return "-"
    seconds = choice.seconds(wire)
    grids = list(dict.fromkeys(choice.grids))
    grid = f"{grids[-1]}, " if way in ("uniform", "dense") else ""
    less = f" ({row.ways['batch'].seconds(wire) / seconds:.1f})" if "batch" in row.ways and way != "batch" else ""
    return f"{grid}{format_seconds(seconds)}{less}\n{choice.traffic.words / 1e6:,.1f} M words"


def _runs(layers: Sequence[Layer], choice: Choice) -> list[tuple[str, Grid]]:
    """Layers in a row on the same grid, by the names of the first and the last."""
    named = zip(layers, choice.grids, strict=True)
    found = []
    for grid, members in groupby(((layer.name, grid) for layer, grid in named), key=lambda pair: pair[1]):
        names = [name for name, _ in members]
        found.append((names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}", grid))
    return found


def _data(layers: Sequence[Layer], rows: Sequence[_Row], batch: int, wire: Wire) -> dict[str, Any]:
    return {
        "batch_size": batch,
        "alpha_seconds": wire.alpha,
        "beta_seconds_per_word": wire.beta,
        "layers": [{**vars(layer), "prefers_model": prefers_model(layer, batch)} for layer in layers],
        "processes": [
            {
                "processes": row.processes,
                "ways": {
                    way: {
                        "seconds": choice.seconds(wire),
                        "words": choice.traffic.words,
                        "grids": [list(grid) for grid in choice.grids],
                    }
                    for way, choice in row.ways.items()
                },
            }
            for row in rows
        ],
    }
