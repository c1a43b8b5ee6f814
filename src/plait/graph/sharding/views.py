"""Views: where a split dimension goes when a tensor is reshaped, turned, taken apart or put together."""

import operator
from math import prod
from typing import Any

from torch import fx

from plait.graph.randomness import called
from plait.graph.rows import argument
from plait.graph.sharding.decision import Context, Decision, OwnSize
from plait.graph.sharding.layout import PARTIAL, Partial, Split


def _moved(split: Split, dim: int) -> Split:
    return Split(dim, split.cells, split.unit, split.origin)


def _view_of(node: fx.Node, context: Context) -> tuple[fx.Node, Split | None]:
    x = node.all_input_nodes[0]
    layout = context.layout(x)
    return x, layout if isinstance(layout, Split) else None


def _of_terms(node: fx.Node, context: Context) -> Decision | None:
    """A view of a term of a sum is a term of the sum's view."""
    x = node.all_input_nodes[0]
    if not isinstance(context.layout(x), Partial) or not context.shape(node):
        return None
    return Decision(PARTIAL, {x: PARTIAL})


# Reshaping


def reshape(node: fx.Node, context: Context) -> Decision | None:
    """`view`, `reshape`, `flatten`, `unflatten`: dimensions come together and come apart in their order."""
    x, split = _view_of(node, context)
    if split is None:
        return _of_terms(node, context)
    before, after = context.shape(x), context.shape(node)
    if getattr(called(node)[0], "_overloadname", "") == "dtype":
        return None
    found = reshaped(split, before, after, context)
    if found is None:
        return None
    return Decision(found, {x: split}, arguments=_own_sizes(node, found, after))


def reshaped(split: Split, before: tuple[int, ...], after: tuple[int, ...], context: Context) -> Split | None:
    """Where the split dimension is after a reshape; None (and a demand, perhaps) where cells come apart."""
    sections = split.sections(before[split.dim]) * prod(before[: split.dim])
    unit = split.unit * prod(before[split.dim + 1 :])
    ahead = 1
    for dim, size in enumerate(after):
        if sections % ahead == 0 and ahead * size > sections and size > 1:
            behind = prod(after[dim + 1 :])
            if size * ahead % sections:
                return None
            if unit % behind:
                _ask_for_blocks(split, unit, behind, context)
                return None
            own_sections = sections // ahead
            if own_sections * split.cells * (unit // behind) == size:
                return Split(dim, split.cells, unit // behind, split.origin)
            return None
        ahead *= size
    return None


def _ask_for_blocks(split: Split, unit: int, behind: int, context: Context) -> None:
    """A cell is less than what stays together: asks for cells of whole such blocks."""
    if split.cells * unit % behind == 0:
        context.demands.fewer_cells(split.origin, split.cells * unit // behind)
    else:
        context.demands.fewer_cells(split.origin, 1)


def _own_sizes(node: fx.Node, split: Split, after: tuple[int, ...]) -> dict[str, Any]:
    """The arguments of a reshape that name the size of the split dimension, as a device has it."""
    name = getattr(called(node)[0], "_opname", "")
    if name == "flatten":
        return {}
    key = {"unflatten": "sizes", "reshape": "shape"}.get(name, "size")
    sizes = argument(node, key)
    assert isinstance(sizes, (list, tuple))
    dim = split.dim
    if name == "unflatten":
        first = argument(node, "dim")
        assert isinstance(first, int)
        dim -= first % (len(after) - len(sizes) + 1)
    if not 0 <= dim < len(sizes) or sizes[dim] == -1:
        return {}
    return {key: [OwnSize(size, split.cells) if at == dim else size for at, size in enumerate(sizes)]}


def expand(node: fx.Node, context: Context) -> Decision | None:
    x, split = _view_of(node, context)
    if split is None:
        return None
    sizes = argument(node, "size")
    assert isinstance(sizes, (list, tuple))
    dim = split.dim + len(sizes) - len(context.shape(x))
    return Decision(_moved(split, dim), {x: split}, {"size": [-1 if at == dim else s for at, s in enumerate(sizes)]})


# Turning


def turn(node: fx.Node, context: Context) -> Decision | None:
    """`permute`, `transpose`, `t`."""
    x, split = _view_of(node, context)
    if split is None:
        return _of_terms(node, context)
    order = _order(node, len(context.shape(x)))
    return Decision(_moved(split, order.index(split.dim)), {x: split})


def _order(node: fx.Node, num_dims: int) -> list[int]:
    """Per dimension of the result, the one it was."""
    dims = argument(node, "dims")
    if isinstance(dims, (list, tuple)):
        return [dim % num_dims for dim in dims]
    order = list(range(num_dims))
    name = getattr(called(node)[0], "_opname", "")
    if name in ("t", "numpy_T"):
        return order[::-1]
    first, second = argument(node, "dim0"), argument(node, "dim1")
    assert isinstance(first, int) and isinstance(second, int)
    order[first], order[second] = order[second], order[first]
    return order


def unsqueeze(node: fx.Node, context: Context) -> Decision | None:
    x, split = _view_of(node, context)
    if split is None:
        return _of_terms(node, context)
    dim = argument(node, "dim")
    assert isinstance(dim, int)
    at = dim % (len(context.shape(x)) + 1)
    return Decision(_moved(split, split.dim + (at <= split.dim)), {x: split})


def squeeze(node: fx.Node, context: Context) -> Decision | None:
    x, split = _view_of(node, context)
    if split is None:
        return _of_terms(node, context)
    shape, dims = context.shape(x), argument(node, "dim")
    if dims is None:
        return None
    given: list[Any] = list(dims) if isinstance(dims, (list, tuple)) else [dims]
    gone = {d % len(shape) for d in given}
    gone = {d for d in gone if shape[d] == 1}
    return Decision(_moved(split, split.dim - sum(d < split.dim for d in gone)), {x: split})


# Taking apart


def select(node: fx.Node, context: Context) -> Decision | None:
    """`select` and `unbind` of another dimension. Of the split one: its entries are sections, then."""
    x, split = _view_of(node, context)
    if split is None:
        return None
    shape, dim = context.shape(x), argument(node, "dim")
    assert isinstance(dim, int)
    dim %= len(shape)
    if dim == split.dim:
        if split.sections(shape[dim]) == 1:
            context.demands.cut_into_sections(split.origin, shape[dim])
        return None
    left = _moved(split, split.dim - (dim < split.dim))
    several = node.meta.get("val")
    gives = tuple(left for _ in several) if isinstance(several, (tuple, list)) else left
    return Decision(gives, {x: split})


def chunks(node: fx.Node, context: Context) -> Decision | None:
    """`split` and `chunk`: each piece of the split dimension has to be some of its sections."""
    x, split = _view_of(node, context)
    if split is None:
        return None
    shape, dim, pieces = context.shape(x), argument(node, "dim"), node.meta.get("val")
    assert isinstance(dim, int) and isinstance(pieces, (tuple, list))
    dim %= len(shape)
    if dim != split.dim:
        return Decision(tuple(split for _ in pieces), {x: split})
    sizes = [int(piece.shape[dim]) for piece in pieces]
    if len(set(sizes)) > 1:
        return Decision(why="it takes pieces of different sizes of what is split")
    if split.sections(shape[dim]) % len(sizes):
        context.demands.cut_into_sections(split.origin, len(sizes))
        return None
    changed = _own_piece(node, split, sizes[0])
    return Decision(tuple(split for _ in pieces), {x: split}, changed)


def _own_piece(node: fx.Node, split: Split, size: int) -> dict[str, Any]:
    own = OwnSize(size, split.cells)
    for key in ("split_size", "split_sizes"):
        given = argument(node, key)
        if isinstance(given, (list, tuple)):
            return {key: [own] * len(given)}
        if given is not None:
            return {key: own}
    return {}


def slices(node: fx.Node, context: Context) -> Decision | None:
    """A stretch of another dimension, or of whole sections of the split one."""
    x, split = _view_of(node, context)
    if split is None:
        return None
    shape, dim = context.shape(x), argument(node, "dim")
    assert isinstance(dim, int)
    dim %= len(shape)
    if dim != split.dim:
        return Decision(split, {x: split})
    size, width, first = shape[dim], context.shape(node)[dim], argument(node, "start") or 0
    if width == size:
        return Decision(split, {x: split})
    if not isinstance(first, int) or argument(node, "step") != 1 or size % width or first % width:
        return Decision(why="it takes a stretch of what is split that devices do not share evenly")
    if split.sections(size) % (size // width):
        context.demands.cut_into_sections(split.origin, size // width)
        return None
    first %= size
    ends = {"start": OwnSize(first, split.cells), "end": OwnSize(first + width, split.cells)}
    return Decision(split, {x: split}, ends)


def pick(node: fx.Node, context: Context) -> Decision | None:
    """One of several results."""
    source, index = node.args
    assert node.target is operator.getitem and isinstance(source, fx.Node)
    layouts = context.layouts.get(source)
    if not isinstance(layouts, tuple) or not isinstance(index, int):
        return None
    return Decision(layouts[index])


# Putting together


def cat(node: fx.Node, context: Context) -> Decision | None:
    """Along another dimension; along the split one where all have the same part of it: these are its sections."""
    inputs = node.all_input_nodes
    dim = argument(node, "dim")
    splits = context.splits(inputs)
    if not splits or not isinstance(dim, int) or not all(context.shape(n) for n in inputs):
        return None
    lead = next(iter(splits.values()))
    dim %= len(context.shape(node))
    if any(context.layout(n) != lead and context.has_gradient(n) and n not in splits for n in inputs):
        return None
    if any(split.dim != lead.dim or not context.agree(lead, split, n, 1) for n, split in splits.items()):
        return None
    if dim == lead.dim and len(splits) < len(inputs):
        return Decision(why="it puts what is split beside what is whole")
    if dim != lead.dim and len({context.shape(n)[lead.dim] for n in inputs}) > 1:
        return None
    return Decision(lead, {n: splits.get(n, lead) for n in inputs})
