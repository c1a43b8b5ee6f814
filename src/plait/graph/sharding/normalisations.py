"""Normalisations: by channel, by group of channels, or within a dimension that is whole."""

from torch import fx

from plait.graph.rows import argument
from plait.graph.sharding.decision import Context, Decision, OwnSize
from plait.graph.sharding.layout import Layout, Split


def batch_norm(node: fx.Node, context: Context) -> Decision | None:
    """Every channel by itself. Its running statistics are written to, so it is split if and only if they are."""
    x, mean, variance = node.args[0], node.args[3], node.args[4]
    assert isinstance(x, fx.Node)
    split = context.layout(x)
    lead: Split | None = None
    if isinstance(mean, fx.Node) and isinstance(variance, fx.Node):
        statistics = context.layout(mean)
        if not isinstance(statistics, Split):
            return Decision(why="its running statistics are whole")
        lead = statistics
        size = context.shape(mean)[0]
        if isinstance(split, Split) and split.dim == 1:
            context.agree(split, lead, mean, size)
            lead = Split(0, lead.cells, lead.unit, split.origin)  # what later nodes ask is for the layer before to do
        other = context.layout(variance)
        if isinstance(other, Split) and not other.same_part(lead):
            context.demands.like(other.origin, lead, size)
    elif isinstance(split, Split) and split.dim == 1:
        lead = Split(0, split.cells, split.unit, split.origin)
    if lead is None:
        return None
    needs: dict[fx.Node, Layout] = {x: Split(1, lead.cells, lead.unit, lead.origin)}
    for given in node.args[1:5]:
        if isinstance(given, fx.Node):
            layout = context.layout(given)
            if isinstance(layout, Split):
                context.agree(lead, layout, given, context.shape(given)[0])
            needs[given] = lead
    return Decision(needs[x], needs)


def layer_norm(node: fx.Node, context: Context) -> Decision | None:
    """`layer_norm`, `rms_norm`: within the last dimensions; a split of another one is kept."""
    x, sizes = argument(node, "input"), argument(node, "normalized_shape")
    assert isinstance(x, fx.Node) and isinstance(sizes, (list, tuple))
    split = context.layout(x)
    if not isinstance(split, Split):
        return None
    if split.dim >= len(context.shape(x)) - len(sizes):
        return Decision(why="it normalises along what is split")
    weights = [n for n in (argument(node, "weight"), argument(node, "bias")) if isinstance(n, fx.Node)]
    return Decision(split, {x: split, **{n: context.seen_by_all(n) for n in weights}})


def group_norm(node: fx.Node, context: Context) -> Decision | None:
    x, groups = argument(node, "input"), argument(node, "num_groups")
    assert isinstance(x, fx.Node) and isinstance(groups, int)
    split = context.layout(x)
    if not isinstance(split, Split) or split.dim != 1:
        return None
    if groups % split.cells or split.sections(context.shape(x)[1]) > 1:
        context.demands.fewer_cells(split.origin, groups)
        return None
    needs: dict[fx.Node, Layout] = {x: split}
    for name in ("weight", "bias"):
        given = argument(node, name)
        if isinstance(given, fx.Node):
            layout = context.layout(given)
            if isinstance(layout, Split):
                context.agree(split, layout, given, context.shape(given)[0])
            needs[given] = Split(0, split.cells, split.unit, split.origin)
    return Decision(split, needs, {"num_groups": OwnSize(groups, split.cells)})
