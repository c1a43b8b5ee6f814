"""Nodes that compute alike: the same operator, on tensors of the same layout, costs the same.

Every node gets a number, and nodes with the same number call the same function with the same plain arguments
on inputs of equal sizes (in terms of the rows), strides and types, of which the same ones are parameters and
the same ones need gradients. What a node costs therefore has to be found once per number. A node whose result
depends on more than that (on the values in a tensor) has a number of its own.
"""

from collections.abc import Hashable, Mapping, Set
from operator import attrgetter

import torch
from torch import fx

from plait.graph.layouts import layout, plain
from plait.graph.normalise import RANDOMNESS
from plait.graph.randomness import called, operator_of, seeded

_DEPENDS_ON_VALUES = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


def alike_nodes(module: fx.GraphModule, needs_gradient: Set[fx.Node]) -> dict[fx.Node, int]:
    """The number of every node that computes something."""
    layouts: dict[fx.Node, Hashable] = {}
    numbers: dict[Hashable, int] = {}
    found: dict[fx.Node, int] = {}
    for node in module.graph.nodes:
        if node.op == "call_function":
            call = node if _depends_on_values(node) else _call(node, layouts, node in needs_gradient)
            found[node] = numbers.setdefault(call, len(numbers))
        result = found[node] if _is_row_arithmetic(node) else _result(module, node)
        layouts[node] = (result, node.op == "get_attr", node in needs_gradient)
    return found


def _depends_on_values(node: fx.Node) -> bool:
    function = operator_of(node)
    return function is not None and not _DEPENDS_ON_VALUES.isdisjoint(function.tags)


def _is_row_arithmetic(node: fx.Node) -> bool:
    """A number computed from the rows: it is known by how it is computed."""
    return node.op == "call_function" and "val" not in node.meta


def _call(node: fx.Node, layouts: Mapping[fx.Node, Hashable], needs_gradient: bool) -> Hashable:
    """What is called with what; random nodes differ only in the stream they draw from."""
    function, args = called(node)
    sources = {source: index for index, source in enumerate(node.all_input_nodes)}
    return (
        function,
        node.target is seeded,
        plain(args, sources),
        plain(node.kwargs, sources),
        tuple(layouts[source] for source in sources),
        needs_gradient,
    )


def _result(module: fx.GraphModule, node: fx.Node) -> Hashable:
    if node.op == "get_attr":
        return RANDOMNESS if node.target == RANDOMNESS else _attribute(module, node)
    return layout(node.meta["val"]) if "val" in node.meta else node.op


def _attribute(module: fx.GraphModule, node: fx.Node) -> Hashable:
    value = attrgetter(str(node.target))(module)
    return _region(value) if isinstance(value, fx.GraphModule) else layout(value)


def _region(module: fx.GraphModule) -> Hashable:
    """A region's own graph, its nodes known by their places."""
    places = {node: index for index, node in enumerate(module.graph.nodes)}
    return tuple(
        (
            node.op,
            _attribute(module, node) if node.op == "get_attr" else None,
            node.target if node.op == "call_function" else None,
            plain(node.args, places),
            plain(node.kwargs, places),
        )
        for node in module.graph.nodes
    )
