"""Which rule decides about which operator. What has none is computed whole, by every device."""

import operator

import torch
from torch import fx

from plait.graph.randomness import called, seeded
from plait.graph.sharding import normalisations, pointwise, products, views, vocabulary
from plait.graph.sharding.decision import Context, Decision, Rule

_BY_NAME: dict[str, Rule] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten"), views.reshape),
    **dict.fromkeys(("permute", "transpose", "t", "numpy_T"), views.turn),
    **dict.fromkeys(("select", "unbind"), views.select),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), views.chunks),
    "slice": views.slices,
    "expand": views.expand,
    "unsqueeze": views.unsqueeze,
    "squeeze": views.squeeze,
    "cat": views.cat,
    "linear": products.linear,
    "addmm": products.addmm,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), products.convolution),
    **dict.fromkeys(("matmul", "mm", "bmm"), products.matmul),
    "scaled_dot_product_attention": products.attention,
    "embedding": vocabulary.embedding,
    "cross_entropy_loss": vocabulary.cross_entropy,
    "batch_norm": normalisations.batch_norm,
    **dict.fromkeys(("layer_norm", "rms_norm"), normalisations.layer_norm),
    "group_norm": normalisations.group_norm,
    **dict.fromkeys(("to", "_to_copy", "contiguous", "detach", "alias"), pointwise.pointwise),
    **dict.fromkeys(("zeros_like", "ones_like"), pointwise.pointwise),
    "dropout": pointwise.dropout,
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum"), pointwise.running_along),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "var", "std"), pointwise.reduction),
    **dict.fromkeys(
        (
            "max_pool2d", "max_pool2d_with_indices", "avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d",
            "upsample_nearest2d", "upsample_bilinear2d",
        ),
        pointwise.over_images,
    ),
}  # fmt: skip

_DRAWING = {pointwise.dropout, products.attention}  # draw the whole tensor's random numbers


def decide(node: fx.Node, context: Context) -> Decision:
    """How a node is computed that has something split, or a term of a sum, among its inputs."""
    target, _ = called(node)
    if target is operator.getitem:
        rule: Rule | None = views.pick
    elif not isinstance(target, torch._ops.OpOverload):
        rule = None
    else:
        rule = _BY_NAME.get(target._opname)
        if rule is None and torch.Tag.pointwise in target.tags and not target._schema.is_mutable:
            rule = pointwise.pointwise
    name = getattr(target, "_opname", getattr(target, "__name__", str(target)))
    if rule is None or (node.target is seeded and rule not in _DRAWING):
        return Decision(why=f"there is no rule that splits {name}")
    return rule(node, context) or Decision(why=f"{name} does not go with this split")
