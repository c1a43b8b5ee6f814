"""Generated images that can be learned: nothing is downloaded and losses really fall."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from plait.jobs.job import Batch
from plait.jobs.random_numbers import seeded_generator

# What a class looks like belongs to the task, not to the run: it must not change with the run's seed.
_APPEARANCE_SEED = 2024
_NOISE = 0.5
_DISCS_PER_IMAGE = 3


def class_batches(size: int, classes: int, batch_size: int, seed: int, *, channels: int = 3) -> Iterator[Batch]:
    """Endless `images` [batch_size, channels, size, size] and `labels` [batch_size].

    A class is a coloured grating of its own direction and wavelength; every image shifts it by a random
    phase and adds noise.
    """
    appearance = seeded_generator(_APPEARANCE_SEED)
    angles = _uniform(appearance, classes, 1, 1) * math.pi
    waves = 2 + 6 * _uniform(appearance, classes, 1, 1)
    colours = _normal(appearance, classes, channels, 1, 1)
    down, across = _coordinates(size)
    generator = seeded_generator(seed)
    while True:
        labels = torch.randint(0, classes, (batch_size,), generator=generator, device="cpu")
        phases = 2 * math.pi * _uniform(generator, batch_size, 1, 1)
        angle = angles[labels]
        distance = across * torch.cos(angle) + down * torch.sin(angle)
        grating = torch.sin(2 * math.pi * waves[labels] * distance + phases)
        noise = _normal(generator, batch_size, channels, size, size)
        images = colours[labels] * (1 + grating[:, None]) + _NOISE * noise
        yield {"images": images, "labels": labels}


def disc_batches(size: int, classes: int, batch_size: int, seed: int) -> Iterator[Batch]:
    """Endless `images` [batch_size, 3, size, size] of discs and `masks` [batch_size, size, size].

    A mask gives every pixel's class: 0 the background, the others the kinds of disc, told by colour.
    """
    colours = _normal(seeded_generator(_APPEARANCE_SEED), classes, 3)
    down, across = _coordinates(size)
    generator = seeded_generator(seed)
    while True:
        masks = torch.zeros(batch_size, size, size, dtype=torch.long, device="cpu")
        for _ in range(_DISCS_PER_IMAGE):
            kind = torch.randint(1, classes, (batch_size, 1, 1), generator=generator, device="cpu")
            radius = 0.08 + 0.17 * _uniform(generator, batch_size, 1, 1)
            distance = torch.hypot(
                down - _uniform(generator, batch_size, 1, 1), across - _uniform(generator, batch_size, 1, 1)
            )
            masks = torch.where(distance < radius, kind, masks)
        noise = _normal(generator, batch_size, 3, size, size)
        images = colours[masks].permute(0, 3, 1, 2) + _NOISE * noise
        yield {"images": images.contiguous(), "masks": masks}


def _coordinates(size: int) -> tuple[Tensor, Tensor]:
    """Rows as a column and columns as a row, both from 0 to 1, to broadcast over [batch, size, size]."""
    line = torch.arange(size, device="cpu", dtype=torch.float32) / size
    return line[:, None], line[None, :]


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator, device="cpu", dtype=torch.float32)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, device="cpu", dtype=torch.float32)
