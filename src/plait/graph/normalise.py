"""Normalisation: the captured graph becomes one that can be cut anywhere its constraints allow.

After it: no in-place operation that others can see is left outside the alias rule; every size is a
function of one integer input `rows`; random operations draw from a named stream; assertions and dead
nodes are gone; each parameter is read under one name.
"""

import operator

import sympy
import torch
from torch import fx

from plait.graph.aliases import alias_sets, make_functional, mutated_inputs
from plait.graph.capture import Captured, CaptureError
from plait.graph.randomness import draws_numbers, seeded
from plait.graph.regions import regions_of

ROWS = "rows"
RANDOMNESS = "randomness"

_ASSERTIONS = {
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten.sym_constrain_range_for_size.default,
    torch.ops.aten.sym_constrain_range.default,
}


def normalise(captured: Captured) -> None:
    """Rewrites `captured.module.graph` in place; the order of the passes matters."""
    graph = captured.module.graph
    symbols = row_symbols(captured)
    _drop_assertions(graph)
    _one_node_per_parameter(captured)
    _copy_overwritten_inputs(graph)
    make_functional(graph)
    _sizes_from_rows(graph, symbols)
    _name_random_streams(captured.module)
    _drop_dead(graph)


def row_symbols(captured: Captured) -> set[sympy.Symbol]:
    """All symbols that stand for the number of rows (inputs that never meet keep their own)."""
    inputs = [n for n in captured.module.graph.nodes if n.op == "placeholder" and n.name in captured.input_names]
    return {
        symbol
        for node, batched in zip(inputs, captured.input_batched, strict=True)
        if batched
        for symbol in node.meta["val"].shape[0].node.expr.free_symbols
    }


def _drop_assertions(graph: fx.Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and node.target in _ASSERTIONS and not node.users:
            graph.erase_node(node)
            continue
        for inner, _ in regions_of(node):
            _drop_assertions(inner)
            assert inner.owning_module is not None
            inner.owning_module.recompile()


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


def _sizes_from_rows(graph: fx.Graph, symbols: set[sympy.Symbol]) -> None:
    """Replaces every number that depends on the batch by arithmetic on the one input `rows`."""
    first = next(iter(graph.nodes))
    with graph.inserting_before(first):
        rows = graph.placeholder(ROWS)
    made: dict[sympy.Expr, fx.Node | float] = {}
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node is rows or not isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)):
            continue
        expression = value.node.expr
        if node.op != "call_function" or not expression.free_symbols <= symbols:
            continue  # depends on data: `constraints.data_dependent_rule` keeps it with its users
        with graph.inserting_before(node):
            replacement = _number_node(graph, expression, symbols, rows, made)
        node.replace_all_uses_with(replacement)
        graph.erase_node(node)


_ARITHMETIC = {
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Pow": operator.pow,
    "PowByNatural": operator.pow,
    "FloatPow": operator.pow,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
}


def _number_node(
    graph: fx.Graph,
    expression: sympy.Expr,
    symbols: set[sympy.Symbol],
    rows: fx.Node,
    made: dict[sympy.Expr, fx.Node | float],
) -> fx.Node | float:
    if expression in symbols:
        return rows
    if expression.is_Integer:
        return int(expression)
    if expression.is_Float:
        return float(expression)
    if expression in made:
        return made[expression]
    parts = [_number_node(graph, part, symbols, rows, made) for part in expression.args]
    if type(expression).__name__ == "ToFloat":
        made[expression] = graph.call_function(float, (parts[0],))
        return made[expression]
    if expression.is_Add or expression.is_Mul:
        function = operator.add if expression.is_Add else operator.mul
    elif type(expression).__name__ in _ARITHMETIC:
        function = _ARITHMETIC[type(expression).__name__]
    else:
        raise CaptureError(
            f"a size depends on the number of rows in a way Plait does not know ({expression}). "
            "Sizes may add, multiply and divide the batch size by whole numbers."
        )
    node = parts[0]
    for part in parts[1:]:
        node = graph.call_function(function, (node, part))
    made[expression] = node
    return node


def _is_random(node: fx.Node) -> bool:
    return draws_numbers(node) or any(_is_random(n) for graph, _ in regions_of(node) for n in graph.nodes)


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
