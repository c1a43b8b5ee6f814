"""Products: linear layers, matrix products and convolutions, split by columns, by rows or by what they do alike.

| split                        | inputs            | result                       |
| ---------------------------- | ----------------- | ---------------------------- |
| outputs (columns)            | read by all       | split                        |
| inputs (rows, contracted)    | split             | terms of a sum, then the bias|
| a dimension both go along    | split             | split                        |

A column split and a row split after it need no exchange between them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from plait.graph.randomness import called
from plait.graph.rows import argument
from plait.graph.sharding.decision import GROUP, Context, Decision, OwnSize
from plait.graph.sharding.dropout import attention_of_part
from plait.graph.sharding.layout import PARTIAL, WHOLE, Layout, Split

aten = torch.ops.aten


def linear(node: fx.Node, context: Context) -> Decision | None:
    x, weight, bias = _node(argument(node, "input")), _node(argument(node, "weight")), argument(node, "bias")
    if len(context.shape(weight)) != 2:
        return None
    last = len(context.shape(x)) - 1
    return _layer(context, (x, last), (weight, 1, 0), bias, last, aten.linear.default, (x, weight))


def addmm(node: fx.Node, context: Context) -> Decision | None:
    bias, x, weight = (_node(argument(node, name)) for name in ("self", "mat1", "mat2"))
    if len(context.shape(bias)) != 1 or (argument(node, "alpha"), argument(node, "beta")) != (1, 1):
        return None
    return _layer(context, (x, 1), (weight, 0, 1), bias, 1, aten.mm.default, (x, weight))


def convolution(node: fx.Node, context: Context) -> Decision | None:
    """By output or input channels; one of many groups by groups."""
    x, weight, bias = argument(node, "input"), argument(node, "weight"), argument(node, "bias")
    assert isinstance(x, fx.Node) and isinstance(weight, fx.Node)
    if len(context.shape(x)) != len(context.shape(weight)):
        return None
    target, args = called(node)
    groups = argument(node, "groups")
    if groups == 1:
        call = (x, weight, None, *args[3:])
        return _layer(context, (x, 1), (weight, 1, 0), bias, 1, target, call)
    return _grouped(context, x, weight, bias, groups)


def _layer(
    context: Context,
    x_and_dim: tuple[Any, int],
    weight_and_dims: tuple[Any, int, int],
    bias: Any,
    result_dim: int,
    without_bias: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> Decision | None:
    """A product of activations and a weight: `weight_and_dims` has its contracted dimension and that of the outputs."""
    x, along = x_and_dim
    weight, contracted, outputs = weight_and_dims
    x_split, own = context.layout(x), context.layout(weight)
    if isinstance(own, Split) and own.dim == outputs:
        needs: dict[fx.Node, Layout] = {x: context.seen_by_all(x), weight: own}
        if bias is not None:
            needs[bias] = Split(0, own.cells, own.unit, own.origin)
            bias_split = context.layout(bias)
            if isinstance(bias_split, Split):
                context.agree(own, bias_split, bias, context.shape(bias)[0])
        return Decision(Split(result_dim, own.cells, own.unit, own.origin), needs)
    if isinstance(own, Split) and own.dim == contracted:
        cut = Split(along, own.cells, own.unit, own.origin)
        if isinstance(x_split, Split) and x_split.dim == along:
            context.agree(x_split, own, weight, context.shape(weight)[contracted])
            cut = x_split
        needs = {x: cut, weight: Split(contracted, cut.cells, cut.unit, cut.origin)}
        call = (without_bias, arguments)
        return Decision(PARTIAL if bias is None else WHOLE, needs, call=call, bias=bias)
    if isinstance(x_split, Split) and x_split.dim != along and result_dim == along:
        read = {n: context.seen_by_all(n) for n in (weight, bias) if n is not None}
        return Decision(x_split, {x: x_split, **read})
    return Decision(why="its weight is whole")


def _grouped(context: Context, x: fx.Node, weight: fx.Node, bias: Any, groups: Any) -> Decision | None:
    split, own = context.layout(x), context.layout(weight)
    if not isinstance(own, Split) or own.dim != 0:
        return None
    size = context.shape(weight)[0]
    if own.sections(size) != 1 or groups % own.cells:
        context.demands.fewer_cells(own.origin, groups)
        return None
    unit = context.shape(x)[1] // own.cells
    cut = Split(1, own.cells, unit, own.origin)
    if isinstance(split, Split) and not split.same_part(cut):
        context.unify(cut, split)
    if not isinstance(split, Split) and context.has_gradient(x):
        return None
    needs: dict[fx.Node, Layout] = {x: cut, weight: own}
    if bias is not None:
        needs[bias] = Split(0, own.cells, own.unit, own.origin)
    return Decision(Split(1, own.cells, own.unit, own.origin), needs, {"groups": OwnSize(groups, own.cells)})


# Products of activations


def matmul(node: fx.Node, context: Context) -> Decision | None:
    """`matmul`, `mm`, `bmm`: what goes along (heads), rows, columns, or the contracted dimension may be split."""
    a, b = node.all_input_nodes[0], node.all_input_nodes[-1]
    a_shape, b_shape = context.shape(a), context.shape(b)
    if a is b or len(a_shape) < 2 or len(b_shape) < 2:
        return None
    splits, num_dims = context.splits([a, b]), len(context.shape(node))
    lead_node = a if a in splits else b
    lead, other = splits.get(lead_node), b if lead_node is a else a
    if lead is None:
        return None
    from_end = lead.dim - len(context.shape(lead_node))
    if from_end < -2:
        beside = _along_both(from_end, lead, other, context)
        return Decision(_at(lead, from_end + num_dims), {lead_node: lead, other: beside})
    contracted = -1 if lead_node is a else -2
    if from_end == contracted:
        at = len(context.shape(other)) + (-2 if lead_node is a else -1)
        own = splits.get(other)
        if own is not None and own.dim == at:
            context.agree(lead, own, other, context.shape(other)[at])
        elif own is None and context.has_gradient(other) and not context.is_parameter(other):
            return None
        return Decision(PARTIAL, {lead_node: lead, other: _at(lead, at)})
    return Decision(_at(lead, num_dims + from_end), {lead_node: lead, other: context.seen_by_all(other)})


def _at(split: Split, dim: int) -> Split:
    return Split(dim, split.cells, split.unit, split.origin)


def _along_both(from_end: int, lead: Split, other: fx.Node, context: Context) -> Layout:
    """What the other factor must be where the first is split along a dimension that both go along."""
    shape, own = context.shape(other), context.layout(other)
    at = len(shape) + from_end
    if at < 0 or shape[at] == 1:
        return context.seen_by_all(other)
    if isinstance(own, Split) and own.dim == at:
        context.agree(lead, own, other, shape[at])
    return _at(lead, at)


def attention(node: fx.Node, context: Context) -> Decision | None:
    """`scaled_dot_product_attention` by heads, also where several heads share their keys and values."""
    query, key, value = (_node(argument(node, name)) for name in ("query", "key", "value"))
    mask = argument(node, "attn_mask")
    splits = context.splits([query, key, value])
    if not splits:
        return None
    lead_node = query if query in splits else next(iter(splits))
    lead = splits[lead_node]
    if lead.dim >= len(context.shape(lead_node)) - 2:
        return None
    needs = _by_heads((query, key, value), lead, lead_node, splits, context)
    if needs is None:
        return None
    own_query = needs[query]
    if not isinstance(own_query, Split):
        return None
    if isinstance(mask, fx.Node):
        beside = _along_both(lead.dim - len(context.shape(query)), lead, mask, context)
        needs[mask] = _mask(beside, own_query)
    if not argument(node, "dropout_p"):
        return Decision(own_query, needs)
    stream, number = node.args[:2]
    rest = [argument(node, name) for name in ("dropout_p", "is_causal", "scale", "enable_gqa")]
    how = (own_query.dim, own_query.cells, own_query.unit)
    call = (attention_of_part, (stream, number, GROUP, query, key, value, mask, *rest, *how))
    return Decision(own_query, needs, call=call)


def _by_heads(
    nodes: tuple[fx.Node, ...], lead: Split, lead_node: fx.Node, splits: dict[fx.Node, Split], context: Context
) -> dict[fx.Node, Layout] | None:
    """What queries, keys and values must be, of which some may have fewer heads than others."""
    heads = {n: context.shape(n)[lead.dim] for n in nodes}
    needs: dict[fx.Node, Layout] = {}
    for n, size in heads.items():
        if size == 1 and heads[nodes[0]] > 1:
            needs[n] = context.seen_by_all(n)
            continue
        if size % lead.cells or lead.sections(heads[lead_node]) > 1:
            context.demands.fewer_cells(lead.origin, size)
            return None
        wanted = Split(lead.dim, lead.cells, size // lead.cells, lead.origin)
        own = splits.get(n)
        if own is not None and not own.same_part(wanted):
            context.unify(wanted, own)
        needs[n] = wanted
    return needs


def _node(value: object) -> fx.Node:
    assert isinstance(value, fx.Node)
    return value


def _mask(beside: Layout, query: Split) -> Layout:
    """Masks have as many heads as the queries."""
    if isinstance(beside, Split):
        return Split(beside.dim, query.cells, query.unit, query.origin)
    return beside
