"""The optimizers of jobs that do not bring their own."""

from collections.abc import Iterable

import torch
from torch import nn


def adamw(parameters: Iterable[nn.Parameter], *, learning_rate: float = 3e-4) -> torch.optim.Optimizer:
    """AdamW with the shorter memory of squared gradients that language models are trained with."""
    return torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01)


def momentum(parameters: Iterable[nn.Parameter], *, learning_rate: float) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum, as image classifiers are trained."""
    return torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9, weight_decay=1e-4)
