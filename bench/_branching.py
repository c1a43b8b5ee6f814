"""Models whose parts run beside each other, for `cut_quality`: each written the way such models usually are."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TwoTowers(nn.Module):
    """Images and words, each through a transformer of its own, layer by layer side by side: do they belong together?"""

    def __init__(self, *, layers: int = 8, width: int = 512, patches: int = 196, words: int = 64) -> None:
        super().__init__()
        self.see = nn.Linear(768, width)
        self.read = nn.Embedding(8192, width)
        self.seeing = nn.ModuleList(_layer(width) for _ in range(layers))
        self.reading = nn.ModuleList(_layer(width) for _ in range(layers))
        self.head = nn.Linear(2 * width, 2)
        self.shapes = (patches, words)

    def batch(self, rows: int) -> dict[str, Tensor]:
        patches, words = self.shapes
        return {
            "image": torch.empty(rows, patches, 768),
            "text": torch.empty(rows, words, dtype=torch.int64),
            "labels": torch.empty(rows, dtype=torch.int64),
        }

    def forward(self, image: Tensor, text: Tensor, labels: Tensor) -> Tensor:
        seen, words = self.see(image), self.read(text)
        for eye, ear in zip(self.seeing, self.reading, strict=True):
            seen, words = eye(seen), ear(words)
        return F.cross_entropy(self.head(torch.cat([seen.mean(1), words.mean(1)], dim=1)), labels)


def _layer(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True)


class CellNetwork(nn.Module):
    """Cells as architecture search finds them: each reads the two before it, and joins four sums of operations."""

    def __init__(self, *, cells: int = 12, channels: int = 36, classes: int = 1000) -> None:
        super().__init__()
        self.stem = _convolution(3, 3 * channels, 3, stride=4)
        before = last = 3 * channels
        reduced_before = False
        self.cells = nn.ModuleList()
        for index in range(cells):
            reduces = index in (cells // 3, 2 * cells // 3)
            channels *= 2 if reduces else 1
            self.cells.append(_Cell(before, last, channels, reduces=reduces, reduced_before=reduced_before))
            before, last, reduced_before = last, 4 * channels, reduces
        self.head = nn.Linear(4 * channels, classes)

    def batch(self, rows: int) -> dict[str, Tensor]:
        return {"image": torch.empty(rows, 3, 224, 224), "labels": torch.empty(rows, dtype=torch.int64)}

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        before = last = self.stem(image)
        for cell in self.cells:
            before, last = last, cell(before, last)
        return F.cross_entropy(self.head(last.mean((2, 3))), labels)


class _Cell(nn.Module):
    _INPUTS = ((0, 1), (0, 1), (1, 2), (0, 2))  # what each sum adds, of the two inputs and the sums so far

    def __init__(self, before: int, last: int, channels: int, *, reduces: bool, reduced_before: bool) -> None:
        super().__init__()
        self.shape_before = _convolution(before, channels, 1, stride=2 if reduced_before else 1)
        self.shape_last = _convolution(last, channels, 1)
        self.operations = nn.ModuleList(
            _separable(channels, 3 + 2 * (index % 2), stride=2 if reduces and source < 2 else 1)
            for pair in self._INPUTS
            for index, source in enumerate(pair)
        )

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        states = [self.shape_before(before), self.shape_last(last)]
        operations = iter(self.operations)
        for a, b in self._INPUTS:
            states.append(next(operations)(states[a]) + next(operations)(states[b]))
        return torch.cat(states[2:], dim=1)


def _separable(channels: int, kernel: int, *, stride: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for step in (stride, 1):
        parts += [
            nn.ReLU(),
            nn.Conv2d(channels, channels, kernel, step, kernel // 2, groups=channels, bias=False),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        ]
    return nn.Sequential(*parts)


def _convolution(inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.ReLU(), nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class DenseNet(nn.Module):
    """DenseNet-121: every layer reads all before it in its block."""

    def __init__(self, *, blocks: tuple[int, ...] = (6, 12, 24, 16), growth: int = 32, classes: int = 1000) -> None:
        super().__init__()
        channels = 2 * growth
        parts: list[nn.Module] = [_convolution(3, channels, 7, stride=2), nn.MaxPool2d(3, 2, 1)]
        for index, layers in enumerate(blocks):
            parts.append(_DenseBlock(layers, channels, growth))
            channels += layers * growth
            if index + 1 < len(blocks):
                parts += [*_bottleneck(channels, channels // 2), nn.AvgPool2d(2)]
                channels //= 2
        self.features = nn.Sequential(*parts)
        self.head = nn.Linear(channels, classes)

    def batch(self, rows: int) -> dict[str, Tensor]:
        return {"image": torch.empty(rows, 3, 224, 224), "labels": torch.empty(rows, dtype=torch.int64)}

    def forward(self, image: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.features(image).mean((2, 3))), labels)


class _DenseBlock(nn.Module):
    def __init__(self, layers: int, channels: int, growth: int) -> None:
        super().__init__()
        inner = 4 * growth
        self.layers = nn.ModuleList(
            nn.Sequential(
                *_bottleneck(channels + index * growth, inner),
                nn.BatchNorm2d(inner),
                nn.ReLU(),
                nn.Conv2d(inner, growth, 3, padding=1, bias=False),
            )
            for index in range(layers)
        )

    def forward(self, features: Tensor) -> Tensor:
        made = [features]
        for layer in self.layers:
            made.append(layer(torch.cat(made, dim=1)))
        return torch.cat(made, dim=1)


def _bottleneck(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, 1, bias=False))
