"""One entry of the matrix: a small model, a batch for it, and what a comparison has to know about the two."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

ROWS = 4
SEQUENCE = 8
VOCABULARY = 32
IMAGE = 32
CLASSES = 4

Batch = dict[str, Any]


@dataclass(frozen=True, eq=False)  # an entry equals itself alone, so that results can be kept per entry
class Architecture:
    """A model as its authors wrote it, made small by its configuration; called with its batch it returns the loss.

    `middle` names the module in front of which a tool that splits by name should split it, and `task` what it
    learns. With `draws`, the model draws random numbers whatever its configuration says (LayerDrop).
    """

    name: str
    family: str
    task: str
    build: Callable[[], nn.Module]
    make_batch: Callable[[], Batch]
    middle: str
    draws: bool = False
    fast: bool = False

    def model(self) -> nn.Module:
        """Always the same weights, in float64 and in training mode."""
        torch.manual_seed(0)
        return self.build().double().train()

    def batch(self) -> Batch:
        """Always the same batch."""
        torch.manual_seed(1)
        return {n: t.double() if _is_float(t) else t for n, t in self.make_batch().items()}

    def without_layerdrop(self) -> "Architecture":
        """The same code with a chance of zero: it still draws and branches, and always gives eager numbers."""
        assert isinstance(self.build, HuggingFace)
        fields = {name: 0.0 if "layerdrop" in name else value for name, value in self.build.fields.items()}
        return replace(self, build=replace(self.build, fields=fields), draws=False)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


@dataclass(frozen=True)
class HuggingFace:
    """Builds a transformers model from its configuration alone, without dropout and without a cache for generation."""

    class_name: str
    model_type: str
    fields: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> nn.Module:
        import transformers  # takes seconds, which tests of other models need not wait

        config = transformers.AutoConfig.for_model(self.model_type, **copy.deepcopy(self.fields))
        config.use_cache = False
        for part in (config, getattr(config, "text_config", None), getattr(config, "vision_config", None)):
            _without_dropout(part)
        model: nn.Module = getattr(transformers, self.class_name)(config)
        return model


def _without_dropout(config: Any) -> None:
    """Streams of random numbers are Plait's own, so that eager numbers can only be compared without any."""
    for name, value in vars(config).items() if config is not None else ():
        if "drop" in name and "layerdrop" not in name and isinstance(value, float):
            setattr(config, name, 0.0)


# Batches


def tokens(sequence: int = SEQUENCE) -> Tensor:
    """Ids from 3 up: the first few are padding and marks of beginning and end in many models."""
    return torch.randint(3, VOCABULARY, (ROWS, sequence))


def causal_batch() -> Batch:
    ids = tokens()
    return {"input_ids": ids, "labels": ids.clone()}


def masked_batch() -> Batch:
    """Labels at two places of each row; the others are left out of the loss."""
    ids = tokens()
    labels = torch.full_like(ids, -100)
    labels[:, 1::4] = ids[:, 1::4]
    return {"input_ids": ids.masked_fill(labels != -100, VOCABULARY - 1), "labels": labels}


def paired_batch() -> Batch:
    return {"input_ids": tokens(), "labels": tokens(SEQUENCE - 2)}


def image_batch() -> Batch:
    return {"pixel_values": torch.randn(ROWS, 3, IMAGE, IMAGE), "labels": torch.randint(0, CLASSES, (ROWS,))}


def segments_batch() -> Batch:
    return {**image_batch(), "labels": torch.randint(0, CLASSES, (ROWS, IMAGE, IMAGE))}


def speech_batch() -> Batch:
    return {"input_values": torch.randn(ROWS, 400), "labels": tokens(4)}


def transcript_batch() -> Batch:
    return {"input_features": torch.randn(ROWS, 8, 2 * SEQUENCE), "labels": tokens(SEQUENCE - 2)}


def caption_batch() -> Batch:
    return {"input_ids": tokens(), "pixel_values": torch.randn(ROWS, 3, IMAGE, IMAGE), "return_loss": True}
