"""`plait plan JOB --explain grid`: what devices that share layers would split, what stays whole and why."""

import json
import re
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from plait.cli.prepare import Prepared
from plait.cluster.units import format_bytes
from plait.errors import PlaitError
from plait.graph import Graph
from plait.graph.sharding import Sharding

_SHOWN = 20  # kinds of parameters that are split alike, and of reasons


def explain_grid(prepared: Prepared, *, as_json: bool) -> None:
    """Prints it for every number of devices that may share layers, in detail for the smallest."""
    found = sorted(prepared.costs.shardings, key=lambda one: one.degree)
    if not found:
        raise PlaitError(
            f"no host of {prepared.cluster.name} has devices that could share layers. Use hosts of two devices or more."
        )
    if as_json:
        typer.echo(json.dumps([_data(prepared.graph, one) for one in found]))
        return
    console = Console()
    table = Table(title=f"{escape(prepared.graph.name)} on devices that share its layers", title_justify="left")
    for name in ("devices", "parameters split", "bytes of them", "exchanged per row", "work of a device"):
        table.add_column(name, justify="right")
    for one in found:
        table.add_row(*_cells(prepared, one))
    console.print(table)
    detailed = found[0]
    console.print(f"on {detailed.degree} devices:", highlight=False)
    _list(console, [f"{name} split along dimension {dim}" for name, dim in detailed.split.items()])
    _list(console, [f"{name} is whole: {why}" for name, why in detailed.whole.items()])


def _cells(prepared: Prepared, one: Sharding) -> tuple[str, ...]:
    graph = prepared.graph
    trained = [p for p in graph.parameters if p.trainable]
    split = [p for p in trained if p.name in one.split]
    held, all_bytes = sum(p.num_bytes for p in split), sum(p.num_bytes for p in trained)
    return (
        str(one.degree),
        f"{len(split)} of {len(trained)}",
        f"{format_bytes(held)}, {held / max(all_bytes, 1):.0%}",
        format_bytes(sum(found.bytes_per_row for found in one.collectives)),
        f"{_work(prepared, one):.0%}",
    )


def _work(prepared: Prepared, one: Sharding) -> float:
    """The part of a row's time that the busiest device takes."""
    kind = prepared.cluster.devices[0].kind.name
    atoms = prepared.costs.atoms[kind]
    seconds = [atom.forward_per_row + atom.backward_per_row for atom in atoms]
    total = sum(seconds)
    return sum(part * whole for part, whole in zip(one.work, seconds, strict=True)) / total if total else 1.0


def _list(console: Console, lines: Sequence[str]) -> None:
    """One line for those that differ in numbers alone, with how many there are."""
    alike: dict[str, list[str]] = {}
    for line in lines:
        alike.setdefault(re.sub(r"\d+", "N", line), []).append(line)
    for first, *others in list(alike.values())[:_SHOWN]:
        more = f" (and {len(others)} more like it)" if others else ""
        console.print(escape(f"  {first}{more}"), highlight=False, soft_wrap=True)
    if len(alike) > _SHOWN:
        console.print(f"  … and {len(alike) - _SHOWN} more; all of them with --json", highlight=False)


def _data(graph: Graph, one: Sharding) -> dict[str, Any]:
    return {
        "model": graph.name,
        "devices": one.degree,
        "split": dict(one.split),
        "whole": dict(one.whole),
        "exchanges": [{**vars(found), "atom": graph.atoms[found.atom].name} for found in one.collectives],
        "work": list(one.work),
        "kept": list(one.kept),
    }
