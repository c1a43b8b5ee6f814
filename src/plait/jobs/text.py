"""Byte-level text that is on every machine: the sources of Python's standard library.

Nothing is downloaded and the text has real structure, so losses really fall. Hosts that run different
Python releases hold slightly different text; give all ranks of one run the same release.
"""

import functools
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from plait.errors import PlaitError
from plait.jobs.job import Batch
from plait.jobs.random_numbers import seeded_generator

NUM_BYTE_VALUES = 256
_MAX_CORPUS_BYTES = 4 * 2**20


@functools.cache
def corpus() -> Tensor:
    """The text as one vector of bytes, read at the first use."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= _MAX_CORPUS_BYTES:
            break
    if not text:
        raise PlaitError(
            f"The built-in text jobs read the sources of Python's standard library, and "
            f"{sysconfig.get_path('stdlib')} holds no *.py files: use a Python installed with its "
            f"sources, or a file.py with batches of your own."
        )
    # A context such as `with torch.device("meta")` around the model must not reach the data.
    with torch.device("cpu"):
        return torch.frombuffer(text[:_MAX_CORPUS_BYTES], dtype=torch.uint8)


def text_windows(length: int, vocabulary: int, batch_size: int, generator: torch.Generator) -> Tensor:
    """`batch_size` random crops of the text as token ids below `vocabulary`, shape [batch_size, length]."""
    text = corpus()
    if length >= len(text):
        raise PlaitError(
            f"A row of {length} tokens is longer than the built-in text of {len(text)} bytes: "
            f"choose a shorter sequence."
        )
    starts = torch.randint(0, len(text) - length + 1, (batch_size, 1), generator=generator, device="cpu")
    ids = text[starts + torch.arange(length, device="cpu")].long()
    # Few vocabularies are smaller than a byte; those that are see the bytes folded together.
    return ids % vocabulary if vocabulary < NUM_BYTE_VALUES else ids


def next_token_batches(sequence: int, vocabulary: int, batch_size: int, seed: int) -> Iterator[Batch]:
    """Endless `tokens` and, shifted by one, `targets`, both [batch_size, sequence]."""
    generator = seeded_generator(seed)
    while True:
        window = text_windows(sequence + 1, vocabulary, batch_size, generator)
        yield {"tokens": window[:, :-1].contiguous(), "targets": window[:, 1:].contiguous()}
