"""`plait plan JOB --explain cuts`: where the model may be cut, and why not elsewhere; nothing is measured."""

import json
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from plait.cli.prepare import CapturedJob, micro_rows
from plait.cluster.units import format_bytes
from plait.errors import PlaitError
from plait.graph import Graph, Model
from plait.graph.names import names_of
from plait.graph.outline import Crossing, crossings
from plait.graph.parting import Parting, parting
from plait.graph.reasons import neighbours
from plait.report.cuts import atom_table, module_table, node_table

_FEW_ATOMS = 40  # fit a screen, one line each


def checked_part(what: str) -> str:
    """The module or atom that `--explain WHAT` asks for; empty for the whole model."""
    kind, colon, part = what.partition(":")
    if kind != "cuts" or (colon and not part):
        raise PlaitError(f"--explain {what!r} is not known; write cuts, or cuts:MODULE for one module.")
    return part


def explain_cuts(captured: CapturedJob, part: str, *, micro_batches: int | None, as_json: bool) -> None:
    """The atoms of `part`, its legal cuts with the bytes at each, and why nodes of an atom stay together."""
    model, rows = captured.model, micro_rows(captured.batch_size, micro_batches)
    graph, atoms = model.graph, _atoms(model.graph, part)
    if as_json:
        typer.echo(json.dumps(_as_data(model, atoms, rows)))
        return
    console = Console()
    if part and len(atoms) == 1:
        console.print(node_table(model, atoms[0]))
    elif len(atoms) <= _FEW_ATOMS:
        console.print(atom_table(graph, atoms, part or graph.name, rows))
        console.print("inside an atom: [bold]--explain cuts:ATOM[/]", end=" · ")
    else:
        console.print(module_table(graph, atoms, part, rows))
        console.print("inside a module: [bold]--explain cuts:MODULE[/]", end=" · ")
    console.print(f"{len(graph.atoms)} atoms, {len(graph.atoms) - 1} legal cuts in all")


def explain_parting(captured: CapturedJob, names: tuple[str, str], *, micro_batches: int | None, as_json: bool) -> None:
    """Whether a cut may part two parts of the model: where, or why not."""
    graph, rows = captured.model.graph, micro_rows(captured.batch_size, micro_batches)
    found = parting(captured.model, *names)
    every = crossings(graph)
    across = {position: every[position] for position in found.cuts}
    if as_json:
        cuts = [{"before": graph.atoms[p].name, **_cut_data(here, rows)} for p, here in across.items()]
        why = {"nodes": found.nodes, "why": str(found.reason)} if found.reason else {}
        typer.echo(json.dumps({"between": names, "micro_batch_rows": rows, "cuts": cuts, **why}))
        return
    Console(highlight=False, soft_wrap=True).print(escape(_told(graph, names, found, across, rows)))


def _told(graph: Graph, names: tuple[str, str], found: Parting, across: dict[int, Crossing], rows: int) -> str:
    both = " and ".join(names)
    if found.reason and found.nodes:
        which = "" if set(names) == set(found.nodes) else f", because of {' and '.join(found.nodes)}"
        return f"{both} may not be parted{which}: {found.reason}."
    if not across:
        return f"no single cut has all of {both} on different sides: they take turns in the order of the atoms."
    best = min(across, key=lambda position: across[position].num_bytes(rows))
    sent = f"{format_bytes(across[best].row_bytes)} per row, {format_bytes(across[best].num_bytes(rows))} for a"
    return (
        f"{both} may be parted, by {len(across)} legal cut{'s' if len(across) > 1 else ''}. The fewest bytes cross "
        f"before {graph.atoms[best].name}: {sent} micro-batch of {rows} rows."
    )


def _atoms(graph: Graph, part: str) -> list[int]:
    if not part:
        return list(range(len(graph.atoms)))
    names = names_of(graph)
    return sorted({atom for name in names.matching(part) for atom in names.atoms_of(name)})


def _as_data(model: Model, atoms: list[int], rows: int) -> dict[str, Any]:
    across = crossings(model.graph)
    return {
        "model": model.graph.name,
        "micro_batch_rows": rows,
        "atoms": [
            {
                "index": index,
                "name": (atom := model.graph.atoms[index]).name,
                "nodes": [{"name": n, "module": m} for n, m in zip(atom.nodes, atom.node_modules, strict=True)],
                "rules": list(atom.binds),
                "cut_before": _cut_data(across[index], rows) if index else None,
                "together": [
                    {"nodes": [reason.first.name, reason.second.name], "why": str(reason)}
                    for reason in neighbours(model, index)
                ],
            }
            for index in atoms
        ],
    }


def _cut_data(here: Crossing, rows: int) -> dict[str, int]:
    return {
        "bytes_per_row": here.row_bytes,
        "bytes_once": here.once_bytes,
        "bytes_per_micro_batch": here.num_bytes(rows),
        "tensors": here.num_values,
    }
