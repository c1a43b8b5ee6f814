"""BERT in plain PyTorch, with the masked-language-model head tied to the token embedding."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.jobs.masked_text import IGNORED_LABEL
from plait.jobs.transformer import TransformerShape

_INITIAL_DEVIATION = 0.02
_NORM_EPSILON = 1e-12
_TOKEN_TYPES = 2


class Embeddings(nn.Module):
    """Token, position and token-type embeddings, added and normalised."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.sequence, shape.width)
        self.token_types = nn.Embedding(_TOKEN_TYPES, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=_NORM_EPSILON)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, tokens: Tensor, token_types: Tensor) -> Tensor:
        """From ids [batch, sequence] to vectors [batch, sequence, width]."""
        positions = torch.arange(tokens.size(1), device=tokens.device)
        vectors = self.tokens(tokens) + self.positions(positions) + self.token_types(token_types)
        return self.dropout(self.norm(vectors))


class Attention(nn.Module):
    """Self-attention over the real tokens of each row."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.head_width = shape.width // shape.heads
        self.dropout = shape.dropout
        self.query = nn.Linear(shape.width, shape.width)
        self.key = nn.Linear(shape.width, shape.width)
        self.value = nn.Linear(shape.width, shape.width)
        self.output = nn.Linear(shape.width, shape.width)
        self.output_dropout = nn.Dropout(shape.dropout)

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        """Mix the positions; `visible` [batch, 1, 1, sequence] is true where a token may be looked at."""
        query, key, value = (
            projection(hidden).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=visible, dropout_p=self.dropout if self.training else 0.0
        )
        return self.output_dropout(self.output(mixed.transpose(1, 2).flatten(2)))


class Layer(nn.Module):
    """One transformer layer, normalised after each part."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.attention_norm = nn.LayerNorm(shape.width, eps=_NORM_EPSILON)
        self.expand = nn.Linear(shape.width, 4 * shape.width)
        self.activation = nn.GELU()
        self.output = nn.Linear(4 * shape.width, shape.width)
        self.output_dropout = nn.Dropout(shape.dropout)
        self.output_norm = nn.LayerNorm(shape.width, eps=_NORM_EPSILON)

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        """[batch, sequence, width] in and out."""
        hidden = self.attention_norm(hidden + self.attention(hidden, visible))
        update = self.output_dropout(self.output(self.activation(self.expand(hidden))))
        return self.output_norm(hidden + update)


class Bert(nn.Module):
    """The masked language model; called with tokens, mask and labels, it returns the mean cross-entropy."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.embeddings = Embeddings(shape)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.head = nn.Linear(shape.width, shape.width)
        self.head_activation = nn.GELU()
        self.head_norm = nn.LayerNorm(shape.width, eps=_NORM_EPSILON)
        self.head_bias = nn.Parameter(torch.zeros(shape.vocabulary))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=_INITIAL_DEVIATION)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def logits(self, tokens: Tensor, attention_mask: Tensor, token_types: Tensor | None = None) -> Tensor:
        """Scores of the token at every position: [batch, sequence, vocabulary]."""
        if token_types is None:
            token_types = torch.zeros_like(tokens)
        visible = attention_mask.bool()[:, None, None, :]
        hidden = self.embeddings(tokens, token_types)
        for layer in self.layers:
            hidden = layer(hidden, visible)
        hidden = self.head_norm(self.head_activation(self.head(hidden)))
        return F.linear(hidden, self.embeddings.tokens.weight, self.head_bias)

    def forward(
        self, tokens: Tensor, attention_mask: Tensor, labels: Tensor, token_types: Tensor | None = None
    ) -> Tensor:
        """The mean cross-entropy over the hidden tokens, a scalar; other labels are -100."""
        logits = self.logits(tokens, attention_mask, token_types)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL)
