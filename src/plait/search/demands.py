"""From a pin to the limits it sets on one graph: module names become atoms, and atoms boundaries."""

from collections.abc import Mapping
from dataclasses import dataclass

from plait.errors import PlaitError
from plait.graph import Graph
from plait.graph.names import Names, lies_in
from plait.search.limits import Limits, inside
from plait.search.pins import Pin


@dataclass(frozen=True)
class Demand:
    """One pin as limits, and the atoms of every module it names."""

    pin: Pin
    limits: Limits
    atoms: Mapping[str, tuple[int, ...]]


def demand_of(pin: Pin, graph: Graph, names: Names) -> Demand:
    """Raises PlaitError for unknown names, and for a cut that cannot be whatever else is asked."""
    try:
        found = {name: names.atoms_of(name) for module in pin.modules for name in names.matching(module)}
    except PlaitError as error:
        raise PlaitError(f'pin "{pin}": {error}') from None
    size = len(graph.atoms)
    spans = {name: (atoms[0], atoms[-1]) for name, atoms in found.items()}
    whole = min(first for first, _ in spans.values()), max(last for _, last in spans.values())
    if pin.stage is not None:
        limits = Limits(size, held={pin.stage: whole})
    elif pin.form == "keep":
        limits = Limits(size, barred=inside(whole))
    elif pin.form == "keep each":
        limits = Limits(size, barred=frozenset(boundary for span in spans.values() for boundary in inside(span)))
    else:
        limits = _about_cuts(pin, graph, spans)
    return Demand(pin, limits, found)


def _about_cuts(pin: Pin, graph: Graph, spans: Mapping[str, tuple[int, int]]) -> Limits:
    size, after = len(graph.atoms), pin.form.endswith("after")
    boundaries = {name: last + 1 if after else first for name, (first, last) in spans.items()}
    if pin.form.startswith("no"):
        return Limits(size, barred=frozenset(boundaries.values()) - {0, size})
    for name, boundary in boundaries.items():
        if boundary in (0, size):
            side = "after" if after else "before"
            raise PlaitError(
                f'pin "{pin}": nothing is computed {side} {name}, so nothing can be cut off. Drop the pin.'
            )
        _check_between_atoms(pin, graph, name, boundary, after)
    return Limits(size, forced=frozenset(boundaries.values()))


def _check_between_atoms(pin: Pin, graph: Graph, name: str, boundary: int, after: bool) -> None:
    """A module may share its first (last) atom with what comes before (after) it: no cut can part them."""
    atom = graph.atoms[boundary - 1 if after else boundary]
    nodes = list(zip(atom.nodes, atom.node_modules, strict=True))
    if after:
        nodes.reverse()
    own = next((i for i, (_, module) in enumerate(nodes) if lies_in(module, name)), 0)
    if own:  # else the module, or the atom that is meant, begins it
        (stranger, elsewhere), (node, module) = nodes[own - 1], nodes[own]
        binds = "; ".join(atom.binds[:3]) or "they are one atom"
        raise PlaitError(
            f'pin "{pin}" would part {stranger} (in {elsewhere or "the model itself"}) from {node} (in {module}), '
            f"and they must stay together: {binds}. Choose another place; `plait plan JOB --explain cuts` shows them."
        )
