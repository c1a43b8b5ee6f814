"""May a cut part these two? For two nodes, atoms or modules by name: the cuts that do, or the reason why none does."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from plait.errors import PlaitError
from plait.graph.build import Model, module_path
from plait.graph.names import lies_in, names_of
from plait.graph.reasons import Reason, why_together


@dataclass(frozen=True)
class Parting:
    """The positions of cuts that have all of one on one side and all of the other on the other.

    Where there are none: `nodes`, one of each, that are bound together and the reason, unless the two merely take turns
    in the order of the atoms.
    """

    cuts: tuple[int, ...]
    nodes: tuple[str, str] | None = None
    reason: Reason | None = None


def parting(model: Model, one: str, other: str) -> Parting:
    """Raises PlaitError for unknown names, for two that overlap, and for what every stage computes for itself."""
    ours, theirs = _nodes_called(model, one), _nodes_called(model, other)
    if not set(ours).isdisjoint(theirs):
        raise PlaitError(f"{one} and {other} overlap: name two parts of the model that have nothing in common.")
    bound = _closest_bound(model, ours, theirs)
    if bound:
        return Parting((), (bound[0].name, bound[1].name), why_together(model, *bound))
    first, second = ({model.atom_of[node] for node in nodes} for nodes in (ours, theirs))
    if min(first) > min(second):
        first, second = second, first
    return Parting(tuple(range(max(first) + 1, min(second) + 1)))


def _nodes_called(model: Model, name: str) -> Sequence[fx.Node]:
    node = model.node_by_name.get(name)
    if node is not None and node in model.atom_of:
        return [node]
    if node is not None:
        raise PlaitError(
            f"{name} belongs to no atom: every stage that needs it has it or computes it for itself, so no cut parts "
            "it from anything."
        )
    names = names_of(model.graph)
    (found,) = names.matching(name)[:1]
    if found in names.modules:
        return [node for node in model.atom_of if lies_in(module_path(node), found)]
    return model.atom_nodes[names.atoms[found]]


def _closest_bound(model: Model, ours: Sequence[fx.Node], theirs: Sequence[fx.Node]) -> tuple[fx.Node, fx.Node] | None:
    """Of nodes in one atom, one of ours and one of theirs, the two computed with the least in between."""
    place = {node: index for index, node in enumerate(model.captured.module.graph.nodes)}
    by_atom: dict[int, list[fx.Node]] = {}
    for node in theirs:
        by_atom.setdefault(model.atom_of[node], []).append(node)
    pairs = [(node, other) for node in ours for other in by_atom.get(model.atom_of[node], ())]
    return min(pairs, key=lambda pair: abs(place[pair[0]] - place[pair[1]]), default=None)
