"""Normalisation: the captured graph becomes one that can be cut anywhere its constraints allow.

After it: no in-place operation that others can see is left outside the alias rule; random operations draw
from a named stream; dead nodes are gone; each parameter is read under one name.
"""

import torch
from torch import fx

from plait.graph.aliases import alias_sets, make_functional, mutated_inputs
from plait.graph.capture import Captured
from plait.graph.capture.opaque import call_opaque
from plait.graph.randomness import draws_numbers, seeded
from plait.graph.regions import regions_of

RANDOMNESS = "randomness"


def normalise(captured: Captured) -> None:
    """Rewrites `captured.module.graph` in place; the order of the passes matters."""
    graph = captured.module.graph
    _one_node_per_parameter(captured)
    _copy_overwritten_inputs(graph)
    make_functional(graph)
    _name_random_streams(captured.module)
    _drop_dead(graph)


def _one_node_per_parameter(captured: Captured) -> None:
    """Tied parameters are read through several names; keep one node, under the first name."""
    graph = captured.module.graph
    kept: dict[str, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "get_attr" or node.target not in captured.parameter_names:
            continue
        name = captured.parameter_names[node.target]
        if name in kept:
            node.replace_all_uses_with(kept[name])
            graph.erase_node(node)
        else:
            kept[name] = node


def _copy_overwritten_inputs(graph: fx.Graph) -> None:
    """A model that writes into its batch writes into a copy: other stages and the next run read it too."""
    sets = alias_sets(graph)
    written = {
        member
        for node in graph.nodes
        for target in mutated_inputs(node)
        for member in sets.members(target)
        if member.op == "placeholder"
    }
    first = next(node for node in graph.nodes if node.op not in ("placeholder", "get_attr"))
    for node in sorted(written):
        users = list(node.users)
        with graph.inserting_before(first):
            copy = graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta = dict(node.meta)
        for user in users:
            user.replace_input_with(node, copy)


def _is_random(node: fx.Node) -> bool:
    if draws_numbers(node) or node.target is call_opaque:  # what an opaque module draws is not known
        return True
    return any(_is_random(inner) for graph, _ in regions_of(node) for inner in graph.nodes)


def _name_random_streams(module: fx.GraphModule) -> None:
    """Every random node draws from the stream (step, micro-batch, its own number): see `randomness`."""
    graph = module.graph
    nodes = [node for node in graph.nodes if _is_random(node)]
    if not nodes:
        return
    first = next(node for node in graph.nodes if node.op == "call_function")
    with graph.inserting_before(first):
        stream = graph.create_node("get_attr", RANDOMNESS)
    for number, node in enumerate(nodes):  # in place, so that the node keeps its name and its description
        node.args = (stream, number, node.target, *node.args)
        node.target = seeded


def _drop_dead(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op not in ("call_function", "get_attr") or node.users or node.is_impure():
            continue
        if not any(True for _ in mutated_inputs(node)):  # a region that only writes a buffer is no dead node
            graph.erase_node(node)
