"""Text with hidden tokens to guess, for masked-language-model training.

Every row has the same number of hidden tokens. The mean over the hidden tokens of a batch is then the
mean over its rows, so splitting a batch into micro-batches does not change the loss.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from plait.jobs.job import Batch
from plait.jobs.random_numbers import seeded_generator
from plait.jobs.text import NUM_BYTE_VALUES, text_windows

IGNORED_LABEL = -100
# Control characters, which Python sources do not contain, so that a vocabulary of 256 is enough.
PADDING_ID = 0
MASK_ID = 1

_HIDDEN_SHARE = 0.15
_MASKED_SHARE = 0.8
_RANDOM_SHARE = 0.1


def hide_tokens(
    tokens: Tensor, lengths: Tensor, vocabulary: int, mask_id: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Hide 15 % of the columns in every row, as BERT does; returns what the model sees and the labels.

    Of the hidden tokens 80 % become `mask_id`, 10 % a random token, 10 % stay. `lengths`, [batch_size, 1],
    says how many tokens of a row are real.
    """
    batch_size, sequence = tokens.shape
    num_hidden = max(1, round(_HIDDEN_SHARE * sequence))
    columns = torch.arange(sequence, device="cpu")
    # The lowest of random scores are a random choice; padding scores too high to be among them.
    scores = torch.rand(batch_size, sequence, generator=generator, device="cpu", dtype=torch.float32)
    chosen = (scores + (columns >= lengths)).argsort(dim=1)[:, :num_hidden]
    hidden = torch.zeros(batch_size, sequence, dtype=torch.bool, device="cpu").scatter(1, chosen, True)

    fate = torch.rand(batch_size, sequence, generator=generator, device="cpu", dtype=torch.float32)
    random_ids = torch.randint(
        0, min(vocabulary, NUM_BYTE_VALUES), (batch_size, sequence), generator=generator, device="cpu"
    )
    seen = torch.where(hidden & (fate < _MASKED_SHARE), mask_id, tokens)
    replaced = hidden & (fate >= _MASKED_SHARE) & (fate < _MASKED_SHARE + _RANDOM_SHARE)
    seen = torch.where(replaced, random_ids, seen)
    return seen, torch.where(hidden, tokens, IGNORED_LABEL)


def masked_token_batches(sequence: int, vocabulary: int, batch_size: int, seed: int) -> Iterator[Batch]:
    """Endless `tokens`, `attention_mask` (1 real, 0 padding) and `labels`, all [batch_size, sequence].

    Rows hold between three quarters of `sequence` and all of it in real tokens, so that the mask matters.
    """
    generator = seeded_generator(seed)
    columns = torch.arange(sequence, device="cpu")
    shortest = -(-3 * sequence // 4)
    while True:
        window = text_windows(sequence, vocabulary, batch_size, generator)
        lengths = torch.randint(shortest, sequence + 1, (batch_size, 1), generator=generator, device="cpu")
        real = columns < lengths
        window = torch.where(real, window, PADDING_ID)
        tokens, labels = hide_tokens(window, lengths, vocabulary, MASK_ID, generator)
        yield {"tokens": tokens, "attention_mask": real.long(), "labels": labels}
