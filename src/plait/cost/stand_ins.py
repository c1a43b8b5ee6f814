"""What runs in the place of an operation while costs are found: a device's form of it, or the part that costs."""

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from plait.graph.randomness import seeded
from plait.graph.regions import choose, choose_longer


def runnable(target: Any, args: tuple[Any, ...], device: torch.device | str) -> tuple[Any, tuple[Any, ...]]:
    """The call of a node on `device`: of a choice the longer side; on `meta`, attention as devices run it."""
    if target is seeded:
        inner, rest = runnable(args[2], args[3:], device)
        return target, (*args[:2], inner, *rest)
    if target is choose:
        return choose_longer, args
    if torch.device(device).type == "meta" and is_attention(target):
        return fused_attention, args
    return target, args


def is_attention(target: Any) -> bool:
    return isinstance(target, OpOverload) and target._opname == "scaled_dot_product_attention"


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *_: Any, **__: Any
) -> Tensor:
    """Memory and layout of the fused kernels: what they keep grows with the sequence, not with its square."""
    result: Tensor = _FusedAttention.apply(query, key, value, attn_mask)
    return result


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        shape = (*query.shape[:-1], value.shape[-1])
        if query.dim() == 4:  # rows, heads, sequence, width: heads lie inside the sequence
            result = query.new_empty(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)
        else:
            result = query.new_empty(shape)
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, mask, result, sums)
        return result

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        wanted = zip(ctx.saved_tensors[:4], ctx.needs_input_grad, strict=True)
        return tuple(torch.empty_like(tensor) if needed else None for tensor, needed in wanted)
