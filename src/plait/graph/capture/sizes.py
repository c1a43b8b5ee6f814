"""Sizes: every number in the graph that depends on the batch becomes arithmetic on one integer input, `rows`."""

import operator

import sympy
import torch
from torch import Tensor, fx

from plait.graph.errors import CaptureError

ROWS = "rows"


def row_symbols(graph: fx.Graph) -> set[sympy.Symbol]:
    """All symbols that stand for the number of rows (inputs that never meet keep their own)."""
    values = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    first: list[int | torch.SymInt] = [v.shape[0] for v in values if isinstance(v, Tensor) and v.dim() > 0]
    return {symbol for size in first if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}


def sizes_from_rows(graph: fx.Graph) -> None:
    """Replaces every number that depends on the batch by arithmetic on the one input `rows`."""
    symbols = row_symbols(graph)
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
