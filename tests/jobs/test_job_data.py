"""The built-in text and images: shapes, determinism and what is in them."""

import itertools

import pytest
import torch

from plait.jobs import load_job

JOBS = [
    "gpt2-tiny?sequence=32",
    "bert-tiny?sequence=32",
    "resnet50?image=32&classes=5",
    "unet?image=16&classes=3",
]


@pytest.mark.parametrize("spec", JOBS)
@pytest.mark.parametrize("batch_size", [1, 7])
def test_every_batch_has_exactly_the_rows_asked_for(spec, batch_size):
    for batch in itertools.islice(load_job(spec).batches(batch_size, 0), 3):
        assert {len(tensor) for tensor in batch.values()} == {batch_size}
        assert all(tensor.is_contiguous() for tensor in batch.values())


@pytest.mark.parametrize("spec", JOBS)
def test_batches_follow_from_the_seed_alone(spec):
    job = load_job(spec)
    torch.manual_seed(1)
    first = list(itertools.islice(job.batches(3, 7), 2))
    torch.manual_seed(2)
    again = list(itertools.islice(load_job(spec).batches(3, 7), 2))
    other = next(job.batches(3, 8))
    for batch, copy in zip(first, again, strict=True):
        assert all(torch.equal(batch[name], copy[name]) for name in batch)
    assert not torch.equal(*(next(iter(batch.values())) for batch in first))
    assert not torch.equal(next(iter(first[0].values())), next(iter(other.values())))


@pytest.mark.parametrize("spec", JOBS)
def test_drawing_batches_leaves_the_random_numbers_of_the_model_alone(spec):
    before = torch.get_rng_state()
    next(load_job(spec).batches(2, 0))
    assert torch.equal(before, torch.get_rng_state())


def test_targets_are_the_tokens_one_further():
    batch = next(load_job("gpt2-tiny?sequence=32").batches(4, 0))
    assert batch["tokens"].dtype == torch.long
    assert torch.equal(batch["tokens"][:, 1:], batch["targets"][:, :-1])


def test_the_text_is_python_source():
    batches = itertools.islice(load_job("gpt2?sequence=1000").batches(8, 0), 3)
    text = b"".join(bytes(row.tolist()) for batch in batches for row in batch["tokens"])
    assert b"def " in text
    assert b"import " in text


def test_a_vocabulary_smaller_than_a_byte_is_respected():
    batch = next(load_job("gpt2-tiny?vocabulary=16").batches(4, 0))
    assert batch["tokens"].max() < 16


def test_every_row_hides_the_same_fifteen_percent():
    batch = next(load_job("bert-tiny?sequence=100").batches(64, 0))
    hidden = batch["labels"] != -100
    assert (hidden.sum(dim=1) == 15).all()
    assert not (hidden & (batch["attention_mask"] == 0)).any()


def test_hidden_tokens_are_masked_replaced_or_kept_as_in_bert():
    batch = next(load_job("bert-tiny?sequence=100").batches(400, 0))
    hidden = batch["labels"] != -100
    seen, labels = batch["tokens"][hidden], batch["labels"][hidden]
    assert (seen == 1).float().mean() == pytest.approx(0.8, abs=0.03)
    assert (seen == labels).float().mean() == pytest.approx(0.1, abs=0.03)


def test_padding_is_marked_and_at_most_a_quarter():
    batch = next(load_job("bert-tiny?sequence=100").batches(64, 0))
    lengths = batch["attention_mask"].sum(dim=1)
    assert (lengths >= 75).all()
    assert lengths.min() < 100
    assert (batch["tokens"][batch["attention_mask"] == 0] == 0).all()


def test_images_and_labels_have_the_shapes_asked_for():
    batch = next(load_job("resnet50?image=40&classes=5").batches(64, 0))
    assert batch["images"].shape == (64, 3, 40, 40)
    assert batch["images"].dtype == torch.float32
    assert set(batch["labels"].tolist()) == set(range(5))


def test_masks_hold_the_background_and_every_kind_of_disc():
    batch = next(load_job("unet?image=32&classes=3").batches(32, 0))
    assert batch["masks"].shape == (32, 32, 32)
    assert set(batch["masks"].unique().tolist()) == {0, 1, 2}
    assert 0.3 < (batch["masks"] == 0).float().mean() < 0.95
