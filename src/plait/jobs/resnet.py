"""ResNet with bottleneck blocks, 50 or 152 layers (25,557,032 and 60,192,808 parameters).

The form in common use: the 3x3 convolution of a block carries its stride.
"""

from torch import Tensor, nn

from plait.jobs.classifier import Classifier, scaled

SMALLEST_IMAGE = 32
_BLOCKS = {50: (3, 4, 6, 3), 152: (3, 8, 36, 3)}
_GROUP_CHANNELS = (64, 128, 256, 512)
_EXPANSION = 4


class Bottleneck(nn.Module):
    """Narrow, convolve, widen, and add the input."""

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        outputs = inner * _EXPANSION
        self.residual = nn.Sequential(
            _convolution(inputs, inner, kernel_size=1),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            _convolution(inner, inner, kernel_size=3, stride=stride),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            _convolution(inner, outputs, kernel_size=1),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                _convolution(inputs, outputs, kernel_size=1, stride=stride), nn.BatchNorm2d(outputs)
            )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        """The block's feature map, `stride` times smaller."""
        features = self.residual(images)
        features += self.shortcut(images)
        return self.activation(features)


def resnet(depth: int, *, classes: int, width: float, dropout: float) -> Classifier:
    """Four groups of bottleneck blocks; dropout, which the original lacks, stands before the classifier."""
    channels = scaled(64, width)
    layers: list[nn.Module] = [
        _convolution(3, channels, kernel_size=7, stride=2),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
    ]
    for group, (group_channels, num_blocks) in enumerate(zip(_GROUP_CHANNELS, _BLOCKS[depth], strict=True)):
        inner = scaled(group_channels, width)
        for block in range(num_blocks):
            stride = 2 if group > 0 and block == 0 else 1
            layers.append(Bottleneck(channels, inner, stride))
            channels = inner * _EXPANSION
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return Classifier(nn.Sequential(*layers, nn.Linear(channels, classes)))


def _convolution(inputs: int, outputs: int, *, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    convolution = nn.Conv2d(inputs, outputs, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution
