"""The table of built-in jobs: from a name and its options to a `Job`."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from torch import nn

from plait.errors import PlaitError
from plait.jobs import alexnet, inception, resnet, unet, vgg
from plait.jobs.bert import Bert
from plait.jobs.gpt2 import GPT2
from plait.jobs.images import class_batches, disc_batches
from plait.jobs.job import Job
from plait.jobs.masked_text import masked_token_batches
from plait.jobs.optimizers import adamw, momentum
from plait.jobs.options import Option, Settings, Value, read_options
from plait.jobs.text import next_token_batches
from plait.jobs.transformer import TransformerShape


@dataclass(frozen=True)
class Builtin:
    """One line of the table: what may be changed, and how the job is made from the checked values."""

    options: Mapping[str, Option]
    make: Callable[[str, Settings], Job]


def builtin_names() -> tuple[str, ...]:
    """The names of the built-in jobs, smallest of a family first."""
    return tuple(_BUILTINS)


def load_builtin(spec: str, name: str, given: Mapping[str, Value]) -> Job:
    """Make the built-in job `name`; `spec` is what the user typed."""
    builtin = _BUILTINS.get(name)
    if builtin is None:
        raise PlaitError(_unknown(name))
    return builtin.make(spec, read_options(name, builtin.options, given))


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, _BUILTINS, n=3, cutoff=0.6)
    meant = f"; did you mean {' or '.join(close)}?" if close else "."
    return (
        f"There is no job {name!r}{meant} The built-in jobs are {', '.join(_BUILTINS)}. For a model of your "
        f"own give a path to a file.py, or hf:DIR for a folder with a Hugging Face config.json."
    )


def _gpt2(layers: int, width: int, heads: int, *, batch_size: int) -> Builtin:
    options = _text_options(layers, width, heads, sequence=1024, vocabulary=50257)
    return Builtin(options, partial(_gpt2_job, batch_size))


def _gpt2_job(batch_size: int, spec: str, settings: Settings) -> Job:
    shape = _shape(settings)
    return Job(
        name=spec,
        model=partial(GPT2, shape),
        batches=partial(next_token_batches, shape.sequence, shape.vocabulary),
        optimizer=adamw,
        loss=None,
        batch_size=batch_size,
        tokens_per_sample=shape.sequence,
    )


def _bert_job(batch_size: int, learning_rate: float, spec: str, settings: Settings) -> Job:
    shape = _shape(settings)
    return Job(
        name=spec,
        model=partial(Bert, shape),
        batches=partial(masked_token_batches, shape.sequence, shape.vocabulary),
        optimizer=partial(adamw, learning_rate=learning_rate),
        loss=None,
        batch_size=batch_size,
        tokens_per_sample=shape.sequence,
    )


def _text_options(layers: int, width: int, heads: int, *, sequence: int, vocabulary: int) -> dict[str, Option]:
    return {
        "layers": Option(layers, minimum=1),
        "width": Option(width, minimum=1),
        "heads": Option(heads, minimum=1),
        "sequence": Option(sequence, minimum=2, below=2**20),
        "vocabulary": Option(vocabulary, minimum=2),
        "dropout": Option(0.1, minimum=0, below=1),
    }


def _shape(settings: Settings) -> TransformerShape:
    return TransformerShape(
        layers=settings.whole("layers"),
        width=settings.whole("width"),
        heads=settings.whole("heads"),
        sequence=settings.whole("sequence"),
        vocabulary=settings.whole("vocabulary"),
        dropout=settings.real("dropout"),
    )


def _classifier(
    build: Callable[..., nn.Module],
    *,
    image: int = 224,
    smallest: int,
    dropout: float,
    batch_size: int,
    learning_rate: float,
) -> Builtin:
    options = _image_options(image, smallest=smallest, classes=1000, dropout=dropout)
    return Builtin(options, partial(_classifier_job, build, batch_size, learning_rate))


def _classifier_job(
    build: Callable[..., nn.Module], batch_size: int, learning_rate: float, spec: str, settings: Settings
) -> Job:
    image, classes = settings.whole("image"), settings.whole("classes")
    return Job(
        name=spec,
        model=partial(build, classes=classes, width=settings.real("width"), dropout=settings.real("dropout")),
        batches=partial(class_batches, image, classes),
        optimizer=partial(momentum, learning_rate=learning_rate),
        loss=None,
        batch_size=batch_size,
        tokens_per_sample=None,
    )


def _inception_job(spec: str, settings: Settings) -> Job:
    build = partial(inception.InceptionV3, image=settings.whole("image"))
    return _classifier_job(build, 32, 0.005, spec, settings)


def _unet_job(spec: str, settings: Settings) -> Job:
    image, classes = settings.whole("image"), settings.whole("classes")
    unet.check_image(image)
    return Job(
        name=spec,
        model=partial(unet.UNet, classes=classes, width=settings.real("width"), dropout=settings.real("dropout")),
        batches=partial(disc_batches, image, classes),
        optimizer=partial(momentum, learning_rate=0.05),
        loss=None,
        batch_size=32,
        tokens_per_sample=None,
    )


def _image_options(image: int, *, smallest: int, classes: int, dropout: float) -> dict[str, Option]:
    return {
        "image": Option(image, minimum=smallest),
        "classes": Option(classes, minimum=2),
        "width": Option(1.0, minimum=0.01),
        "dropout": Option(dropout, minimum=0, below=1),
    }


_vgg = partial(_classifier, smallest=vgg.SMALLEST_IMAGE, dropout=0.5, batch_size=32, learning_rate=0.003)
_resnet = partial(_classifier, smallest=resnet.SMALLEST_IMAGE, dropout=0.0, batch_size=32, learning_rate=0.01)

_BUILTINS: Mapping[str, Builtin] = MappingProxyType(
    {
        "gpt2-tiny": Builtin(_text_options(4, 128, 4, sequence=128, vocabulary=256), partial(_gpt2_job, 32)),
        "gpt2": _gpt2(12, 768, 12, batch_size=32),
        "gpt2-medium": _gpt2(24, 1024, 16, batch_size=32),
        "gpt2-large": _gpt2(36, 1280, 20, batch_size=32),
        "gpt2-xl": _gpt2(48, 1600, 25, batch_size=32),
        "bert-tiny": Builtin(_text_options(4, 128, 4, sequence=128, vocabulary=256), partial(_bert_job, 32, 3e-4)),
        "bert-large": Builtin(
            _text_options(24, 1024, 16, sequence=512, vocabulary=30522), partial(_bert_job, 32, 1e-4)
        ),
        "alexnet": _classifier(
            alexnet.alexnet,
            smallest=alexnet.SMALLEST_IMAGE,
            dropout=0.5,
            batch_size=128,
            learning_rate=0.001,
        ),
        "alexnet-2012": _classifier(
            partial(alexnet.alexnet, channels=alexnet.CHANNELS_2012),
            smallest=alexnet.SMALLEST_IMAGE,
            dropout=0.5,
            batch_size=128,
            learning_rate=0.001,
        ),
        "vgg16": _vgg(partial(vgg.vgg, 16)),
        "vgg19": _vgg(partial(vgg.vgg, 19)),
        "resnet50": _resnet(partial(resnet.resnet, 50)),
        "resnet152": _resnet(partial(resnet.resnet, 152)),
        "inception-v3": Builtin(
            _image_options(299, smallest=inception.SMALLEST_IMAGE, classes=1000, dropout=0.5), _inception_job
        ),
        "unet": Builtin(_image_options(64, smallest=unet.SMALLEST_IMAGE, classes=2, dropout=0.0), _unet_job),
    }
)
