"""A job from a folder with a Hugging Face `config.json`: `hf:DIR`.

The model is built from its configuration alone, with fresh weights and in float32: nothing is downloaded,
no weights are read and no code from the folder is run.
"""

import copy
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from plait.errors import PlaitError
from plait.jobs.huggingface_batches import causal_batches, image_batches, masked_batches, paired_batches
from plait.jobs.job import Batch, Job
from plait.jobs.optimizers import adamw
from plait.jobs.options import Option, Settings, Value, read_options

_BATCH_SIZE = 8
_LONGEST_SEQUENCE = 128
_DEFAULT_IMAGE = 224
# The names different families of models give to the longest row they can read.
_POSITION_FIELDS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")


@dataclass(frozen=True)
class Family:
    """A kind of model Plait has data for; `table` is where transformers lists the classes of that kind."""

    purpose: str
    table: str
    batches: Callable[..., Iterator[Batch]]
    is_text: bool = True


# In the order in which a bare model (BertModel) is given a head: BERT is in both of the last two tables.
_FAMILIES = (
    Family("sequence-to-sequence", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", paired_batches),
    Family("image classification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", image_batches, is_text=False),
    Family("masked language model", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", masked_batches),
    Family("causal language model", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", causal_batches),
)


def load_huggingface(spec: str, directory: Path, given: Mapping[str, Value]) -> Job:
    """Build the job for the model described in `directory`; `spec` is what the user typed."""
    transformers = _import_transformers(spec)
    config = _read_config(transformers, directory)
    family, class_name = _choose_class(config, directory)
    model_class = getattr(transformers, class_name)
    settings = read_options(spec, _options(config, family), given)
    return Job(
        name=spec,
        model=partial(_build, model_class, _for_training(config, family), directory),
        batches=_bind_batches(config, family, settings),
        optimizer=adamw,
        loss=None,
        batch_size=_BATCH_SIZE,
        tokens_per_sample=settings.whole("sequence") if family.is_text else None,
    )


def _import_transformers(spec: str) -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise PlaitError(
            f"Job {spec!r} needs the transformers library, which is not installed ({error}): install it with "
            f"pip install 'plait[hf]'."
        ) from error


def _read_config(transformers: Any, directory: Path) -> Any:
    if not (directory / "config.json").is_file():
        raise PlaitError(
            f"hf:{directory} needs a local folder with a config.json, and {directory / 'config.json'} does "
            f"not exist: Plait downloads nothing, so save the model's folder there first."
        )
    try:
        return transformers.AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise PlaitError(
            f"{directory / 'config.json'} is not a configuration this transformers "
            f"({transformers.__version__}) can read without running code from the folder: "
            f"{_first_line(error)} Check its model_type, or wrap the model in a file.py."
        ) from error


def _choose_class(config: Any, directory: Path) -> tuple[Family, str]:
    """The model class named in `architectures`, or the one that puts a head with a loss on a bare model."""
    named = (getattr(config, "architectures", None) or [None])[0]
    for family in _FAMILIES:
        if named in _table(family).values():
            return family, named
    if named is None or named.endswith(("Model", "ForPreTraining")):
        for family in _FAMILIES:
            class_name = _table(family).get(config.model_type)
            if isinstance(class_name, str):
                return family, class_name
    raise PlaitError(
        f"{directory / 'config.json'} describes {named or config.model_type}, and hf: jobs are "
        f"{', '.join(family.purpose for family in _FAMILIES)}: change `architectures`, or write a file.py "
        f"that builds the model and yields its batches."
    )


def _table(family: Family) -> Mapping[str, str]:
    return getattr(importlib.import_module("transformers.models.auto.modeling_auto"), family.table)


def _options(config: Any, family: Family) -> dict[str, Option]:
    if not family.is_text:
        size = getattr(config, "image_size", None) or _DEFAULT_IMAGE
        return {"image": Option(size if isinstance(size, int) else int(size[0]), minimum=1)}
    longest = _longest_row(config)
    return {"sequence": Option(min(_LONGEST_SEQUENCE, longest), minimum=2, below=longest + 1)}


def _longest_row(config: Any) -> int:
    text = config.get_text_config()
    limits = (getattr(text, field, None) for field in _POSITION_FIELDS)
    positions = next((limit for limit in limits if isinstance(limit, int) and limit > 0), 2**20)
    # RoBERTa and its kin number positions from behind the padding id, and so lose that many.
    reserved = (text.pad_token_id or 0) + 1 if "roberta" in config.model_type else 0
    return positions - reserved


def _for_training(config: Any, family: Family) -> Any:
    config = copy.deepcopy(config)
    # A cache of keys and values is for generation; in training it only adds outputs to the graph.
    config.use_cache = False
    # Labels become decoder inputs by putting this id in front; T5's own default lacks it.
    if family.batches is paired_batches and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    return config


def _bind_batches(config: Any, family: Family, settings: Settings) -> Callable[[int, int], Iterator[Batch]]:
    if family.is_text:
        return partial(family.batches, settings.whole("sequence"), config.get_text_config().vocab_size)
    channels = getattr(config, "num_channels", 3)
    return partial(family.batches, settings.whole("image"), config.num_labels, channels)


def _build(model_class: Any, config: Any, directory: Path) -> nn.Module:
    try:
        # A copy: constructors write into their configuration, and every call must build the same model.
        model: nn.Module = model_class(copy.deepcopy(config)).train()
    except Exception as error:
        raise PlaitError(
            f"{model_class.__name__} could not be built from {directory / 'config.json'}: "
            f"{type(error).__name__}: {_first_line(error)} Mend the configuration."
        ) from error
    return model


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".") + "."
