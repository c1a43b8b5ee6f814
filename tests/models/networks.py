"""Models that need no library: Plait's own jobs, an LSTM language model and a DenseNet."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from architecture import CLASSES, IMAGE, ROWS, SEQUENCE, VOCABULARY, Architecture, Batch, tokens
from torch import Tensor, nn

from plait.jobs import load_job


class LSTMLanguageModel(nn.Module):
    """Embedding, recurrent layers that pass their state on, and a head that shares the embedding's weights."""

    def __init__(self, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def logits(self, input_ids: Tensor) -> Tensor:
        hidden, state = self.embedding(input_ids), None
        for layer in self.layers:
            hidden, state = layer(hidden, state)
        return self.head(hidden)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(input_ids).flatten(0, 1), labels.flatten())


class DenseNet(nn.Module):
    """Every layer of a block reads what all layers before it made."""

    def __init__(self, growth: int = 4, blocks: int = 2, layers: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 2 * growth, 3, stride=2, padding=1, bias=False)
        self.blocks, channels = nn.ModuleList(), 2 * growth
        for _ in range(blocks):
            block = nn.ModuleList(_normalised_convolution(channels + n * growth, growth, 3) for n in range(layers))
            channels += layers * growth
            self.blocks.append(nn.ModuleDict({"layers": block, "out": _normalised_convolution(channels, channels, 1)}))
        self.head = nn.Linear(channels, CLASSES)

    def logits(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        for block in self.blocks:
            for layer in block["layers"]:
                features = torch.cat([features, layer(features)], dim=1)
            features = F.avg_pool2d(block["out"](features), 2)
        return self.head(features.mean((2, 3)))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(images), labels)


def _normalised_convolution(inputs: int, outputs: int, size: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    )


def next_token_batch() -> Batch:
    ids = tokens(SEQUENCE + 1)
    return {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


def picture_batch() -> Batch:
    return {"images": torch.randn(ROWS, 3, IMAGE, IMAGE), "labels": torch.randint(0, CLASSES, (ROWS,))}


def job(name: str, family: str, task: str, spec: str, middle: str, *, rows: int = ROWS, **rest: Any) -> Architecture:
    """A built-in job of Plait's, made small by its options."""
    found = load_job(spec)
    batch: Callable[[], Batch] = partial(_first_batch, spec, rows)
    return Architecture(name, family, task, found.model, batch, middle, **rest)


def _first_batch(spec: str, rows: int) -> Batch:
    return dict(next(load_job(spec).batches(rows, 0)))


NETWORKS = (
    Architecture("LSTM language model", "recurrent", "tokens", LSTMLanguageModel, next_token_batch, "layers.1",
                 fast=True),
    Architecture("DenseNet", "convolution", "pictures", DenseNet, picture_batch, "blocks.1.layers.0", fast=True),
    job("U-Net", "convolution", "masks", "unet?image=16&width=0.25", "bottom"),
    job("AlexNet", "convolution", "pictures", "alexnet?image=64&width=0.0625&dropout=0&classes=4", "network.8"),
    job("VGG-16", "convolution", "pictures", "vgg16?image=32&width=0.0625&dropout=0&classes=4", "network.17"),
    job("VGG-19", "convolution", "pictures", "vgg19?image=32&width=0.0625&dropout=0&classes=4", "network.19"),
    job("ResNet-50", "convolution", "pictures", "resnet50?image=33&width=0.125&classes=4", "network.8"),
    job("Inception-v3", "convolution", "two heads",
        "inception-v3?image=107&width=0.0625&dropout=0&classes=4", "lower.11", rows=16),
    job("GPT-2 (Plait's)", "decoder", "tokens",
        "gpt2-tiny?layers=4&width=16&heads=2&sequence=8&dropout=0", "blocks.2"),
    job("BERT (Plait's)", "encoder", "tokens",
        "bert-tiny?layers=4&width=16&heads=2&sequence=24&dropout=0", "layers.2"),
)  # fmt: skip
