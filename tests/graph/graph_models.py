"""Models that exercise every rule of cutting, one each. All in float64, on batches of a few rows."""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.graph import Model, build_graph

WIDTH = 8
ROWS = 6


class Example(nn.Module):
    """Two dense layers `first` and `second`; subclasses say what happens between and around them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def batch(self) -> dict[str, Tensor]:
        return {"x": torch.randn(ROWS, WIDTH).double(), "t": torch.randn(ROWS, WIDTH).double()}


class Chain(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(self.second(self.first(x).tanh()), t)


# Tuples


class ChunkAndSplit(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        a, b = self.first(x).chunk(2, dim=1)
        c, d, e = (a * b.exp()).split([1, 2, 1], dim=1)
        return F.mse_loss(self.second(torch.cat([a, c.sin(), d, e], dim=1)), t)


class LargestAndPlace(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        values, places = self.first(x).max(dim=1, keepdim=True)
        return F.mse_loss(self.second(values * places + x), t)


# Overwritten memory


class InplaceActivation(Example):
    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.activation(self.first(x))
        return F.mse_loss(self.second(hidden).clamp_(-1, 1).mul_(2), t)


class InplaceResidual(Example):
    """The sum is written into the branch while the trunk is read again later."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        trunk = self.first(x)
        branch = self.second(trunk)
        branch += trunk
        return F.mse_loss(branch * trunk, t)


class WriteThroughView(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden[:, 0] += 1
        hidden[:, 2:4].mul_(3)
        return F.mse_loss(self.second(hidden), t)


class FillEmptyTensor(Example):
    """Gradients flow only through what is written into a tensor that was made without any."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x)
        filled = torch.zeros_like(hidden)
        filled[:, :4] = hidden[:, 4:].sin()
        filled[:, 4:] = hidden[:, :4] * 2
        return F.mse_loss(self.second(filled), t)


class ReadBeforeAndAfterWrite(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x) * 2
        view = hidden.view(-1, 4)
        before = hidden * 0.5
        view.mul_(3)
        after = hidden.cos()
        return F.mse_loss(self.second(before) + after + view.view(-1, WIDTH), t)


class WriteIntoBatch(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x.sub_(0.5)
        t[:, 0] = 0
        return F.mse_loss(self.second(self.first(x).tanh()) + x, t)


class WriteThroughSameTensor(Example):
    """`type_as` and dropout of nothing give back their input, so writing to the result writes to it too."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x) * 2
        same = F.dropout(hidden.type_as(x), 0.0)
        same.mul_(3)
        return F.mse_loss(self.second(hidden) + same, t)


class ReadsStrides(Example):
    """What `as_strided` picks depends on how its input lies in memory."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        columns = self.first(x).t()
        rows = columns.as_strided((x.size(0), WIDTH), (WIDTH, 1))
        return F.mse_loss(self.second(rows) + columns.t(), t)


# Regions


class NoGradRegion(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x)
        with torch.no_grad():
            weights = hidden.softmax(1)
            order = hidden.argmax(1, keepdim=True)
        return F.mse_loss(self.second(hidden * weights) + order, t)


class AutocastRegion(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.second(hidden).relu_()
            other = hidden.sum(1, keepdim=True)
        return F.mse_loss(hidden + other, t)


class RegionWritesItsInput(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x) * 1.0
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden.mul_(2)
            view = hidden[:, :4]
        view.add_(1)
        return F.mse_loss(self.second(hidden), t)


class NamesItsDevice(Example):
    """As rotary embeddings do: the device of the capture stands in the code, also inside a region."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.linspace(0.1, 1, WIDTH))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        with torch.no_grad():
            waves = (self.frequencies.to(x.device, torch.float32) * x).cos()
        shift = torch.ones(WIDTH, device=x.device).to(x.device, x.dtype)
        return F.mse_loss(self.second(self.first(x) * waves) + shift, t)


class DetachedBranch(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x)
        teacher = self.second(hidden.detach()).detach()
        return F.mse_loss(self.second(hidden.tanh()), t) + F.mse_loss(hidden, teacher)


# Buffers


class BatchNormed(Example):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.norm_without_weights = nn.BatchNorm1d(WIDTH, affine=False, momentum=0.3)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.norm(self.first(x)).relu()
        return F.mse_loss(self.norm_without_weights(self.second(hidden)), t)


class BatchNormInRegion(Example):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.norm(self.first(x))
        return F.mse_loss(self.second(hidden) + self.norm.running_mean.clone(), t)


class RunningMean(Example):
    """A buffer that is read, written and read again."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(WIDTH))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x) - self.mean.clone()
        self.mean.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
        return F.mse_loss(self.second(hidden.tanh()) * self.mean.clone(), t)


class RunningMeanInRegion(Example):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(WIDTH))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x)
        with torch.no_grad():
            self.mean.lerp_(hidden.mean(0), 0.1)
        self.steps += 1
        return F.mse_loss(self.second(hidden.tanh()), t)


class BufferReadInSeveralPlaces(Example):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 2, WIDTH))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(self.second(self.first(x * self.scale) * self.scale) * self.scale, t)


class MaskFromBuffer(Example):
    """The buffer is read only by cheap nodes that every stage computes for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(WIDTH + 2, WIDTH + 2)))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        mask = self.mask[:WIDTH, :WIDTH].sum(0)
        return F.mse_loss(self.second(self.first(x) * mask) * mask, t)


# Parameters


class TiedEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 20, bias=False)
        self.head.weight = self.embedding.weight

    def batch(self) -> dict[str, Tensor]:
        return {"tokens": torch.randint(0, 20, (ROWS, 5)), "labels": torch.randint(0, 20, (ROWS, 5))}

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(self.dense(self.embedding(tokens)).tanh())
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class TiedThrice(Example):
    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.third.weight = self.first.weight
        self.third.bias = self.second.bias

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(self.third(self.second(self.first(x).tanh()).tanh()), t)


class UnusedAndFrozen(Example):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(self.second(self.frozen(self.first(self.frozen(x)))), t)


# Shapes of graphs


class LongSkips(Example):
    """A U: every value on the way down is used again on the way up."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        down = [self.first(x)]
        for _ in range(4):
            down.append(self.second(down[-1].tanh()))
        up = down.pop()
        while down:
            up = self.first(up + down.pop()).sin()
        return F.mse_loss(up + x, t)


class SeveralInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(2, 3, 3, padding=1)
        self.words = nn.Embedding(11, 12)
        self.head = nn.Linear(12, 4)

    def batch(self) -> dict[str, Tensor]:
        return {
            "image": torch.randn(ROWS, 2, 2, 2).double(),
            "words": torch.randint(0, 11, (ROWS, 7)),
            "weight": torch.rand(ROWS).double(),
            "labels": torch.randint(0, 4, (ROWS,)),
        }

    def forward(self, image: Tensor, words: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        seen = self.image(image).flatten(1) + self.words(words).mean(1)
        each = F.cross_entropy(self.head(seen), labels, reduction="none")
        return (each * weight).mean()


class SizesFromRows(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rows = x.size(0)
        hidden = self.first(x).view(rows * 2, 4).tanh().reshape(rows, WIDTH)
        ones = torch.ones(rows, 1, dtype=x.dtype)
        return (self.second(hidden) * ones - t).pow(2).sum() / (rows * 3)


class RowsAsANumber(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rows = x.size(0)
        pairs = (self.first(x) @ self.second(x).t()).reshape(rows * rows)
        return pairs.tanh().sum() * (1.0 / rows) / rows**2 + rows // 2


class LengthOfATensor(Example):
    """`len` of a tensor is its number of rows, whatever the batch."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        own = torch.arange(len(hidden))
        return F.cross_entropy(hidden @ self.second(t).t(), own) / len(x)


class PositionsAndMasks(nn.Module):
    """Attention with positions and a mask computed from nothing but sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(13, WIDTH)
        self.positions = nn.Embedding(5, WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, 13)

    def batch(self) -> dict[str, Tensor]:
        return {"tokens": torch.randint(0, 13, (ROWS, 5)), "labels": torch.randint(0, 13, (ROWS, 5))}

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        places = torch.arange(tokens.size(1))
        hidden = self.embedding(tokens) + self.positions(places)
        query, key, value = self.project(hidden).chunk(3, dim=-1)
        mask = places[:, None] >= places[None, :]
        scores = (query @ key.transpose(1, 2)).masked_fill_(~mask, float("-inf"))
        logits = self.head(scores.softmax(-1) @ value)
        labels = labels.masked_fill(tokens == 0, -100)
        return F.cross_entropy(logits.transpose(1, 2), labels)


class PickPerRow(Example):
    """`h[arange(rows), place]`"""

    def batch(self) -> dict[str, Tensor]:
        return {**super().batch(), "place": torch.randint(0, WIDTH, (ROWS,))}

    def forward(self, x: Tensor, t: Tensor, place: Tensor) -> Tensor:
        hidden = self.first(x)
        picked = hidden[torch.arange(x.size(0)), place]
        return F.mse_loss(self.second(hidden) + picked[:, None], t)


class KeepSomeRows(Example):
    """A size that is only known while running."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x)
        kept = hidden[t[:, 0] > t[:, 0].mean()]
        return F.mse_loss(self.second(hidden), t) + kept.pow(2).sum()


class RowsAgainstRows(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        a, b = F.normalize(self.first(x)), F.normalize(self.second(t))
        return F.cross_entropy(a @ b.t(), torch.arange(x.size(0)))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.up = nn.ConvTranspose2d(6, 3, 2, stride=2)
        self.head = nn.Linear(3, 4)

    def batch(self) -> dict[str, Tensor]:
        return {"x": torch.randn(ROWS, 3, 8, 8).double(), "labels": torch.randint(0, 4, (ROWS,))}

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        hidden = F.max_pool2d(F.relu(self.norm(self.down(x)), inplace=True), 2)
        hidden = F.interpolate(self.up(hidden), scale_factor=2)
        return F.cross_entropy(self.head((hidden + x).mean((2, 3))), labels)


class Recurrent(nn.Module):
    """Layers that write attributes of their own while captured, about which PyTorch warns."""

    def __init__(self) -> None:
        super().__init__()
        self.long = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.gated = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(2 * WIDTH, 3)

    def batch(self) -> dict[str, Tensor]:
        return {"x": torch.randn(ROWS, 4, WIDTH).double(), "t": torch.randn(ROWS, 3).double()}

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        outputs, (last, _) = self.long(x)
        gated, _ = self.gated(outputs)
        return F.mse_loss(self.head(torch.cat([gated[:, -1], last[-1]], dim=1)), t)


class ReturnsObject(Example):
    """The loss among other outputs, as Hugging Face models return it."""

    def forward(self, x: Tensor, t: Tensor) -> dict[str, Tensor]:
        logits = self.second(self.first(x).relu())
        return {"logits": logits, "loss": F.l1_loss(logits, t)}


# Random operations


class Dropouts(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = F.dropout(self.first(x), 0.4)
        hidden = F.dropout(self.second(hidden), 0.2, inplace=True)
        hidden[:, 2:].mul_(F.dropout(torch.ones_like(hidden[:, 2:]), 0.5))
        return F.mse_loss(F.alpha_dropout(hidden, 0.3, training=True), t)


class Noise(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        mean, deviation = self.first(x), self.second(x)
        sample = mean + torch.randn_like(deviation) * deviation.exp()
        return F.mse_loss(sample + torch.empty_like(sample).uniform_(), t)


class StochasticDepth(Example):
    """As torchvision and timm write it: a fresh tensor filled in place."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x)
        keep = hidden.new_empty(x.size(0), 1).bernoulli_(0.6)
        keep.div_(0.6)
        return F.mse_loss(hidden + self.second(hidden) * keep, t)


class DropoutInRegion(Example):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = F.dropout(self.first(x), 0.5)
            hidden = F.dropout(hidden * 2, 0.5)
        with torch.no_grad():
            noise = torch.rand_like(hidden)
        return F.mse_loss(self.second(hidden) + noise, t)


class DropoutOnPlainTensor(Example):
    """In place on memory that a view still reads: cannot be rewritten, so it stays in place."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.first(x) * 2
        view = hidden.view(-1)
        F.dropout(hidden, 0.5, inplace=True)
        return F.mse_loss(self.second(view.view(-1, WIDTH)), t)


@functools.cache
def captured(example: type[nn.Module]) -> tuple[nn.Module, dict[str, Tensor], Model]:
    """An example with its batch and its graph, made once: nothing in these tests changes them."""
    module = example().double()
    batch = module.batch()
    return module, batch, build_graph(module, batch)


EXAMPLES: list[type[nn.Module]] = [
    Chain, ChunkAndSplit, LargestAndPlace, InplaceActivation, InplaceResidual, WriteThroughView, FillEmptyTensor,
    ReadBeforeAndAfterWrite, WriteIntoBatch, WriteThroughSameTensor, ReadsStrides, NoGradRegion, AutocastRegion,
    RegionWritesItsInput, NamesItsDevice, DetachedBranch, BatchNormed, BatchNormInRegion, RunningMean,
    RunningMeanInRegion, BufferReadInSeveralPlaces, MaskFromBuffer, TiedEmbedding, TiedThrice, UnusedAndFrozen,
    LongSkips, SeveralInputs, SizesFromRows, RowsAsANumber, LengthOfATensor, PositionsAndMasks, PickPerRow,
    KeepSomeRows, RowsAgainstRows, Convolutions, Recurrent, ReturnsObject,
]  # fmt: skip
ROW_MIXING_EXAMPLES: list[type[nn.Module]] = [
    BatchNormInRegion, RunningMean, RunningMeanInRegion, RowsAsANumber, LengthOfATensor, KeepSomeRows,
    RowsAgainstRows,
]  # fmt: skip
RANDOM_EXAMPLES: list[type[nn.Module]] = [Dropouts, Noise, StochasticDepth, DropoutInRegion, DropoutOnPlainTensor]
