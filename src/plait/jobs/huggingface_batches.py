"""The built-in text and images under the argument names of Hugging Face models."""

from collections.abc import Iterator

import torch

from plait.jobs.images import class_batches
from plait.jobs.job import Batch
from plait.jobs.masked_text import hide_tokens
from plait.jobs.random_numbers import seeded_generator
from plait.jobs.text import text_windows


def causal_batches(sequence: int, vocabulary: int, batch_size: int, seed: int) -> Iterator[Batch]:
    """Endless rows of text; the models shift the labels themselves."""
    generator = seeded_generator(seed)
    while True:
        tokens = text_windows(sequence, vocabulary, batch_size, generator)
        yield {"input_ids": tokens, "labels": tokens.clone()}


def masked_batches(sequence: int, vocabulary: int, batch_size: int, seed: int) -> Iterator[Batch]:
    """Endless rows of text with hidden tokens; the last id of the vocabulary stands for a hidden one."""
    generator = seeded_generator(seed)
    lengths = torch.full((batch_size, 1), sequence, device="cpu")
    while True:
        window = text_windows(sequence, vocabulary, batch_size, generator)
        tokens, labels = hide_tokens(window, lengths, vocabulary, vocabulary - 1, generator)
        yield {"input_ids": tokens, "labels": labels}


def paired_batches(sequence: int, vocabulary: int, batch_size: int, seed: int) -> Iterator[Batch]:
    """Endless rows of text for the encoder, and as labels of the decoder the text that follows."""
    generator = seeded_generator(seed)
    while True:
        window = text_windows(2 * sequence, vocabulary, batch_size, generator)
        source, continuation = window.split(sequence, dim=1)
        yield {"input_ids": source.contiguous(), "labels": continuation.contiguous()}


def image_batches(size: int, classes: int, channels: int, batch_size: int, seed: int) -> Iterator[Batch]:
    """Endless generated images and their classes."""
    for batch in class_batches(size, classes, batch_size, seed, channels=channels):
        yield {"pixel_values": batch["images"], "labels": batch["labels"]}
