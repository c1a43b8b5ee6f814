"""Operations over a micro-batch whose rows lie on several replicas, with the numbers of one device.

BatchNorm takes its mean and variance over all rows of the micro-batch: replicas exchange their row
count, mean and sum of squared deviations (one all-gather forward), and the two sums its gradient needs
(one all-reduce backward). Cross-entropy divides by the number of counted targets of the whole
micro-batch, which every replica can count for itself because targets come with the batch.
"""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Replicas(Protocol):
    """The replicas that share a micro-batch."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]: ...

    def all_reduce(self, tensor: Tensor) -> Tensor: ...


def batch_norm_over_replicas(
    replicas: Replicas,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """`torch.batch_norm` in training mode, with the statistics of all replicas' rows."""
    return _BatchNorm.apply(x, weight, bias, running_mean, running_var, momentum, eps, replicas)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        momentum: float,
        eps: float,
        replicas: Replicas,
    ) -> Tensor:
        axes = [d for d in range(x.dim()) if d != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # like PyTorch's own: no statistics in 16 bits
        count = wide.numel() // wide.shape[1]
        local_mean = wide.mean(axes)
        local_spread = (wide - local_mean.view(shape)).square().sum(axes)
        own = torch.cat([wide.new_tensor([count]), local_mean, local_spread])
        parts = torch.stack(replicas.all_gather(own))
        counts, means, spreads = parts[:, :1], *parts[:, 1:].chunk(2, dim=1)
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        spread = spreads.sum(0) + (counts * (means - mean).square()).sum(0)
        inverse_std = (spread / total + eps).rsqrt()
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((spread / (total - 1)).to(running_var.dtype), momentum)
        normalised = (wide - mean.view(shape)) * inverse_std.view(shape)
        ctx.save_for_backward(normalised, inverse_std, weight)
        ctx.replicas, ctx.total, ctx.axes, ctx.shape = replicas, total, axes, shape
        result = normalised if weight is None else normalised * weight.view(shape)
        return (result if bias is None else result + bias.view(shape)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        normalised, inverse_std, weight = ctx.saved_tensors
        grad = grads[0].to(normalised.dtype)
        _, weight_needs_grad, bias_needs_grad, *_ = ctx.needs_input_grad
        grad_weight = (grad * normalised).sum(ctx.axes) if weight_needs_grad else None
        grad_bias = grad.sum(ctx.axes) if bias_needs_grad else None
        scaled = grad if weight is None else grad * weight.view(ctx.shape)
        sums = torch.cat([scaled.sum(ctx.axes), (scaled * normalised).sum(ctx.axes)])
        mean_grad, mean_product = (ctx.replicas.all_reduce(sums) / ctx.total).chunk(2)
        grad_x = (scaled - mean_grad.view(ctx.shape) - normalised * mean_product.view(ctx.shape)) * inverse_std.view(
            ctx.shape
        )
        return grad_x, grad_weight, grad_bias, None, None, None, None, None


def cross_entropy_over_replicas(
    total: Tensor,
    row_share: float,
    is_negative_log_likelihood: bool,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    """This replica's part of a mean cross-entropy over the whole micro-batch.

    The runtime weighs a replica's loss by its share of the rows, so the part is divided by that share:
    summed over replicas it is the sum over all counted targets divided by their number.
    """
    if is_negative_log_likelihood:
        summed = F.nll_loss(x, target, weight=weight, ignore_index=ignore_index, reduction="sum")
    else:
        summed = F.cross_entropy(
            x,
            target,
            weight=weight,
            ignore_index=ignore_index,
            reduction="sum",
            label_smoothing=label_smoothing,
        )
    return summed / (total.to(summed.dtype) * row_share)


def count_targets(target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """What PyTorch divides a mean cross-entropy by."""
    if target.is_floating_point():  # class probabilities: every position counts once
        return target.new_tensor(target.numel() / target.shape[1])
    counted = target != ignore_index
    if weight is None:
        return counted.sum()
    return weight[target[counted]].sum()
