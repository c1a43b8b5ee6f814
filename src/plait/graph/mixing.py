"""Which operations make the rows of a micro-batch depend on one another.

A stage on several devices splits each micro-batch by rows. That is exact only while every row's result
is its own, up to a loss that is a mean over rows. This module finds, without running anything, the nodes
that break the rule, so that a plan which would silently change the gradients is refused (or, where the
runtime knows the exact way, run that way). Where it cannot tell, it says that rows are mixed.

| what breaks the rule                                         | found by              |
| ------------------------------------------------------------ | --------------------- |
| statistics over rows, counted targets                        | _with_remedy          |
| any of these inside an autocast or no-grad region            | _inside_region        |
| a buffer that remembers the batch                            | _remembers            |
| rows against rows                                            | BatchDims.is_irregular|
| all rows combined, other than by a mean that stays linear    | _reduction            |
| rows reordered, or work along the dimension they are in      | _along_rows           |
| the number of rows as a value                                | _uses_row_count       |
| a row's place in the batch as a value                        | _uses_row_positions   |
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor, fx

from plait.graph.aliases import AliasSets, alias_sets, is_training_batch_norm, mutated_inputs, schema_arguments
from plait.graph.capture.opaque import opaque_call_of
from plait.graph.randomness import operator_of
from plait.graph.regions import regions_of
from plait.graph.rows import BatchDims, argument

CROSS_ENTROPIES = {"cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd"}
MEAN = 1  # the number of `reduction="mean"` in PyTorch's operators

_MEAN_LOSSES = {
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
}
_LINEAR = {
    "_to_copy",
    "add",
    "alias",
    "cat",
    "clone",
    "detach",
    "div",
    "expand",
    "mean",
    "mul",
    "neg",
    "reshape",
    "squeeze",
    "stack",
    "sub",
    "sum",
    "to",
    "unsqueeze",
    "view",
}
_ALONG_A_DIMENSION = {
    "_log_softmax",
    "_softmax",
    "argsort",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "flip",
    "gather",
    "index_add",
    "index_copy",
    "index_fill",
    "index_select",
    "log_softmax",
    "logcumsumexp",
    "roll",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "softmax",
    "sort",
    "take_along_dim",
    "topk",
}
_RESHAPES = {"_unsafe_view", "flatten", "reshape", "reshape_as", "unflatten", "view", "view_as"}
_VIEWS = _RESHAPES | {"_to_copy", "alias", "clone", "contiguous", "expand", "expand_as", "squeeze", "to", "unsqueeze"}
_ON_LAST_TWO_DIMENSIONS = {"scaled_dot_product_attention", "tril", "triu"}
_SPATIAL = ("avg_pool", "conv", "max_pool", "adaptive_", "grid_sampler", "group_norm", "im2col", "upsample_")

Mixing = tuple[fx.Node, str, str]
Reason = tuple[str, str]  # why, remedy


def mixing_nodes(graph: fx.Graph, dims: BatchDims, free: Set[fx.Node]) -> Iterator[Mixing]:
    """Nodes whose rows depend on one another, why, and the remedy (see `graph.RowMixer`).

    A region's own graph has no free nodes; all that comes into it counts as made from the batch.
    """
    finder = _Finder(graph, dims, free)
    for node in graph.nodes:
        if node.op == "call_function":
            for why, remedy in finder.reasons(node):
                yield node, why, remedy
                break  # one reason is enough


def means_over_rows(graph: fx.Graph, dims: BatchDims, free: Set[fx.Node]) -> Iterator[fx.Node]:
    """Nodes that hold a mean over rows, or what is computed from one: every replica has that of its own rows.

    Their parts are put together in the loss, so no other stage may read one of them.
    """
    finder = _Finder(graph, dims, free)
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op != "call_function" or node in free or dims.batched(node):
            continue
        is_mean = any(dims.batched(n) for n in node.all_input_nodes) and finder.averages(node)
        if is_mean or any(n in found for n in node.all_input_nodes):
            found.add(node)
            yield node


@dataclass(frozen=True)
class _Finder:
    graph: fx.Graph
    dims: BatchDims
    free: Set[fx.Node]

    def reasons(self, node: fx.Node) -> Iterator[Reason]:
        if node not in self.from_batch:
            return
        if (call := opaque_call_of(node)) is not None and not call.rows_apart:
            yield f"it runs in one piece ({call.why}), and nothing says that its rows are independent", ""
        yield from self._with_remedy(node)
        yield from self._inside_region(node)
        yield from self._remembers(node)
        yield from self._uses_row_count(node)
        yield from self._uses_row_positions(node)
        inputs = [n for n in node.all_input_nodes if self.dims.batched(n)]
        if not inputs:
            return
        if self.dims.is_irregular(node):
            yield "its size is not proportional to the rows", ""
        elif not self.dims.batched(node):
            yield from self._reduction(node)
        elif not any(self.dims.is_irregular(n) for n in inputs):
            yield from self._along_rows(node, inputs)

    @cached_property
    def from_batch(self) -> set[fx.Node]:
        """Nodes that depend on the batch: its inputs and its number of rows."""
        found: set[fx.Node] = set()
        for node in self.graph.nodes:
            if node.op == "placeholder" or any(n in found for n in node.all_input_nodes):
                found.add(node)
        return found

    def _with_remedy(self, node: fx.Node) -> Iterator[Reason]:
        function = operator_of(node)
        if is_training_batch_norm(node):
            yield "BatchNorm takes its statistics over all rows", "exchange"
        elif function is not None and function._opname in CROSS_ENTROPIES and argument(node, "reduction") == MEAN:
            if self._nonlinear_after(node) is not None:
                yield "it is a mean over all rows in which the loss is not linear", ""
            target, weight = node.args[1], argument(node, "weight")
            known = isinstance(target, fx.Node) and (target in self.free or target.op == "placeholder")
            known = known and (not isinstance(weight, fx.Node) or weight in self.free or weight.op == "get_attr")
            yield "its mean counts only some targets, which may differ between rows", "count" if known else ""

    def _inside_region(self, node: fx.Node) -> Iterator[Reason]:
        for graph, _ in regions_of(node):
            for inner, why, _ in mixing_nodes(graph, self.dims, frozenset()):
                yield f"{inner.name} inside it: {why}", ""

    def _remembers(self, node: fx.Node) -> Iterator[Reason]:
        """Replicas would each remember rows of their own. BatchNorm's counter of batches has none."""
        if any(m.op == "get_attr" for target in mutated_inputs(node) for m in self._alias_sets.members(target)):
            yield "it writes what it computes from the rows into a buffer", ""

    @cached_property
    def _alias_sets(self) -> AliasSets:
        return alias_sets(self.graph)

    def _reduction(self, node: fx.Node) -> Iterator[Reason]:
        value = node.meta.get("val")
        if not isinstance(value, Tensor) and not (isinstance(value, (tuple, list)) and value):
            return
        if not self.averages(node):
            yield "it combines all rows other than by their mean", ""
        elif (user := self._nonlinear_after(node)) is not None:
            yield f"it is a mean over all rows, in which {user.name} is not linear", ""

    def averages(self, node: fx.Node) -> bool:
        """Is it a mean over all rows, up to a factor?"""
        function = operator_of(node)
        name = function._opname if function is not None else ""
        if name in _MEAN_LOSSES or name in CROSS_ENTROPIES:
            return argument(node, "reduction") == MEAN
        return name == "mean" or self._is_mean_by_hand(node, name)

    def _is_mean_by_hand(self, node: fx.Node, name: str) -> bool:
        """`x.sum() / x.size(0)`"""
        return name == "sum" and all(self._divides_by_rows(user) and user.args[0] is node for user in node.users)

    def _divides_by_rows(self, node: fx.Node) -> bool:
        function = operator_of(node)
        if function is None or function._opname != "div" or not isinstance(node.args[1], fx.Node):
            return False
        return self.dims.is_multiple_of_rows(node.args[1])

    def _nonlinear_after(self, node: fx.Node) -> fx.Node | None:
        """A mean over rows stays the mean of the parts only through linear operations: the first that is not."""
        pending, seen = list(node.users), set()
        while pending:
            user = pending.pop()
            if user in seen or user.op == "output":
                continue
            seen.add(user)
            function = operator_of(user)
            name = function._opname if function is not None else ""
            linear = name in _LINEAR
            if linear and name in ("mul", "div"):
                linear = sum(n in self.from_batch for n in user.all_input_nodes) == 1 or self._divides_by_rows(user)
            if linear and name == "div":
                linear = user.args[1] not in self.from_batch or self._divides_by_rows(user)
            if not linear:
                return user
            pending += user.users
        return None

    def _along_rows(self, node: fx.Node, inputs: list[fx.Node]) -> Iterator[Reason]:
        function = operator_of(node)
        if function is None:
            return
        name = function._opname.removesuffix("_")
        source = inputs[0]
        before, dim_before = self.dims.layout(source)
        after, dim_after = self.dims.layout(node)
        assert dim_before is not None and dim_after is not None
        if name in _RESHAPES:
            if prod(before[:dim_before]) != prod(after[:dim_after]):
                yield "it folds the rows into a dimension in which they are no longer in order", ""
        elif name != "repeat_interleave" and any(self._factor(n) != after[dim_after] for n in inputs):
            yield "it puts the rows out of order", ""
        elif _works_along(node, name, dim_before, len(before)):
            yield "it works along the batch dimension", ""
        elif name in ("index", "_unsafe_index", "index_put", "_unsafe_index_put"):
            yield from self._indexing(node)

    def _factor(self, node: fx.Node) -> int:
        shape, batch_dim = self.dims.layout(node)
        assert batch_dim is not None
        return shape[batch_dim]

    def _indexing(self, node: fx.Node) -> Iterator[Reason]:
        """`x[index]` is fine where the batch dimension is left alone, masked, or gets every row its own number."""
        source, indices = argument(node, "self"), argument(node, "indices")
        assert isinstance(source, fx.Node) and isinstance(indices, (list, tuple))
        _, batch_dim = self.dims.layout(source)
        if batch_dim is None or batch_dim >= len(indices):
            return
        index = indices[batch_dim]
        is_mask = isinstance(index, fx.Node) and index.meta["val"].dtype == torch.bool
        if index is not None and not is_mask and index not in self.positions:
            yield "it picks rows by number", ""

    def _uses_row_count(self, node: fx.Node) -> Iterator[Reason]:
        """As a size it is every replica's own; as a value it would be the whole micro-batch's."""
        function = operator_of(node)
        if function is None or self._is_positions(node) or self._divides_by_rows(node):
            return
        for described, value in schema_arguments(node):
            if "int" not in str(described.type) and isinstance(value, fx.Node) and self.dims.is_row_count(value):
                yield "it uses the number of rows as a value", ""

    @cached_property
    def positions(self) -> set[fx.Node]:
        """Nodes that hold the numbers 0, 1, ... of the rows."""
        found: set[fx.Node] = set()
        for node in self.graph.nodes:
            if self._is_positions(node):
                found.add(node)
            function = operator_of(node) if node.op == "call_function" else None
            is_view = function is not None and (function._opname in _VIEWS or function._opname == "slice")
            if is_view and node.args[0] in found and self._has_one_entry_per_row(node):
                found.add(node)
        return found

    def _has_one_entry_per_row(self, node: fx.Node) -> bool:
        return self.dims.batched(node) and not self.dims.is_irregular(node) and self._factor(node) == 1

    def _is_positions(self, node: fx.Node) -> bool:
        function = operator_of(node) if node.op == "call_function" else None
        return function is not None and function._opname == "arange" and self.dims.batched(node)

    def _uses_row_positions(self, node: fx.Node) -> Iterator[Reason]:
        """Replicas count their rows from 0, so a row's number means something only as an index of its own row."""
        function = operator_of(node)
        if node in self.positions or (function is not None and function._opname.startswith(("index", "_unsafe_index"))):
            return
        if any(n in self.positions for n in node.all_input_nodes):
            yield "it uses a row's place in the batch as a value", ""


def _works_along(node: fx.Node, name: str, dim: int, num_dims: int) -> bool:
    """Does what an operator makes of one entry of dimension `dim` depend on the others?"""
    if name in _ALONG_A_DIMENSION:
        return dim in _chosen(node, num_dims)
    if name.startswith("fft_"):
        return dim in (_chosen(node, num_dims) or range(num_dims))
    if name in _ON_LAST_TWO_DIMENSIONS:
        return dim >= num_dims - 2
    return name.startswith(_SPATIAL) and dim != 0


def _chosen(node: fx.Node, num_dims: int) -> list[int]:
    """The dimensions an operator works along."""
    chosen = argument(node, "dim")
    chosen = argument(node, "dims") if chosen is None else chosen
    chosen = chosen if isinstance(chosen, (list, tuple)) else [chosen]
    return [d % num_dims for d in chosen if isinstance(d, int)]
