"""The built-in models: their published sizes, and what the rest of Plait asks of every model."""

import pytest
import torch

from plait.jobs import load_job

PUBLISHED_PARAMETERS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-large": 335_174_458,
    "alexnet": 61_100_840,
    "alexnet-2012": 62_378_344,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "inception-v3": 27_161_264,
}

SMALL_JOBS = [
    "gpt2-tiny?layers=2&width=32&sequence=16",
    "gpt2?layers=1&width=32&heads=2&sequence=16&vocabulary=300",
    "bert-tiny?layers=2&width=32&sequence=16",
    "bert-large?layers=1&width=32&heads=2&sequence=16&vocabulary=300",
    "alexnet?image=64&width=0.05&classes=4",
    "vgg16?image=32&width=0.05&classes=4",
    "vgg19?image=32&width=0.05&classes=4",
    "resnet50?image=32&width=0.05&classes=4",
    "resnet152?image=32&width=0.05&classes=4&dropout=0.1",
    "inception-v3?image=107&width=0.05&classes=4",
    "unet?image=16&width=0.25&classes=3&dropout=0.1",
]


@pytest.mark.parametrize(("name", "num_parameters"), PUBLISHED_PARAMETERS.items())
def test_parameters_are_as_many_as_published(name, num_parameters):
    with torch.device("meta"):
        model = load_job(name).model()
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


@pytest.mark.parametrize("spec", SMALL_JOBS)
def test_a_model_can_be_built_and_called_on_the_meta_device(spec):
    job = load_job(spec)
    with torch.device("meta"):
        model = job.model()
        batch = next(job.batches(2, 0))
    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    assert not any(tensor.is_meta for tensor in batch.values())
    loss = model(**{name: tensor.to("meta") for name, tensor in batch.items()})
    assert loss.is_meta
    assert loss.shape == ()


@pytest.mark.parametrize("spec", SMALL_JOBS)
def test_a_model_runs_in_float64_throughout(spec):
    job = load_job(spec)
    model = job.model().double()
    batch = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in next(job.batches(2, 0)).items()
    }
    loss = model(**batch)
    loss.backward()
    assert loss.dtype == torch.float64
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float64
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("spec", SMALL_JOBS)
def test_a_model_exports_in_training_mode_with_any_batch_size(spec):
    job = load_job(spec)
    batch = next(job.batches(4, 0))
    exported = torch.export.export(
        job.model(),
        (),
        batch,
        strict=False,
        dynamic_shapes={name: {0: torch.export.Dim.AUTO} for name in batch},
    )
    inputs = [node for node in exported.graph.nodes if node.op == "placeholder" and node.name in batch]
    assert {node.name for node in inputs} == set(batch)
    for node in inputs:
        assert isinstance(node.meta["val"].shape[0], torch.SymInt), node.name


@pytest.mark.parametrize("spec", SMALL_JOBS)
def test_the_same_seed_builds_the_same_model(spec):
    job = load_job(spec)
    torch.manual_seed(3)
    first = job.model().state_dict()
    torch.manual_seed(3)
    second = job.model().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_gpt2_starts_its_residual_outputs_smaller_by_the_root_of_their_number():
    torch.manual_seed(0)
    model = load_job("gpt2-tiny?layers=8").model()
    assert model.blocks[0].attention.query_key_value.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks[0].attention.output.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)


def test_gpt2_cannot_see_the_future():
    model = load_job("gpt2-tiny?layers=2&width=32&sequence=16").model().eval()
    tokens = torch.arange(16)[None]
    changed = tokens.clone()
    changed[0, 10] = 99
    difference = (model.logits(tokens) - model.logits(changed)).abs().amax(dim=(0, 2))
    assert (difference[:10] == 0).all()
    assert (difference[10:] > 0).all()


def test_bert_does_not_look_at_padding():
    model = load_job("bert-tiny?layers=2&width=32&sequence=16").model().eval()
    tokens, mask = torch.arange(16)[None], (torch.arange(16) < 12).long()[None]
    changed = tokens.clone()
    changed[0, 13] = 99
    torch.testing.assert_close(model.logits(tokens, mask)[:, :12], model.logits(changed, mask)[:, :12])
    torch.testing.assert_close(model.logits(tokens, mask), model.logits(tokens, mask.bool()))


@pytest.mark.parametrize(
    "spec",
    [
        "gpt2-tiny?layers=1&width=32&sequence=16&dropout=0",
        "bert-tiny?layers=1&width=32&sequence=16&dropout=0",
        "vgg16?image=32&width=0.05&classes=4&dropout=0",
    ],
)
def test_the_mean_over_micro_batches_is_the_loss_of_the_batch(spec):
    job = load_job(spec)
    model = job.model().double()
    batch = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in next(job.batches(6, 0)).items()
    }
    halves = [{name: tensor[rows] for name, tensor in batch.items()} for rows in (slice(3), slice(3, 6))]
    mean = (model(**halves[0]) + model(**halves[1])) / 2
    torch.testing.assert_close(mean, model(**batch))


def test_inception_pools_for_its_auxiliary_head_as_published_at_the_published_size():
    for image in (299, 298):
        with torch.device("meta"):
            model = load_job(f"inception-v3?image={image}").model()
            features = model.lower(torch.empty(2, 3, image, image))
        assert model.auxiliary[0](features).shape[-2:] == (5, 5)
