"""Where the batch lies in every tensor: the dimension that holds the rows, found without running anything."""

import operator
from collections.abc import Set
from dataclasses import dataclass

import sympy
import torch
from torch import Tensor, fx

from plait.graph.randomness import called, operator_of


@dataclass(frozen=True)
class BatchDims:
    """Sizes of every node in terms of the rows."""

    symbols: Set[sympy.Symbol]

    def _expressions(self, node: fx.Node) -> list[sympy.Expr]:
        value = node.meta.get("val")
        if isinstance(value, (tuple, list)):
            value = next((v for v in value if isinstance(v, Tensor)), None)
        if not isinstance(value, Tensor):
            return []
        return [s.node.expr if isinstance(s, torch.SymInt) else sympy.Integer(s) for s in value.shape]

    def _depends(self, expression: sympy.Expr) -> bool:
        return bool(expression.free_symbols & self.symbols)

    def batched(self, node: fx.Node) -> bool:
        return any(self._depends(e) for e in self._expressions(node))

    def has_unknown_size(self, node: fx.Node) -> bool:
        value = node.meta.get("val")
        values = value if isinstance(value, (tuple, list)) else [value]
        return any(
            isinstance(s, torch.SymInt) and not s.node.expr.free_symbols <= self.symbols
            for v in values
            if isinstance(v, Tensor)
            for s in v.shape
        )

    def is_row_arithmetic(self, node: fx.Node) -> bool:
        """Arithmetic on `rows` that `normalise` made: known everywhere."""
        return "val" not in node.meta

    def is_row_count(self, node: fx.Node) -> bool:
        """A number computed from the number of rows."""
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return self._depends(value.node.expr)
        return value is None and node.op in ("placeholder", "call_function")

    def is_multiple_of_rows(self, node: fx.Node) -> bool:
        """The number of rows, or a whole multiple of it."""
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return self._depends(value.node.expr) and self._factor(value.node.expr) is not None
        if node.target is operator.mul:
            return all(isinstance(arg, int) or self.is_multiple_of_rows(arg) for arg in node.args)  # type: ignore[arg-type]
        return value is None and node.op == "placeholder"

    def is_irregular(self, node: fx.Node) -> bool:
        """Does the size depend on the rows other than in proportion, along one dimension?"""
        touched = [e for e in self._expressions(node) if self._depends(e)]
        return len(touched) > 1 or any(self._factor(e) is None for e in touched)

    def _factor(self, expression: sympy.Expr) -> int | None:
        ratio = sympy.simplify(expression / next(iter(expression.free_symbols & self.symbols)))
        return int(ratio) if ratio.is_Integer else None

    def layout(self, node: fx.Node) -> tuple[tuple[int, ...], int | None]:
        """The shape for one row, and the dimension the rows are in."""
        shape, batch_dim = [], None
        for index, expression in enumerate(self._expressions(node)):
            if self._depends(expression):
                factor = self._factor(expression)
                assert factor is not None, "irregular values are bound to their users"
                batch_dim = index
                shape.append(factor)
            else:
                shape.append(int(expression))
        return tuple(shape), batch_dim


def argument(node: fx.Node, name: str) -> object:
    """The value a node passes for the schema's argument `name`, its default included."""
    function = operator_of(node)
    assert function is not None
    _, args = called(node)
    for index, described in enumerate(function._schema.arguments):
        if described.name == name:
            if name in node.kwargs:
                return node.kwargs[name]
            return args[index] if index < len(args) else described.default_value
    return None
