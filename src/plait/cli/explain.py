"""`plait plan JOB --explain cuts`: where the model may be cut, and why not elsewhere; nothing is measured."""

import json
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from plait.cli.prepare import CapturedJob, micro_rows
from plait.cluster.units import format_bytes
from plait.errors import PlaitError
from plait.graph import Graph, Model, repeated_blocks
from plait.graph.names import names_of
from plait.graph.outline import Crossing, crossings
from plait.graph.parting import Parting, parting
from plait.graph.reasons import neighbours
from plait.report.cuts import atom_table, module_table, node_table

_FEW_ATOMS = 40  # fit a screen, one line each


@dataclass(frozen=True)
class Question:
    """What is to be explained: the cuts of a module or atom (of all if empty), or those between two of them."""

    part: str
    between: tuple[str, str] | None


def question(explain: str | None, between: tuple[str, str] | None) -> Question:
    kind, colon, part = (explain or "").partition(":")
    if between is not None and explain != "cuts":
        raise PlaitError("--between goes with --explain cuts: add that.")
    if kind != "cuts" or (colon and not part):
        raise PlaitError(f"--explain {explain!r} is not known; write cuts, cuts:MODULE for one module, grid, or plans.")
    return Question(part, between)


def explain_cuts(captured: CapturedJob, asked: Question, *, micro_batches: int | None, as_json: bool) -> None:
    """Prints the answer, for people or as one JSON object."""
    model, rows = captured.model, micro_rows(captured.batch_size, micro_batches)
    if asked.between is not None:
        found = parting(model, *asked.between)
        if as_json:
            typer.echo(json.dumps(_parting_data(model.graph, asked.between, found, rows)))
        else:
            said = escape(_told(model.graph, asked.between, found, rows))
            Console(highlight=False, soft_wrap=True).print(said)
        return
    atoms = _atoms(model.graph, asked.part)
    if as_json:
        typer.echo(json.dumps(_cuts_data(model, atoms, rows)))
    else:
        _show(Console(), model, atoms, asked.part, rows)


def _show(console: Console, model: Model, atoms: list[int], part: str, rows: int) -> None:
    graph, more = model.graph, ""
    if part and len(atoms) == 1:
        console.print(node_table(model, atoms[0]))
    elif len(atoms) <= _FEW_ATOMS:
        console.print(atom_table(graph, atoms, part or graph.name, rows))
        more = " · look into an atom: [bold]--explain cuts:ATOM[/]"
    else:
        console.print(module_table(graph, atoms, part, rows))
        more = " · look into a module: [bold]--explain cuts:MODULE[/]"
    for block in repeated_blocks(model) if not part else ():
        console.print(escape(str(block)))
    console.print(f"{len(graph.atoms)} atoms, {len(graph.atoms) - 1} legal cuts in all{more}")


def _told(graph: Graph, names: tuple[str, str], found: Parting, rows: int) -> str:
    both = " and ".join(names)
    if found.reason and found.nodes:
        which = "" if set(names) == set(found.nodes) else f", because of {' and '.join(found.nodes)}"
        return f"{both} may not be parted{which}: {found.reason}."
    if not found.cuts:
        return f"no single cut has all of {both} on different sides: they take turns in the order of the atoms."
    across = crossings(graph)
    best = min(found.cuts, key=lambda position: across[position].num_bytes(rows))
    return (
        f"{both} may be parted, by {len(found.cuts)} legal cut{'s' if len(found.cuts) > 1 else ''}. The fewest bytes "
        f"cross before {graph.atoms[best].name}: {format_bytes(across[best].row_bytes)} per row, "
        f"{format_bytes(across[best].num_bytes(rows))} for a micro-batch of {rows} rows."
    )


def _parting_data(graph: Graph, names: tuple[str, str], found: Parting, rows: int) -> dict[str, Any]:
    across = crossings(graph)
    cuts = [{"before": graph.atoms[position].name, **_cut_data(across[position], rows)} for position in found.cuts]
    why = {"nodes": found.nodes, "why": str(found.reason)} if found.reason else {}
    return {"between": names, "micro_batch_rows": rows, "cuts": cuts, **why}


def _atoms(graph: Graph, part: str) -> list[int]:
    if not part:
        return list(range(len(graph.atoms)))
    names = names_of(graph)
    return sorted({atom for name in names.matching(part) for atom in names.atoms_of(name)})


def _cuts_data(model: Model, atoms: list[int], rows: int) -> dict[str, Any]:
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
