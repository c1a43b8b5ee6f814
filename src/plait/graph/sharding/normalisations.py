"""Normalisations: by channel, by group of channels, or within a dimension that is whole."""

from torch import fx

from plait.graph.aliases import is_training_batch_norm
from plait.graph.rows import argument
from plait.graph.sharding.decision import Context, Decision, OwnSize
from plait.graph.sharding.layout import Layout, Split


def batch_norm(node: fx.Node, context: Context) -> Decision | None:
    """Every channel by itself; its running statistics are split as it is, or it stays whole."""
    x = node.args[0]
    assert isinstance(x, fx.Node)
    split = context.layout(x)
    if not isinstance(split, Split) or split.dim != 1:
        return None
    own = Split(0, split.cells, split.unit, split.origin)
    needs: dict[fx.Node, Layout] = {x: split}
    for index, given in enumerate(node.args[1:5], 1):
        if not isinstance(given, fx.Node):
            continue
        layout = context.layout(given)
        needs[given] = own
        if isinstance(layout, Split) and layout.dim == 0:
            if not context.agree(split, layout, given, context.shape(given)[0]) and index > 2:
                return None
        elif index > 2 and is_training_batch_norm(node):
            return Decision(why="its running statistics are whole")
    return Decision(split, needs)


def layer_norm(node: fx.Node, context: Context) -> Decision | None:
    """`layer_norm`, `rms_norm`: within the last dimensions; a split of another one is kept."""
    x, sizes = argument(node, "input"), argument(node, "normalized_shape")
    assert isinstance(x, fx.Node) and isinstance(sizes, (list, tuple))
    split = context.layout(x)
    if not isinstance(split, Split) or split.dim >= len(context.shape(x)) - len(sizes):
        return None
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
