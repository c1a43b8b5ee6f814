"""VGG with 16 or 19 layers, without batch normalisation (138,357,544 and 143,667,240 parameters)."""

from torch import nn

from plait.jobs.classifier import Classifier, initialise_for_relu, scaled

SMALLEST_IMAGE = 32
_POOLED = 7
_GROUP_CHANNELS = (64, 128, 256, 512, 512)
_CONVOLUTIONS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def vgg(depth: int, *, classes: int, width: float, dropout: float) -> Classifier:
    """Groups of 3x3 convolutions, each group halving the image; any image of 32 pixels or more."""
    layers: list[nn.Module] = []
    channels = 3
    for group_channels, num_convolutions in zip(_GROUP_CHANNELS, _CONVOLUTIONS[depth], strict=True):
        for _ in range(num_convolutions):
            layers.append(nn.Conv2d(channels, scaled(group_channels, width), kernel_size=3, padding=1))
            layers.append(nn.ReLU(inplace=True))
            channels = scaled(group_channels, width)
        layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
    hidden = scaled(4096, width)
    network = nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(_POOLED),
        nn.Flatten(),
        nn.Linear(channels * _POOLED * _POOLED, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )
    return Classifier(initialise_for_relu(network))
