"""What is split by vocabulary: embeddings, and the cross-entropy of logits that no device has whole.

A device looks up the tokens of its part of the vocabulary and has zeros for all others, terms of a sum. Of the logits
it has its classes': for every target the devices exchange the largest logit, the sum of exponentials, the target's own
logit and, for smoothed labels, the sum of all logits.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from plait.graph.graph import ITEM_BYTES
from plait.graph.mixing import MEAN
from plait.graph.rows import argument
from plait.graph.sharding.collectives import TensorGroup
from plait.graph.sharding.decision import GROUP, Context, Decision, Exchange
from plait.graph.sharding.layout import PARTIAL, Split, own_cells
from plait.graph.synced import count_targets

_NONE, _SUM = 0, 2


def embedding(node: fx.Node, context: Context) -> Decision | None:
    weight, indices = node.all_input_nodes[0], node.all_input_nodes[-1]
    split = context.layout(weight)
    if not isinstance(split, Split):
        return None
    if split.dim == 1:
        dim = len(context.shape(node)) - 1
        return Decision(Split(dim, split.cells, split.unit, split.origin), {weight: split})
    if split.sections(context.shape(weight)[0]) > 1 or argument(node, "scale_grad_by_freq"):
        return None
    padding = argument(node, "padding_idx")
    call = (embedding_of_part, (GROUP, weight, indices, padding, split.cells, split.unit))
    return Decision(PARTIAL, {weight: split}, call=call)


def embedding_of_part(
    group: TensorGroup, weight: Tensor, indices: Tensor, padding: int, cells: int, unit: int
) -> Tensor:
    """The rows of the own part of the table, zeros for all others."""
    first, _ = own_cells(cells, group.degree, group.index)
    own = indices - first * unit
    others = (own < 0) | (own >= weight.shape[0])
    own_padding = padding - first * unit
    inside = 0 <= own_padding < weight.shape[0] and padding >= 0
    found = F.embedding(own.masked_fill(others, 0), weight, own_padding if inside else None)
    return found.masked_fill(others.unsqueeze(-1), 0.0)


def cross_entropy(node: fx.Node, context: Context) -> Decision | None:
    logits, target, weight = node.args[0], node.args[1], argument(node, "weight")
    assert isinstance(logits, fx.Node) and isinstance(target, fx.Node)
    split, shape = context.layout(logits), context.shape(logits)
    smoothing = argument(node, "label_smoothing")
    if not isinstance(split, Split) or split.dim != 1 or split.sections(shape[1]) > 1:
        return None
    if target.meta["val"].is_floating_point() or (smoothing and weight is not None):
        return None
    how = (split.cells, split.unit, argument(node, "reduction"), argument(node, "ignore_index"), smoothing)
    call = (cross_entropy_of_part, (GROUP, logits, target, weight, *how))
    size = ITEM_BYTES[str(logits.meta["val"].dtype).removeprefix("torch.")]
    numbers = (shape[0], *shape[2:])
    exchanges = (
        Exchange("all-gather", "forward", numbers, size),
        Exchange("all-reduce", "forward", (*numbers, 3 if smoothing else 2), size),
    )
    return Decision(needs={logits: split}, call=call, exchanges=exchanges)


def cross_entropy_of_part(
    group: TensorGroup,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    cells: int,
    unit: int,
    reduction: int,
    ignore_index: int,
    smoothing: float,
    total: Tensor | None = None,
    row_share: float = 1.0,
) -> Tensor:
    """`cross_entropy_loss` of logits split by classes; with a `total` its sum over that and the share of the rows."""
    first = own_cells(cells, group.degree, group.index)[0] * unit
    losses: Tensor = _CrossEntropy.apply(group, logits, target, first, cells * unit, ignore_index, smoothing)
    if weight is not None:
        losses = losses * weight[target.masked_fill(target == ignore_index, 0)]
    if reduction == _NONE:
        return losses
    if reduction == _SUM:
        return losses.sum()
    assert reduction == MEAN
    count = count_targets(target, weight, ignore_index) if total is None else total
    return losses.sum() / (count.to(losses.dtype) * row_share)


class _CrossEntropy(torch.autograd.Function):
    """Per target its loss, zero for those to be ignored; the classes are in dimension 1."""

    @staticmethod
    def forward(
        ctx: Any,
        group: TensorGroup,
        logits: Tensor,
        target: Tensor,
        first: int,
        classes: int,
        ignore_index: int,
        smoothing: float,
    ) -> Tensor:
        largest = torch.stack(group.all_gather(logits.amax(1).contiguous())).amax(0)
        shifted = logits - largest.unsqueeze(1)
        exponentials = shifted.exp()
        own = target - first
        others = (own < 0) | (own >= logits.shape[1])
        own = own.masked_fill(others, 0).unsqueeze(1)
        picked = shifted.gather(1, own).squeeze(1).masked_fill(others, 0.0)
        terms = [exponentials.sum(1), picked, *([shifted.sum(1)] if smoothing else [])]
        exponential_sum, picked, *rest = group.all_reduce(torch.stack(terms, -1)).unbind(-1)
        losses = exponential_sum.log() - picked
        if smoothing:
            losses = (1 - smoothing) * losses + smoothing * (exponential_sum.log() - rest[0] / classes)
        ignored = target == ignore_index
        ctx.save_for_backward(exponentials / exponential_sum.unsqueeze(1), own, others, ignored)
        ctx.smoothing, ctx.classes = smoothing, classes
        return losses.masked_fill(ignored, 0.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        probabilities, own, others, ignored = ctx.saved_tensors
        gradient = gradients[0].masked_fill(ignored, 0.0).unsqueeze(1)
        hit = (1.0 - ctx.smoothing) * (~others).to(probabilities.dtype).unsqueeze(1)
        parts = probabilities - ctx.smoothing / ctx.classes
        parts = parts.scatter_add(1, own, -hit)
        return None, parts * gradient, None, None, None, None, None
