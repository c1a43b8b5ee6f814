"""A model whose loss was taken out of it by hand, which is what PyTorch's pipelining asks of its users."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = Mapping[str, Any]
_TARGETS = ("labels", "targets", "masks")
_IGNORED = -100


class Prediction(nn.Module):
    """The model up to its prediction, of tensors given by position."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *tensors: Tensor) -> Tensor:
        inputs = dict(zip(self.names, tensors, strict=True))
        if hasattr(self.model, "auxiliary"):
            features = self.model.lower(*tensors)
            return torch.stack([self.model.upper(features), self.model.auxiliary(features)])
        if hasattr(self.model, "logits"):
            return self.model.logits(**inputs)
        if hasattr(self.model, "network"):
            return self.model.network(*tensors)
        outputs = self.model(**inputs)
        return outputs.logits_per_text if "logits_per_text" in outputs else outputs.logits


@dataclass(frozen=True)
class Apart:
    """The prediction, what it is made from, and the loss as a function of prediction and target."""

    model: Prediction
    inputs: tuple[Tensor, ...]
    target: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]


def taken_apart(model: nn.Module, batch: Inputs, task: str) -> Apart:
    """`model` and its loss for one of the tasks of the matrix."""
    key = next((key for key in _TARGETS if key in batch), None)
    inputs = {n: t for n, t in batch.items() if n != key and isinstance(t, Tensor)}
    rows = next(iter(inputs.values())).size(0)
    target = batch[key] if key is not None else torch.zeros(rows)
    if task in ("paired", "speech"):
        inputs["decoder_input_ids"] = _shifted(model, target)
    loss = _LOSSES.get(task, _each_place)
    if type(model).__name__.startswith("Siglip"):
        loss = _sigmoid_contrast
    return Apart(Prediction(model, tuple(inputs)), tuple(inputs.values()), target, loss)


def _shifted(model: nn.Module, labels: Tensor) -> Tensor:
    """What a decoder reads: the labels one place later, as the model itself would shift them."""
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        return model.prepare_decoder_input_ids_from_labels(labels=labels)
    return F.pad(labels[:, :-1], (1, 0), value=model.config.decoder_start_token_id)


def _each_place(prediction: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of a class per row, per token or per pixel."""
    if prediction.dim() == 3:
        prediction, target = prediction.flatten(0, 1), target.flatten()
    return F.cross_entropy(prediction, target)


def _next_token(prediction: Tensor, target: Tensor) -> Tensor:
    return _each_place(prediction, F.pad(target, (0, 1), value=_IGNORED)[:, 1:])


def _enlarged(prediction: Tensor, target: Tensor) -> Tensor:
    size = target.shape[-2:]
    return F.cross_entropy(F.interpolate(prediction, size=size, mode="bilinear", align_corners=False), target)


def _transcript(prediction: Tensor, target: Tensor) -> Tensor:
    frames = torch.full((prediction.size(0),), prediction.size(1))
    lengths = torch.full((target.size(0),), target.size(1))
    return F.ctc_loss(prediction.log_softmax(-1).transpose(0, 1), target, frames, lengths, blank=0, reduction="sum")


def _two_heads(prediction: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(prediction[0], target) + 0.4 * F.cross_entropy(prediction[1], target)


def _contrast(prediction: Tensor, _: Tensor) -> Tensor:
    own = torch.arange(prediction.size(0))
    return (F.cross_entropy(prediction, own) + F.cross_entropy(prediction.t(), own)) / 2


def _sigmoid_contrast(prediction: Tensor, _: Tensor) -> Tensor:
    signs = 2 * torch.eye(prediction.size(0)) - 1
    return -F.logsigmoid(signs * prediction).sum(-1).mean()


_LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "causal": _next_token,
    "segments": _enlarged,
    "ctc": _transcript,
    "two heads": _two_heads,
    "contrast": _contrast,
}
