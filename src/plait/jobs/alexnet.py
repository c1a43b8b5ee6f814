"""AlexNet in the one-tower form torchvision made common (61,100,840 parameters), and with the channels of 2012."""

from torch import nn

from plait.jobs.classifier import Classifier, initialise_for_relu, scaled

SMALLEST_IMAGE = 64
_POOLED = 6
CHANNELS = (64, 192, 384, 256, 256)
CHANNELS_2012 = (96, 256, 384, 384, 256)  # of both towers together, each connected with all before it


def alexnet(
    *, classes: int, width: float, dropout: float, channels: tuple[int, int, int, int, int] = CHANNELS
) -> Classifier:
    """Five convolutions and three fully connected layers; any image of 64 pixels or more."""
    first, second, third, fourth, fifth = (scaled(count, width) for count in channels)
    hidden = scaled(4096, width)
    network = nn.Sequential(
        nn.Conv2d(3, first, kernel_size=11, stride=4, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2),
        nn.Conv2d(first, second, kernel_size=5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2),
        nn.Conv2d(second, third, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(third, fourth, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(fourth, fifth, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(kernel_size=3, stride=2),
        nn.AdaptiveAvgPool2d(_POOLED),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(fifth * _POOLED * _POOLED, hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, classes),
    )
    return Classifier(initialise_for_relu(network))
