"""Inception v3 with its auxiliary head (27,161,264 parameters), trained on main + 0.4 auxiliary loss."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.jobs.classifier import scaled

# The smallest image that leaves the auxiliary head the 5x5 feature map its convolution needs.
SMALLEST_IMAGE = 107
# From this size on the auxiliary head pools as published; below, adaptively to the same 5x5 map.
_PUBLISHED_IMAGE = 299
_AUXILIARY_MAP = 5
_AUXILIARY_WEIGHT = 0.4
_INITIAL_DEVIATION = 0.1

Scale = Callable[[int], int]


class Convolution(nn.Sequential):
    """Convolution, batch normalisation and ReLU; unless told otherwise, padded to keep the size."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: tuple[int, int],
        *,
        stride: int = 1,
        padded: bool = True,
        deviation: float = _INITIAL_DEVIATION,
    ) -> None:
        padding = (kernel[0] // 2, kernel[1] // 2) if padded else 0
        convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
        nn.init.trunc_normal_(convolution.weight, std=deviation, a=-2, b=2)
        super().__init__(convolution, nn.BatchNorm2d(outputs, eps=0.001), nn.ReLU(inplace=True))


class Branches(nn.Module):
    """Several paths over the same feature map, their results side by side as `outputs` channels."""

    def __init__(self, *branches: nn.Module, outputs: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.outputs = outputs

    def forward(self, features: Tensor) -> Tensor:
        """Concatenate what the branches make of the features."""
        return torch.cat([branch(features) for branch in self.branches], dim=1)


class InceptionV3(nn.Module):
    """The classifier; called with images and labels, it returns the loss of both heads."""

    def __init__(self, *, image: int, classes: int, width: float, dropout: float) -> None:
        super().__init__()
        scale = functools.partial(scaled, width=width)
        groups = [_square_group(scale(192), scale(32), scale)]
        for _ in range(2):
            groups.append(_square_group(groups[-1].outputs, scale(64), scale))
        groups.append(_first_reduction(groups[-1].outputs, scale))
        for inner in (128, 160, 160, 192):
            groups.append(_factorised_group(groups[-1].outputs, scale(inner), scale))
        self.lower = nn.Sequential(*_stem(scale), *groups)
        self.auxiliary = _auxiliary_head(groups[-1].outputs, scale, image, classes)

        reduction = _second_reduction(groups[-1].outputs, scale)
        first = _forked_group(reduction.outputs, scale)
        second = _forked_group(first.outputs, scale)
        self.upper = nn.Sequential(
            reduction,
            first,
            second,
            nn.AdaptiveAvgPool2d(1),
            nn.Dropout(dropout),
            nn.Flatten(),
            _linear(second.outputs, classes, deviation=_INITIAL_DEVIATION),
        )

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy of the main head plus 0.4 times that of the auxiliary one, a scalar."""
        features = self.lower(images)
        auxiliary_loss = F.cross_entropy(self.auxiliary(features), labels)
        return F.cross_entropy(self.upper(features), labels) + _AUXILIARY_WEIGHT * auxiliary_loss


def _stem(scale: Scale) -> list[nn.Module]:
    return [
        Convolution(3, scale(32), (3, 3), stride=2, padded=False),
        Convolution(scale(32), scale(32), (3, 3), padded=False),
        Convolution(scale(32), scale(64), (3, 3)),
        nn.MaxPool2d(kernel_size=3, stride=2),
        Convolution(scale(64), scale(80), (1, 1)),
        Convolution(scale(80), scale(192), (3, 3), padded=False),
        nn.MaxPool2d(kernel_size=3, stride=2),
    ]


def _square_group(inputs: int, pooled: int, scale: Scale) -> Branches:
    """Square kernels of three sizes on the 35x35 map."""
    return Branches(
        Convolution(inputs, scale(64), (1, 1)),
        nn.Sequential(Convolution(inputs, scale(48), (1, 1)), Convolution(scale(48), scale(64), (5, 5))),
        nn.Sequential(
            Convolution(inputs, scale(64), (1, 1)),
            Convolution(scale(64), scale(96), (3, 3)),
            Convolution(scale(96), scale(96), (3, 3)),
        ),
        _pooled_branch(inputs, pooled),
        outputs=2 * scale(64) + scale(96) + pooled,
    )


def _first_reduction(inputs: int, scale: Scale) -> Branches:
    """From the 35x35 to the 17x17 map."""
    return Branches(
        Convolution(inputs, scale(384), (3, 3), stride=2, padded=False),
        nn.Sequential(
            Convolution(inputs, scale(64), (1, 1)),
            Convolution(scale(64), scale(96), (3, 3)),
            Convolution(scale(96), scale(96), (3, 3), stride=2, padded=False),
        ),
        nn.MaxPool2d(kernel_size=3, stride=2),
        outputs=scale(384) + scale(96) + inputs,
    )


def _factorised_group(inputs: int, inner: int, scale: Scale) -> Branches:
    """7x7 kernels as a row and a column, on the 17x17 map."""
    return Branches(
        Convolution(inputs, scale(192), (1, 1)),
        nn.Sequential(
            Convolution(inputs, inner, (1, 1)),
            Convolution(inner, inner, (1, 7)),
            Convolution(inner, scale(192), (7, 1)),
        ),
        nn.Sequential(
            Convolution(inputs, inner, (1, 1)),
            Convolution(inner, inner, (7, 1)),
            Convolution(inner, inner, (1, 7)),
            Convolution(inner, inner, (7, 1)),
            Convolution(inner, scale(192), (1, 7)),
        ),
        _pooled_branch(inputs, scale(192)),
        outputs=4 * scale(192),
    )


def _second_reduction(inputs: int, scale: Scale) -> Branches:
    """From the 17x17 to the 8x8 map."""
    return Branches(
        nn.Sequential(
            Convolution(inputs, scale(192), (1, 1)),
            Convolution(scale(192), scale(320), (3, 3), stride=2, padded=False),
        ),
        nn.Sequential(
            Convolution(inputs, scale(192), (1, 1)),
            Convolution(scale(192), scale(192), (1, 7)),
            Convolution(scale(192), scale(192), (7, 1)),
            Convolution(scale(192), scale(192), (3, 3), stride=2, padded=False),
        ),
        nn.MaxPool2d(kernel_size=3, stride=2),
        outputs=scale(320) + scale(192) + inputs,
    )


def _forked_group(inputs: int, scale: Scale) -> Branches:
    """Branches that end in a row and a column kernel side by side, on the 8x8 map."""

    def fork() -> Branches:
        channels = scale(384)
        return Branches(
            Convolution(channels, channels, (1, 3)),
            Convolution(channels, channels, (3, 1)),
            outputs=2 * channels,
        )

    return Branches(
        Convolution(inputs, scale(320), (1, 1)),
        nn.Sequential(Convolution(inputs, scale(384), (1, 1)), fork()),
        nn.Sequential(Convolution(inputs, scale(448), (1, 1)), Convolution(scale(448), scale(384), (3, 3)), fork()),
        _pooled_branch(inputs, scale(192)),
        outputs=scale(320) + 4 * scale(384) + scale(192),
    )


def _pooled_branch(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(kernel_size=3, stride=1, padding=1), Convolution(inputs, outputs, (1, 1)))


def _auxiliary_head(inputs: int, scale: Scale, image: int, classes: int) -> nn.Sequential:
    pool: nn.Module = nn.AdaptiveAvgPool2d(_AUXILIARY_MAP)
    if image >= _PUBLISHED_IMAGE:
        pool = nn.AvgPool2d(kernel_size=5, stride=3)
    kernel = (_AUXILIARY_MAP, _AUXILIARY_MAP)
    return nn.Sequential(
        pool,
        Convolution(inputs, scale(128), (1, 1)),
        Convolution(scale(128), scale(768), kernel, padded=False, deviation=0.01),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        _linear(scale(768), classes, deviation=0.001),
    )


def _linear(inputs: int, outputs: int, *, deviation: float) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.trunc_normal_(linear.weight, std=deviation, a=-2, b=2)
    return linear
