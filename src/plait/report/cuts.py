"""Where a model may be cut: tables of its modules, of its atoms, and of the nodes inside one atom."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from plait.cluster.units import format_bytes
from plait.graph import Graph, Model
from plait.graph.build import module_path
from plait.graph.outline import Crossing, Section, crossings, sections
from plait.graph.reasons import neighbours


def module_table(graph: Graph, atoms: Sequence[int], within: str, rows: int) -> Table:
    """One line per module; a run of modules that differ only in their number is told once."""
    crossing, shown = crossings(graph), sections(graph, atoms, within)
    once = any(crossing[section.start].once_bytes for section in shown)
    table = _table(f"Modules of {within or graph.name}, and the bytes that cross a cut")
    table.add_column("module", overflow="fold")
    columns = ("atoms", "before it,\nper row", *(["plus\nonce"] if once else []), f"per {rows}\nrows")
    for name in (*columns, f"best inside,\nper {rows} rows"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    found = [
        (section.module or "(the model itself)", _section_cells(graph, crossing, section, rows, once))
        for section in shown
    ]
    for (_, cells), run in groupby(found, key=lambda pair: (_pattern(pair[0]), pair[1])):
        first, *others = [name for name, _ in run]
        table.add_row(*map(escape, (first, *cells)))
        if others:
            names = others[0] if len(others) == 1 else f"{others[0]} … {others[-1]}"
            table.add_row(escape(names), *[""] * (len(cells) - 1), escape(f"as {first}"), style="dim")
    return table


def atom_table(graph: Graph, atoms: Sequence[int], title: str, rows: int) -> Table:
    """One line per atom, with the legal cut before it; below it, the rules that hold its nodes together."""
    crossing = crossings(graph)
    once = any(crossing[index].once_bytes for index in atoms)
    table = _table(f"Atoms of {title}, and the bytes that cross a cut before each")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("atom", overflow="fold")
    for name in ("nodes", "per row", *(["plus once"] if once else []), f"per {rows} rows", "tensors"):
        table.add_column(name, justify="right", no_wrap=True)
    for index in atoms:
        atom, here = graph.atoms[index], crossing[index]
        reasons = "".join(f"\n  [dim]{escape(bind)}[/]" for bind in atom.binds)
        figures = (*_bytes(here, index, rows, once), str(here.num_values) if index else "")
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


def _section_cells(
    graph: Graph, crossing: Sequence[Crossing], section: Section, rows: int, once: bool
) -> tuple[str, ...]:
    """All but the name, so that repeated modules have equal ones."""
    inside = [here.num_bytes(rows) for here in crossing[section.start + 1 : section.end]]
    rules = Counter(bind.split(":")[0] for atom in graph.atoms[section.start : section.end] for bind in atom.binds)
    named = ", ".join(f"{rule} x{count}" if count > 1 else rule for rule, count in rules.items())
    return (
        str(section.end - section.start),
        *_bytes(crossing[section.start], section.start, rows, once),
        format_bytes(min(inside)) if inside else "",
        f"bound: {named}" if named else "",
    )


def _bytes(here: Crossing, index: int, rows: int, once: bool) -> tuple[str, ...]:
    """Per row, where asked for what does not grow with the rows, and for a micro-batch."""
    middle = [format_bytes(here.once_bytes) if here.once_bytes else ""] if once else []
    if index == 0:
        return "start", *middle, ""
    return format_bytes(here.row_bytes), *middle, format_bytes(here.num_bytes(rows))


def _pattern(module: str) -> str:
    return re.sub(r"\d+", "#", module)
