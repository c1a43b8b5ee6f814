"""Where a model may be cut: tables of its modules, of its atoms, and of the nodes inside one atom."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from plait.cluster.units import format_bytes
from plait.graph import Graph, Model
from plait.graph.build import module_path
from plait.graph.outline import Crossing, Section, crossings, sections
from plait.graph.reasons import neighbours


@dataclass(frozen=True)
class _Row:
    """A section's cells, without its name: rows of repeated modules are equal."""

    atoms: str
    per_row: str
    micro_batch: str
    inside: str
    bound: str


def module_table(graph: Graph, atoms: Sequence[int], within: str, rows: int) -> Table:
    """One line per module; a run of modules that differ only in their number is told once."""
    crossing = crossings(graph)
    found = [
        (section.module or "(the model itself)", _row(graph, crossing, section, rows))
        for section in sections(graph, atoms, within)
    ]
    table = _table(f"Modules of {within or graph.name}, and the bytes that cross a cut")
    table.add_column("module", overflow="fold")
    for name in ("atoms", "before it,\nper row", f"per {rows}\nrows", "best inside,\nper row"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for (_, row), run in groupby(found, key=lambda pair: (_pattern(pair[0]), pair[1])):
        first, *others = [name for name, _ in run]
        cells = first, row.atoms, row.per_row, row.micro_batch, row.inside, row.bound
        table.add_row(*map(escape, cells))
        if others:
            names = others[0] if len(others) == 1 else f"{others[0]} … {others[-1]}"
            table.add_row(escape(names), "", "", "", "", escape(f"as {first}"), style="dim")
    return table


def atom_table(graph: Graph, atoms: Sequence[int], title: str, rows: int) -> Table:
    """One line per atom, with the legal cut before it; below it, the rules that hold its nodes together."""
    crossing = crossings(graph)
    table = _table(f"Atoms of {title}, and the bytes that cross a cut before each")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("atom", overflow="fold")
    for name in ("nodes", "per row", f"per {rows} rows", "tensors"):
        table.add_column(name, justify="right", no_wrap=True)
    for index in atoms:
        atom, here = graph.atoms[index], crossing[index]
        reasons = "".join(f"\n  [dim]{escape(bind)}[/]" for bind in atom.binds)
        figures = (*_bytes(here, index, rows), str(here.num_values) if index else "")
        table.add_row(str(index), escape(atom.name) + reasons, str(len(atom.nodes)), *figures)
    return table


def node_table(model: Model, atom: int) -> Table:
    """The nodes of one atom, each with the reason why it stays with the one above."""
    table = _table(f"Nodes of atom {atom}, {model.graph.atoms[atom].name}")
    table.add_column("node", no_wrap=True)
    table.add_column("module", overflow="fold")
    table.add_column("may not be parted from the node above, because", overflow="fold")
    reasons = ["", *map(str, neighbours(model, atom))]
    for node, reason in zip(model.atom_nodes[atom], reasons, strict=True):
        table.add_row(*map(escape, (node.name, module_path(node), reason)))
    return table


def _table(title: str) -> Table:
    return Table(title=escape(title), title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False)


def _row(graph: Graph, crossing: Sequence[Crossing], section: Section, rows: int) -> _Row:
    inner = crossing[section.start + 1 : section.end]
    best = min(inner, key=lambda here: here.num_bytes(rows), default=None)
    rules = Counter(bind.split(":")[0] for atom in graph.atoms[section.start : section.end] for bind in atom.binds)
    return _Row(
        str(section.end - section.start),
        *_bytes(crossing[section.start], section.start, rows),
        _per_row(best) if best else "",
        "bound by " + ", ".join(f"{rule} ({count})" for rule, count in rules.items()) if rules else "",
    )


def _bytes(here: Crossing, index: int, rows: int) -> tuple[str, str]:
    return (_per_row(here), format_bytes(here.num_bytes(rows))) if index else ("start", "")


def _per_row(here: Crossing) -> str:
    once = f" + {format_bytes(here.once_bytes)} once" if here.once_bytes else ""
    return format_bytes(here.row_bytes) + once


def _pattern(module: str) -> str:
    return re.sub(r"\d+", "#", module)
