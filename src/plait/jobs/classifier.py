"""What the image classifiers share: their loss, and how they are made narrower for small machines."""

import torch.nn.functional as F
from torch import Tensor, nn

_FEWEST_CHANNELS = 4


def scaled(channels: int, width: float) -> int:
    """A layer's number of channels in a network `width` times as wide as the published one.

    >>> scaled(256, 1.0), scaled(256, 0.25), scaled(64, 0.01)
    (256, 64, 4)
    """
    return max(_FEWEST_CHANNELS, round(channels * width))


def initialise_for_relu(network: nn.Sequential) -> nn.Sequential:
    """Start a network without batch normalisation so that signals keep their size from layer to layer.

    PyTorch's own initial weights shrink them at every layer, and a deep network then stands still for
    hundreds of steps. The last layer starts small, for a first loss near log(classes).
    """
    layers = [layer for layer in network if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)
    nn.init.normal_(layers[-1].weight, std=0.01)
    return network


class Classifier(nn.Module):
    """A network from images to class scores; called with images and labels, it returns the loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy of the labels, a scalar."""
        return F.cross_entropy(self.network(images), labels)
