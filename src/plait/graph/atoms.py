"""From bindings to a chain of atoms in which every prefix is a legal cut.

Bound nodes are contracted; a cycle among the contracted groups means that something lies between two
bound nodes and must join them (the convex closure), which is exactly a strongly connected component.
The components, in topological order with ties broken by the captured order, are the atoms. Linear in
the size of the graph.

Some nodes belong to no atom because every stage can compute them itself (`free_nodes`).
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

import networkx as nx
from torch import fx
from torch._ops import HigherOrderOperator

from plait.graph.aliases import mutated_inputs
from plait.graph.constraints import Binding
from plait.graph.randomness import operator_of, seeded

_HEAVY = {
    "linear",
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "einsum",
    "conv1d",
    "conv2d",
    "conv3d",
    "convolution",
    "conv_transpose2d",
    "scaled_dot_product_attention",
    "lstm",
    "gru",
}


@dataclass(frozen=True)
class NodeGroup:
    """The nodes of one atom in captured order, and the bindings that joined them."""

    nodes: tuple[fx.Node, ...]
    bindings: tuple[Binding, ...]


def free_nodes(graph: fx.Graph, bound: Iterable[Binding]) -> set[fx.Node]:
    """Nodes every stage can compute for itself: cheap, from the batch and constants alone, no gradient.

    Positions, masks and shifted labels are of this kind; computing them where they are used is cheaper
    than sending them past every stage. Nodes bound together are free together or not at all.
    """
    free: set[fx.Node] = set()
    for node in graph.nodes:
        if (
            node.op == "call_function"
            and _could_be_free(node)
            and all(_is_source(n) or n in free for n in node.all_input_nodes)
        ):
            free.add(node)
    groups = [binding.nodes for binding in bound]
    while True:
        broken = {n for nodes in groups if not nodes <= free for n in nodes} & free
        if not broken:
            return free
        for node in graph.nodes:  # whatever is computed from a node that is not free is not free either
            if node in broken or (node in free and any(n in broken for n in node.all_input_nodes)):
                free.discard(node)
                broken.add(node)


def _could_be_free(node: fx.Node) -> bool:
    function = operator_of(node)
    if node.target is seeded or isinstance(node.target, HigherOrderOperator):
        return False
    if any(n.op == "get_attr" for n in mutated_inputs(node)):
        return False
    return function is None or function._opname not in _HEAVY


def _is_source(node: fx.Node) -> bool:
    """Batch inputs and constant buffers; parameters carry gradients and are not copied for this."""
    return node.op == "placeholder" or (node.op == "get_attr" and not node.meta.get("is_parameter", False))


def atoms_of(graph: fx.Graph, bound: Iterable[Binding], free: Set[fx.Node]) -> list[NodeGroup]:
    """The chain of atoms."""
    nodes = [node for node in graph.nodes if node.op == "call_function" and node not in free]
    position = {node: index for index, node in enumerate(nodes)}
    bound = [Binding(b.rule, b.why, frozenset(n for n in b.nodes if n in position)) for b in bound]

    contracted = nx.DiGraph()
    contracted.add_nodes_from(range(len(nodes)))
    for node in nodes:
        contracted.add_edges_from((position[n], position[node]) for n in node.all_input_nodes if n in position)
    (output,) = graph.find_nodes(op="output")
    ends = [position[node] for node in nodes if not any(user in position for user in node.users)]
    for loss in output.all_input_nodes:  # the loss comes last, also after a buffer that is written behind it
        contracted.add_edges_from((end, position[loss]) for end in ends if loss in position)
    for binding in bound:  # a cycle through the bound nodes makes them one component, with all between them
        members = sorted(position[n] for n in binding.nodes)
        contracted.add_edges_from(zip(members, members[1:] + members[:1], strict=True))
    components = nx.condensation(contracted)
    order = list(nx.lexicographical_topological_sort(components, key=lambda c: min(components.nodes[c]["members"])))
    component_of: Mapping[int, int] = components.graph["mapping"]
    reasons: dict[int, list[Binding]] = {c: [] for c in order}
    for binding in bound:
        if len(binding.nodes) > 1:
            reasons[component_of[position[next(iter(binding.nodes))]]].append(binding)
    return [
        NodeGroup(tuple(nodes[i] for i in sorted(components.nodes[c]["members"])), tuple(reasons[c])) for c in order
    ]
