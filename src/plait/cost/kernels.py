"""What is known of the memory that kernels take and give back within one operation, which no caller sees.

oneDNN, which convolves on CPUs, works on copies of its inputs and outputs in an order of its own: it makes the result
from a copy of either input, lets these go, and copies the result. A backward does so for the gradient of the input and
then for that of the weight. What oneDNN does not take (float64, a single small image) is multiplied out of columns.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_Backend: Any = torch._C._ConvBackend  # type: ignore[attr-defined]


def momentary_bytes(func: Any, args: tuple[Any, ...], result: Any) -> int:
    """The most that `func`, called with `args`, held beyond its `result`."""
    if func is aten.convolution.default:
        x, weight, _, *options = args
        backend = _backend(x, weight, options, None)
        if backend == _Backend.Mkldnn:
            return max(x.nbytes + weight.nbytes, result.nbytes)
        return _columns(result, weight) if backend == _Backend.Slow2d else 0
    if func is aten.convolution_backward.default:
        gradient, x, weight, bias_sizes, *options, _ = args
        backend = _backend(x, weight, options, bias_sizes)
        if backend == _Backend.Mkldnn:
            return _onednn_backward(gradient, x, weight, result)
        return _columns(gradient, weight) if backend == _Backend.Slow2d else 0
    return 0


def _columns(result: Tensor, weight: Tensor) -> int:
    """What every entry of the result is a product of, laid out side by side; a 1x1 window is the image itself."""
    window = weight[0].numel()
    return result.nbytes // result.shape[1] * window if weight[0, 0].numel() > 1 else 0


def _onednn_backward(gradient: Tensor, x: Tensor, weight: Tensor, result: Sequence[Tensor | None]) -> int:
    for_x, for_weight = (0 if made is None else made.nbytes for made in result[:2])
    most = 0
    if for_x:
        most = max(gradient.nbytes + weight.nbytes, for_x) + for_x
    if for_weight:
        most = max(most, for_x + max(gradient.nbytes + x.nbytes, for_weight) + for_weight)
    return most - for_x - for_weight


def _backend(x: Tensor, weight: Tensor, options: list[Any], bias_sizes: Any) -> Any:
    """What convolves these on a CPU."""
    if x.device.type != "cpu":
        return None
    return torch._C._select_conv_backend(x, weight, None, *options, bias_sizes)
