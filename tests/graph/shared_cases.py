"""The models that tensor groups are tested on, captured once per session, and splits of their parameters at random."""

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import fx, nn

from plait.graph import Model, build_graph
from plait.jobs import load_job

ROWS = 6
JOBS = {
    "gpt2": "gpt2-tiny?layers=2&width=32&heads=4&sequence=12&dropout=0.2",
    "bert": "bert-tiny?layers=1&width=32&heads=4&sequence=24&dropout=0",
    "alexnet": "alexnet?width=0.0625&dropout=0.2&classes=10",
    "vgg": "vgg16?image=32&width=0.0625&dropout=0.2&classes=10",
    "resnet": "resnet50?image=33&width=0.0625",
    "unet": "unet?image=16&width=0.25",
}


def captured(module: nn.Module, batch: Any, loss: Any = None) -> tuple[Model, Any]:
    batch = {n: t.double() if t.is_floating_point() else t for n, t in batch.items()} if isinstance(batch, dict) else (
        tuple(t.double() if t.is_floating_point() else t for t in batch)
    )  # fmt: skip
    return build_graph(module.double().train(), batch, loss=loss, name="case"), batch


@cache
def job_case(name: str) -> tuple[Model, Any]:
    job = load_job(JOBS[name])
    torch.manual_seed(0)
    return captured(job.model(), next(job.batches(ROWS, 0)), job.loss)


@cache
def library_case(name: str) -> tuple[Model, Any]:
    """A model of the transformers library, which computes in float64 where its code says float32."""
    class_name, model_type, fields = LIBRARY[name]
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(model_type, **fields)
    config.use_cache = False
    torch.manual_seed(0)
    module = getattr(transformers, class_name)(config)
    ids = torch.randint(3, 32, (ROWS, 8))
    images = {"pixel_values": torch.randn(ROWS, 3, 32, 32), "labels": torch.randint(0, 4, (ROWS,))}
    model, batch = captured(module, images if "image_size" in fields else {"input_ids": ids, "labels": ids.clone()})
    values = tuple(replace(v, dtype=v.dtype.replace("float32", "float64")) for v in model.graph.values)
    model = replace(model, graph=replace(model.graph, values=values))
    for node in model.captured.module.graph.nodes:
        node.args, node.kwargs = fx.node.map_aggregate((node.args, node.kwargs), _wide)  # type: ignore[assignment]
    return model, batch


def _wide(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


MARKS = {"vocab_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LIBRARY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "conv1d gpt2": ("GPT2LMHeadModel", "gpt2", {**MARKS, "n_embd": 16, "n_layer": 1, "n_head": 4, "n_positions": 16}),
    "llama": ("LlamaForCausalLM", "llama", {
        **MARKS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 8,
        "num_key_value_heads": 4, "max_position_embeddings": 16}),
    "t5": ("T5ForConditionalGeneration", "t5", {
        **MARKS, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}),
    "vit": ("ViTForImageClassification", "vit", {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
        "image_size": 32, "patch_size": 16, "num_labels": 4}),
}  # fmt: skip


def case_of(name: str) -> tuple[Model, Any]:
    return job_case(name) if name in JOBS else library_case(name)


def random_split(model: Model, chosen: random.Random) -> dict[str, int]:
    share = chosen.choice((0.3, 0.6, 1.0))
    return {
        parameter.name: chosen.randrange(len(parameter.shape))
        for parameter in model.graph.parameters
        if parameter.shape and parameter.dtype.startswith("float") and chosen.random() < share
    }
