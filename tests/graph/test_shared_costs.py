"""Nodes that compute alike are costed once, and the costs are those of every node on its own."""

import dataclasses

import graph_models
import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from plait.cluster import PRESETS
from plait.cost import OptimizerCost, analytic_costs, measure, measure_costs
from plait.graph import Model, build_graph
from plait.jobs import load_job

JOBS = ("gpt2-tiny?layers=2&sequence=8", "resnet50?image=32&width=0.1")
EXAMPLES = (
    graph_models.ChunkAndSplit,
    graph_models.ReadBeforeAndAfterWrite,
    graph_models.WriteThroughView,
    graph_models.AutocastRegion,
    graph_models.TiedThrice,
    graph_models.Convolutions,
    graph_models.Recurrent,
    graph_models.DropoutInRegion,
)


def each_alone(model: Model) -> Model:
    """The same model, no two nodes of which count as alike."""
    copied = dataclasses.replace(model)
    copied.__dict__["alike"] = {node: number for number, node in enumerate(model.alike)}
    return copied


def assert_same_when_shared(model: Model, batch: object) -> None:
    shared, alone = (
        analytic_costs(one, batch, kinds=[PRESETS["a100"]], state_bytes_per_byte=2)
        for one in (model, each_alone(model))
    )
    assert shared == alone


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_an_example_costs_the_same(example):
    _, batch, model = graph_models.captured(example)
    assert_same_when_shared(model, batch)


@pytest.mark.parametrize("spec", JOBS)
def test_a_job_costs_the_same(spec):
    job = load_job(spec)
    with torch.device("meta"):
        module = job.model()
    batch = pytree.tree_map_only(Tensor, lambda tensor: tensor.to("meta"), next(iter(job.batches(2, 0))))
    model = build_graph(module, batch, loss=job.loss)
    assert len(set(model.alike.values())) < len(model.alike) / 2
    assert_same_when_shared(model, batch)


def test_an_encoder_and_a_decoder_with_a_bias_for_all_layers_cost_the_same():
    transformers = pytest.importorskip("transformers")
    sizes = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_heads": 2, "num_layers": 2, "vocab_size": 32}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0, use_cache=False)
    with torch.device("meta"):
        module = transformers.T5ForConditionalGeneration(config)
    tokens = torch.zeros(2, 6, dtype=torch.long, device="meta")
    batch = {"input_ids": tokens, "labels": tokens.clone()}
    assert_same_when_shared(build_graph(module, batch), batch)


BATCH = (torch.ones(4, 8),)


def layers(count: int) -> Model:
    """A dense layer, then `count` times a dense layer, an activation and a dropout."""
    parts = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.1)) for _ in range(count)]
    return build_graph(nn.Sequential(nn.Linear(8, 8), *parts), BATCH, loss=lambda outputs, _: outputs.square().mean())


def measured(model: Model):
    costs = measure_costs(model, BATCH, kind="cpu", rows=(2, 4), optimizer=OptimizerCost(2, 0, 0), repeats=1)
    return costs.atoms["cpu"]


def test_of_nodes_alike_only_one_is_timed(monkeypatch):
    timed = []
    seconds = measure._seconds
    monkeypatch.setattr(measure, "_seconds", lambda *given: timed.append(given) or seconds(*given))
    measured(layers(2))
    for_two_layers = len(timed)
    measured(layers(5))
    assert len(timed) - for_two_layers == for_two_layers > 0


def test_measured_layers_alike_cost_the_same_and_save_what_each_saves():
    model = layers(4)
    atoms = measured(model)
    assert atoms[1:10] == atoms[4:13]
    alone = measured(each_alone(model))
    assert [(a.saved_fixed, a.saved_per_row) for a in atoms] == [(a.saved_fixed, a.saved_per_row) for a in alone]
    assert sum(a.saved_per_row for a in atoms) > 0
