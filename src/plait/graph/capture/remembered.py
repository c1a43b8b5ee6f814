"""Shapes of composite operators, worked out once per layout of their arguments while a model is captured.

To find the shape of what `linear` or attention gives, PyTorch runs all the operations they are made of on symbolic
sizes, in every layer anew: half the time it takes to capture a transformer. The second call with arguments of the
same layout gets a tensor like the first one's result instead.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses import FakeTensor

from plait.graph.layouts import layout

_OPERATORS: tuple[OpOverload, ...] = (
    torch.ops.aten.dropout.default,
    torch.ops.aten.layer_norm.default,
    torch.ops.aten.linear.default,
    torch.ops.aten.matmul.default,
    torch.ops.aten.rms_norm.default,
    torch.ops.aten.scaled_dot_product_attention.default,
)
# Where an operator is taken apart: behind what the capture records, before the parts are run.
_KEYS = ("AutogradCPU", "AutogradCUDA", "AutogradMeta")


@contextmanager
def remembered_shapes() -> Iterator[None]:
    """Inside, composite operators on fake tensors are taken apart once per layout; real tensors are computed."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for operator in _OPERATORS:
            kernel = _remembering(operator)
            for key in _KEYS:
                library.impl(operator, kernel, key)
        yield


def _remembering(operator: OpOverload) -> Callable[..., Any]:
    results: dict[Hashable, Tensor] = {}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not all(isinstance(tensor, FakeTensor) for tensor in given):
            return operator._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        key = (tuple(map(_described, leaves)), structure, torch.is_grad_enabled())
        if key in results:
            return results[key].clone()  # not the result itself: the model may write into it
        result = operator.decompose(*args, **kwargs)
        if _can_be_cloned(result, given):
            results[key] = result.detach().requires_grad_(result.requires_grad)
        return result

    return kernel


def _described(leaf: Any) -> Hashable:
    return (layout(leaf), leaf.device, leaf.requires_grad) if isinstance(leaf, Tensor) else layout(leaf)


def _can_be_cloned(result: Tensor, given: list[Tensor]) -> bool:
    """Not where the result is an input itself (dropout of nothing), nor where a clone would lie otherwise in memory."""
    memory = result.untyped_storage()._cdata
    is_new = all(tensor.untyped_storage()._cdata != memory for tensor in given)
    return is_new and layout(result.clone()) == layout(result)
