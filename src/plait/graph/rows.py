"""Where the batch lies in every tensor, and which operations make its rows depend on one another.

A stage on several devices splits each micro-batch by rows. That is exact only while every row's result
is its own, up to a loss that is a mean over rows. This module finds, without running anything, the
dimension that holds the rows and the nodes that break the rule, so that a plan which would silently
change the gradients is refused (or, where the runtime knows the exact way, run that way).
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass

import sympy
import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from plait.graph.aliases import is_training_batch_norm
from plait.graph.randomness import seeded

aten = torch.ops.aten

_MEAN_LOSSES = {
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "soft_margin_loss",
}
CROSS_ENTROPIES = {"cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd"}
_ALONG_A_DIMENSION = {
    "softmax",
    "_softmax",
    "log_softmax",
    "_log_softmax",
    "cumsum",
    "cumprod",
    "logcumsumexp",
    "flip",
    "roll",
    "sort",
    "argsort",
    "topk",
}
_LINEAR = {
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "to",
    "_to_copy",
    "clone",
    "alias",
    "view",
    "reshape",
    "squeeze",
    "mean",
}
Mixing = tuple[fx.Node, str, str]
_MEAN = 1  # the number of `reduction="mean"` in PyTorch's operators


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


def operator_of(node: fx.Node) -> OpOverload | None:
    """The operator a node runs, seen through the seeding of random ones."""
    target = node.args[2] if node.target is seeded else node.target
    return target if isinstance(target, OpOverload) else None


def argument(node: fx.Node, name: str) -> object:
    """The value a node passes for the schema's argument `name`, its default included."""
    function = operator_of(node)
    assert function is not None
    offset = 3 if node.target is seeded else 0
    for index, described in enumerate(function._schema.arguments):
        if described.name == name:
            if name in node.kwargs:
                return node.kwargs[name]
            place = index + offset
            return node.args[place] if place < len(node.args) else described.default_value
    return None


def mixing_nodes(graph: fx.Graph, dims: BatchDims, free: Set[fx.Node]) -> Iterator[Mixing]:
    """Nodes whose rows depend on one another, why, and the remedy (see `graph.RowMixer`)."""
    for node in graph.nodes:
        function = operator_of(node)
        inputs = [n for n in node.all_input_nodes if dims.batched(n)]
        if node.op != "call_function" or not inputs or node in free:
            continue
        name = function._opname if function is not None else ""
        if function is not None and is_training_batch_norm(node):
            yield node, "BatchNorm takes its statistics over all rows", "exchange"
        elif name in CROSS_ENTROPIES and argument(node, "reduction") == _MEAN:
            yield from _cross_entropy(node, free)
        elif dims.is_irregular(node):
            yield node, "its size is not proportional to the rows", ""
        elif not dims.batched(node) and _makes_tensors(node):
            yield from _reduction(node, name)
        elif function is not None and _works_along_rows(node, name, inputs[0], dims):
            yield node, "it works along the batch dimension", ""
        elif _interleaves(node, name, inputs[0], dims):
            yield node, "it folds the rows into a dimension in which they are no longer in order", ""


def _makes_tensors(node: fx.Node) -> bool:
    """A tuple without any row in it counts too: an autocast or no-grad region that reduces over rows."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) or (
        isinstance(value, (tuple, list)) and any(isinstance(v, Tensor) for v in value)
    )


def _cross_entropy(node: fx.Node, free: Set[fx.Node]) -> Iterator[Mixing]:
    target, weight = node.args[1], argument(node, "weight")
    known = isinstance(target, fx.Node) and (target in free or target.op == "placeholder")
    known = known and (not isinstance(weight, fx.Node) or weight in free or weight.op == "get_attr")
    yield node, "its mean counts only some targets, which may differ between rows", "count" if known else ""
    yield from _nonlinear_after(node)


def _reduction(node: fx.Node, name: str) -> Iterator[Mixing]:
    is_mean = name == "mean" or (name in _MEAN_LOSSES and argument(node, "reduction") == _MEAN)
    if not is_mean:
        yield node, "it combines all rows other than by their mean", ""
    else:
        yield from _nonlinear_after(node)


def _nonlinear_after(node: fx.Node) -> Iterator[Mixing]:
    """A mean over rows stays the mean of the parts only through linear operations."""
    pending, seen = list(node.users), set()
    while pending:
        user = pending.pop()
        if user in seen or user.op == "output":
            continue
        seen.add(user)
        function = operator_of(user)
        products = [n for n in user.all_input_nodes if n.op == "call_function"]
        linear = function is not None and function._opname in _LINEAR
        if linear and function is not None and function._opname in ("mul", "div"):
            linear = len(products) == 1
        if not linear:
            yield user, "it takes a mean over all rows and is not linear in it", ""
            return
        pending += user.users


def _works_along_rows(node: fx.Node, name: str, source: fx.Node, dims: BatchDims) -> bool:
    if name not in _ALONG_A_DIMENSION or dims.is_irregular(source):
        return False
    chosen = argument(node, "dims") if name in ("flip", "roll") else argument(node, "dim")
    chosen = chosen if isinstance(chosen, (list, tuple)) else [chosen]
    shape, batch_dim = dims.layout(source)
    return any(isinstance(d, int) and d % len(shape) == batch_dim for d in chosen)


def _interleaves(node: fx.Node, name: str, source: fx.Node, dims: BatchDims) -> bool:
    """A reshape that merges the batch behind another dimension puts rows out of order."""
    if name not in ("view", "reshape", "flatten", "_unsafe_view") or dims.is_irregular(source):
        return False
    before, dim_before = dims.layout(source)
    after, dim_after = dims.layout(node)
    if dim_before is None or dim_after is None:
        return False
    lead_before, lead_after = 1, 1
    for size in before[:dim_before]:
        lead_before *= size
    for size in after[:dim_after]:
        lead_after *= size
    return lead_before != lead_after
