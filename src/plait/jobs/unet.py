"""A small U-Net for segmentation: its skip connections cross any cut through the middle of the model."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.errors import PlaitError
from plait.jobs.classifier import scaled

_BASE_CHANNELS = 32
_LEVELS = 3
SMALLEST_IMAGE = 2 * 2**_LEVELS


def check_image(image: int) -> None:
    """Refuse an image that cannot be halved evenly all the way down."""
    step = 2**_LEVELS
    if image % step:
        raise PlaitError(
            f"image={image} does not fit a U-Net that halves the image {_LEVELS} times: choose a multiple of "
            f"{step}, for example image={-(-image // step) * step}."
        )


class UNet(nn.Module):
    """The segmenter; called with images and masks, it returns the mean cross-entropy over the pixels."""

    def __init__(self, *, classes: int, width: float, dropout: float) -> None:
        super().__init__()
        widths = [scaled(_BASE_CHANNELS * 2**level, width) for level in range(_LEVELS + 1)]
        self.down = nn.ModuleList(
            _double_convolution(inputs, outputs) for inputs, outputs in zip([3, *widths[:-2]], widths[:-1], strict=True)
        )
        self.pool = nn.MaxPool2d(kernel_size=2)
        self.bottom = _double_convolution(widths[-2], widths[-1])
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        upward = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.enlarge = nn.ModuleList(
            nn.ConvTranspose2d(inputs, outputs, kernel_size=2, stride=2) for inputs, outputs in upward
        )
        self.up = nn.ModuleList(_double_convolution(2 * outputs, outputs) for _, outputs in upward)
        self.head = nn.Conv2d(widths[0], classes, kernel_size=1)

    def logits(self, images: Tensor) -> Tensor:
        """Scores of every pixel's class: [batch, classes, height, width]."""
        features, skipped = images, []
        for block in self.down:
            features = block(features)
            skipped.append(features)
            features = self.pool(features)
        features = self.dropout(self.bottom(features))
        for enlarge, block in zip(self.enlarge, self.up, strict=True):
            features = block(torch.cat([skipped.pop(), enlarge(features)], dim=1))
        return self.head(features)

    def forward(self, images: Tensor, masks: Tensor) -> Tensor:
        """The mean cross-entropy of the masks, a scalar."""
        return F.cross_entropy(self.logits(images), masks)


def _double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)
