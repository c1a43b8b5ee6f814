"""Jobs from a user's file.py: what it may hold, and how its mistakes are told."""

import random
import textwrap

import pytest
import torch

from plait.errors import PlaitError
from plait.jobs import load_job

GOOD = """
    import torch
    from torch import nn

    def model():
        return nn.Linear(3, 1)

    def batches(batch_size):
        while True:
            yield torch.randn(batch_size, 3), torch.randn(batch_size, 1)
"""
MODEL = "def model(): pass\n"
BATCHES = "def batches(batch_size): yield 1\n"


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="train.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write_file


def test_a_file_with_a_model_and_batches_is_a_job(write):
    spec = write(GOOD)
    job = load_job(spec)
    assert job.name == spec
    assert isinstance(job.model(), torch.nn.Linear)
    assert job.loss is None
    assert job.batch_size == 32
    assert job.tokens_per_sample is None
    optimizer = job.optimizer(job.model().parameters())
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["lr"] == 3e-4


def test_optimizer_loss_and_batch_size_are_taken_from_the_file(write):
    job = load_job(
        write(
            GOOD
            + """
    batch_size = 6
    def optimizer(params):
        return torch.optim.SGD(params, lr=0.5)
    def loss(outputs, batch):
        return (outputs - batch[1]).square().mean()
"""
        )
    )
    assert job.batch_size == 6
    assert isinstance(job.optimizer(job.model().parameters()), torch.optim.SGD)
    batch = next(job.batches(job.batch_size, 0))
    assert job.loss(torch.zeros(6, 1), batch) == batch[1].square().mean()


@pytest.mark.parametrize("made", ["{'x': x}", "(x, x)", "x"])
def test_batches_are_kept_as_the_file_gives_them(write, made):
    job = load_job(
        write(
            f"""
            import torch
            def model(): return torch.nn.Linear(1, 1)
            def batches(batch_size):
                x = torch.ones(batch_size, 1)
                return [{made}]
            """
        )
    )
    batches = list(job.batches(2, 0))
    assert len(batches) == 1
    assert type(batches[0]) is type(eval(made, {"x": torch.ones(1)}))


def test_the_file_draws_the_same_batches_whatever_the_model_draws_between(write):
    job = load_job(write(GOOD))
    calm, disturbed = job.batches(2, 5), job.batches(2, 5)
    for _ in range(3):
        expected = next(calm)
        torch.rand(17)
        random.random()
        for left, right in zip(expected, next(disturbed), strict=True):
            assert torch.equal(left, right)


def test_the_random_module_is_seeded_for_the_file_too(write):
    job = load_job(
        write(
            """
            import random, torch
            def model(): return torch.nn.Linear(1, 1)
            def batches(batch_size):
                while True:
                    yield torch.tensor([random.random()] * batch_size)
            """
        )
    )
    assert torch.equal(next(job.batches(2, 5)), next(job.batches(2, 5)))
    assert not torch.equal(next(job.batches(2, 5)), next(job.batches(2, 6)))


def test_drawing_from_the_file_leaves_the_random_numbers_of_the_model_alone(write):
    job = load_job(write(GOOD))
    before = torch.get_rng_state()
    next(job.batches(2, 0))
    assert torch.equal(before, torch.get_rng_state())


def test_the_file_may_import_its_neighbours_at_once_and_later(write):
    write("WIDTH = 3", "neighbour_early.py")
    write("DEPTH = 4", "neighbour_late.py")
    job = load_job(
        write(
            """
            import torch
            from neighbour_early import WIDTH
            def model():
                from neighbour_late import DEPTH
                return torch.nn.Linear(WIDTH, DEPTH)
            def batches(batch_size): yield torch.ones(batch_size, WIDTH)
            """
        )
    )
    assert job.model().weight.shape == (4, 3)


def test_two_files_of_one_name_are_two_jobs(write):
    first = load_job(write(GOOD + "\n    batch_size = 1\n", "one/train.py"))
    second = load_job(write(GOOD + "\n    batch_size = 2\n", "two/train.py"))
    assert (first.batch_size, second.batch_size) == (1, 2)


def test_a_dataclass_in_the_file_finds_its_module(write):
    load_job(
        write(
            "from __future__ import annotations\nfrom dataclasses import dataclass\n"
            "@dataclass\nclass Shape:\n    width: int = 1\n" + textwrap.dedent(GOOD)
        )
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def model(: pass", r"train\.py, line 1: .*mend that line"),
        ("x = 1\ny = x / 0", r"train\.py, line 2: .*ZeroDivisionError: division by zero"),
        ("import no_such_module", r"train\.py, line 1: .*No module named 'no_such_module'"),
        ("import sys\nsys.exit(3)", r"train\.py, line 2: .*SystemExit: 3.*__main__"),
        (BATCHES, r"train\.py defines no model: add `def model\(\):`"),
        (MODEL, r"defines no batches: add `def batches\(batch_size\):`"),
        ("model = 3\n" + BATCHES, "model is a int, not a function"),
        ("def model(depth): pass\n" + BATCHES, r"line 1: model cannot be called as model\(\)"),
        (MODEL + "def batches(): yield 1", r"line 2: batches cannot be called as batches\(batch_size\)"),
        (MODEL + BATCHES + "batch_size = 0", "batch_size = 0 must be a whole number"),
        (MODEL + BATCHES + "batch_size = '8'", "batch_size = '8' must be a whole number"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line_and_fix(write, text, told):
    with pytest.raises(PlaitError, match=told):
        load_job(write(text))


def test_a_mistake_in_a_neighbour_names_the_neighbour(write):
    write("def broken(:", "neighbour_broken.py")
    with pytest.raises(PlaitError, match=r"neighbour_broken\.py, line 1"):
        load_job(write("import neighbour_broken"))


def test_a_model_that_is_not_a_module_is_told(write):
    with pytest.raises(PlaitError, match=r"model\(\) returned a NoneType"):
        load_job(write(MODEL + BATCHES)).model()


def test_what_model_and_batches_raise_is_told_with_its_line(write):
    job = load_job(write("def model():\n    return 1 / 0\ndef batches(batch_size):\n    yield [][0]"))
    with pytest.raises(PlaitError, match=r"line 2: model\(\) raised ZeroDivisionError"):
        job.model()
    with pytest.raises(PlaitError, match=r"line 4: batches\(\) raised IndexError"):
        next(job.batches(1, 0))


def test_batches_that_cannot_be_iterated_are_told(write):
    job = load_job(write(MODEL + "def batches(batch_size): return 3"))
    with pytest.raises(PlaitError, match="returned a int, which cannot be iterated"):
        next(job.batches(1, 0))


def test_a_missing_file_a_folder_and_another_suffix_are_told(write, tmp_path):
    with pytest.raises(PlaitError, match="does not exist"):
        load_job("nowhere/train.py")
    with pytest.raises(PlaitError, match=r"is a folder.*hf:"):
        load_job(str(tmp_path))
    with pytest.raises(PlaitError, match=r"does not end in \.py"):
        load_job(write("", "train.txt"))


def test_a_file_takes_no_options(write):
    with pytest.raises(PlaitError, match="takes no options, but got layers"):
        load_job(write(GOOD) + "?layers=2")
