"""Operations on each element by itself: they keep what is split, and take their other inputs apart like it.

An input that is broadcast along the split dimension is read whole by every device, each of which knows a part of its
gradient. A whole activation of full size wins over a split one: to take it apart would cost its gradient an all-gather,
as much as to gather the other.
"""

from typing import Any

from torch import fx

from plait.graph.randomness import called
from plait.graph.rows import argument
from plait.graph.sharding.decision import GROUP, Context, Decision
from plait.graph.sharding.dropout import dropout_of_part
from plait.graph.sharding.layout import PARTIAL, WHOLE, Layout, Partial, Split

_LINEAR_IN_ALL = {"add", "sub", "neg", "clone", "contiguous", "alias"}
_SCALED = {"mul", "div"}


def pointwise(node: fx.Node, context: Context) -> Decision | None:
    """Any number of inputs, broadcast to the shape of the result."""
    inputs = [n for n in node.all_input_nodes if n.meta.get("val") is not None]
    if getattr(called(node)[0], "_overloadname", "") == "other":  # the type of another tensor, of any shape
        return None
    if any(isinstance(context.layout(n), Partial) for n in inputs):
        return _on_terms(node, inputs, context)
    shape = context.shape(node)
    splits = context.splits(inputs)
    chosen = _leading(splits, context)
    if chosen is None:
        return None
    lead_node, lead = chosen
    dim = lead.dim + len(shape) - len(context.shape(lead_node))
    if context.shape(lead_node)[lead.dim] != shape[dim]:
        return None
    needs: dict[fx.Node, Layout] = {}
    for other in inputs:
        layout = _beside(other, dim - len(shape), lead, splits, context)
        if layout is None:
            return Decision(why=f"{other.name} is whole, and to split it costs as much")
        needs[other] = layout
    return Decision(Split(dim, lead.cells, lead.unit, lead.origin), needs)


def _leading(splits: dict[fx.Node, Split], context: Context) -> tuple[fx.Node, Split] | None:
    """The split all follow: an activation's, if there is one."""
    return min(splits.items(), key=lambda item: context.is_parameter(item[0]), default=None)


def _beside(node: fx.Node, from_end: int, lead: Split, splits: dict[fx.Node, Split], context: Context) -> Layout | None:
    """What an input must be beside one that is split as `lead` at dimension `from_end` of the result."""
    shape = context.shape(node)
    at = len(shape) + from_end
    if at < 0 or shape[at] == 1:
        return WHOLE if node in splits else context.seen_by_all(node)
    own = splits.get(node)
    if own is not None and own.dim == at:
        context.agree(lead, own, node, shape[at])
    elif own is None and context.has_gradient(node) and not context.is_parameter(node):
        return None
    return Split(at, lead.cells, lead.unit, lead.origin)


def _on_terms(node: fx.Node, inputs: list[fx.Node], context: Context) -> Decision | None:
    """The sum of terms of sums is a term of the sum; so is a term times a number."""
    name = _name(node)
    same = all(isinstance(context.layout(n), Partial) and context.shape(n) == context.shape(node) for n in inputs)
    factors = called(node)[1][:2]
    numbers_only = name in _SCALED and factors[0] in inputs and _is_number(factors[1])
    if not same or not (name in _LINEAR_IN_ALL or numbers_only) or any(_is_number(a) for a in _added(node, name)):
        return None
    return Decision(PARTIAL, dict.fromkeys(inputs, PARTIAL))


def _added(node: fx.Node, name: str) -> tuple[Any, ...]:
    return called(node)[1][:2] if name in ("add", "sub") else ()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _name(node: fx.Node) -> str:
    return str(getattr(called(node)[0], "_opname", ""))


def dropout(node: fx.Node, context: Context) -> Decision | None:
    """Every device draws the whole tensor's numbers, as one device would, and uses its part of them."""
    x, probability, train = called(node)[1]
    split = context.layout(x)
    if not isinstance(split, Split):
        return None
    if not (probability and train):
        return Decision(split, {x: split})
    stream, number = node.args[:2]
    how = (split.dim, split.cells, split.unit)
    return Decision(split, {x: split}, call=(dropout_of_part, (stream, number, GROUP, x, probability, *how)))


def running_along(node: fx.Node, context: Context) -> Decision | None:
    """Softmax and its kin: fine unless what they run along is split."""
    x, dim = node.all_input_nodes[0], argument(node, "dim")
    split = context.layout(x)
    if not isinstance(split, Split) or len(node.all_input_nodes) > 1 or not isinstance(dim, int):
        return None
    if dim % len(context.shape(x)) == split.dim:
        return Decision(why="it runs along what is split")
    return Decision(split, {x: split})


def over_images(node: fx.Node, context: Context) -> Decision | None:
    """Pooling, padding and resizing of images: every channel by itself."""
    x = node.all_input_nodes[0]
    split = context.layout(x)
    if not isinstance(split, Split) or split.dim > 1 or len(context.shape(x)) < 3:
        return None
    if isinstance(node.meta.get("val"), (tuple, list)):
        return Decision(tuple(split for _ in node.meta["val"]), {x: split})
    return Decision(split, {x: split})


def reduction(node: fx.Node, context: Context) -> Decision | None:
    """Sums and means: of a split dimension they are terms of a sum."""
    x, dims, keep = node.all_input_nodes[0], argument(node, "dim"), argument(node, "keepdim")
    split = context.layout(x)
    if not isinstance(split, Split) or dims is None:
        return None
    shape = context.shape(x)
    given: list[Any] = list(dims) if isinstance(dims, (list, tuple)) else [dims]
    along = sorted(d % len(shape) for d in given) or [*range(len(shape))]
    if split.dim not in along:
        before = 0 if keep else sum(d < split.dim for d in along)
        result = Split(split.dim - before, split.cells, split.unit, split.origin)
        several = node.meta.get("val")
        gives = tuple(result for _ in several) if isinstance(several, (tuple, list)) else result
        return Decision(gives, {x: split})
    name = _name(node)
    if name not in ("sum", "mean"):
        return None
    if argument(node, "dtype") is not None:
        return None
    if name == "sum":
        return Decision(PARTIAL, {x: split})
    size = shape[split.dim]
    return Decision(PARTIAL, {x: split}, call=(_mean_of_part, (x, along, bool(keep), split.dim, size)))


def _mean_of_part(x: Any, along: list[int], keep: bool, dim: int, size: int) -> Any:
    """This device's term of a mean along dimensions of which one, of `size` in all, is split."""
    return x.mean(along, keepdim=keep) * (x.shape[dim] / size)
