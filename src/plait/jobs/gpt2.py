"""GPT-2 in plain PyTorch: learned positions, normalisation before each block, head tied to embeddings."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.jobs.transformer import TransformerShape

_INITIAL_DEVIATION = 0.02
_INITIAL_POSITION_DEVIATION = 0.01


class Attention(nn.Module):
    """Causal self-attention with one projection for queries, keys and values."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.head_width = shape.width // shape.heads
        self.width = shape.width
        self.dropout = shape.dropout
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.output = nn.Linear(shape.width, shape.width)
        self.output_dropout = nn.Dropout(shape.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Mix every position with those before it; [batch, sequence, width] in and out."""
        projected = self.query_key_value(hidden).split(self.width, dim=-1)
        query, key, value = (part.unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in projected)
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        return self.output_dropout(self.output(mixed.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    """Four times as wide inside, with the tanh form of GELU that GPT-2 was trained with."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.expand = nn.Linear(shape.width, 4 * shape.width)
        self.activation = nn.GELU(approximate="tanh")
        self.output = nn.Linear(4 * shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform every position by itself."""
        return self.dropout(self.output(self.activation(self.expand(hidden))))


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.LayerNorm(shape.width)
        self.feed_forward = FeedForward(shape)

    def forward(self, hidden: Tensor) -> Tensor:
        """Add attention, then the feed-forward part, to the residual stream."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))


class GPT2(nn.Module):
    """The language model; called with tokens and targets, it returns the mean cross-entropy."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.position_embedding = nn.Embedding(shape.sequence, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self._initialise(shape.layers)

    def _initialise(self, layers: int) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=_INITIAL_DEVIATION)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.token_embedding.weight, std=_INITIAL_DEVIATION)
        nn.init.normal_(self.position_embedding.weight, std=_INITIAL_POSITION_DEVIATION)
        # Two outputs per layer add to the residual stream; scaled so, their sum does not grow with depth.
        for block in self.blocks:
            assert isinstance(block, Block)
            for output in (block.attention.output, block.feed_forward.output):
                nn.init.normal_(output.weight, std=_INITIAL_DEVIATION / math.sqrt(2 * layers))

    def logits(self, tokens: Tensor) -> Tensor:
        """Scores of the next token at every position: [batch, sequence, vocabulary]."""
        positions = torch.arange(tokens.size(1), device=tokens.device)
        hidden = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for block in self.blocks:
            hidden = block(hidden)
        # The head is the embedding itself: one parameter, used at both ends of the model.
        return F.linear(self.norm(hidden), self.token_embedding.weight)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of the targets, a scalar."""
        return F.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())
