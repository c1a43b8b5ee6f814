"""The job as data: everything the rest of Plait needs to train one model."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Job:
    """A model to train and what to train it on.

    Batches of built-in and Hugging Face jobs are dictionaries whose keys are argument names of the
    model's `forward`. A user's file may yield dictionaries, tuples or tensors; they are kept as given.
    Equal arguments of `batches` give equal batches in every process, so each rank may draw the whole
    batch and keep its own rows.
    """

    name: str
    """As the user typed it, options included."""
    model: Callable[[], nn.Module]
    """Builds the model with torch's global random numbers: whoever calls it seeds them first."""
    batches: Callable[[int, int], Iterator[Batch]]
    """From (batch_size, seed) to batches of exactly that many rows; endless for all but user files."""
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    loss: Callable[[Any, Batch], Tensor] | None
    """From (what the model returned, batch) to a scalar; None: the model returns the loss itself."""
    batch_size: int
    """The global batch when the user gives none."""
    tokens_per_sample: int | None
    """Tokens in one row, for tokens per second; None where a row is not text."""
