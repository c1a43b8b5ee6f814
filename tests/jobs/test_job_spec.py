"""What a user may type as JOB, and what Plait answers when it cannot be right."""

import pytest

from plait.errors import PlaitError
from plait.jobs import builtin_names, load_job


def test_the_built_in_names_are_the_documented_ones():
    assert set(builtin_names()) == {
        "gpt2-tiny", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "bert-tiny", "bert-large",
        "alexnet", "alexnet-2012", "vgg16", "vgg19", "resnet50", "resnet152", "inception-v3", "unet",
    }  # fmt: skip


@pytest.mark.parametrize("name", builtin_names())
def test_every_built_in_job_loads_by_its_name(name):
    job = load_job(name)
    assert job.name == name
    assert job.loss is None
    assert job.batch_size >= 1


def test_options_in_the_spec_change_the_model():
    model = load_job("gpt2-tiny?layers=2&width=64&dropout=0").model()
    assert len(model.blocks) == 2
    assert model.token_embedding.weight.shape == (256, 64)
    assert model.dropout.p == 0


def test_options_given_as_argument_win_over_the_spec():
    job = load_job("gpt2-tiny?sequence=32", options={"sequence": 16})
    assert job.tokens_per_sample == 16


def test_the_name_is_what_the_user_typed():
    assert load_job("unet?image=16").name == "unet?image=16"


def test_only_text_jobs_count_tokens():
    assert load_job("gpt2").tokens_per_sample == 1024
    assert load_job("bert-large").tokens_per_sample == 512
    assert load_job("resnet50").tokens_per_sample is None


def test_an_unknown_job_names_the_closest_and_the_fix():
    with pytest.raises(PlaitError, match=r"'gpt2_tiny'; did you mean gpt2-tiny.*resnet152.*file\.py.*hf:DIR"):
        load_job("gpt2_tiny")


def test_a_job_like_no_other_still_lists_what_exists():
    with pytest.raises(PlaitError, match=r"'zzz'\. The built-in jobs are gpt2-tiny, gpt2"):
        load_job("zzz")


def test_an_unknown_option_lists_those_that_exist():
    with pytest.raises(PlaitError, match=r"no option 'depth'.*layers \(default 4\).*dropout \(default 0.1\)"):
        load_job("gpt2-tiny?depth=2")


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("gpt2-tiny?layers=two", "whole number of at least 1"),
        ("gpt2-tiny?layers=0", "whole number of at least 1"),
        ("gpt2-tiny?layers=1.5", "whole number of at least 1"),
        ("gpt2-tiny?dropout=1", "at least 0 and below 1"),
        ("gpt2-tiny?dropout=nan", "at least 0 and below 1"),
        ("resnet50?width=inf", "at least 0.01"),
        ("resnet50?classes=1", "at least 2"),
        ("alexnet?image=63", "at least 64"),
        ("vgg16?image=31", "at least 32"),
        ("inception-v3?image=106", "at least 107"),
        ("unet?image=20", "multiple of 8, for example image=24"),
        ("gpt2-tiny?width=30", "multiple of the number of heads, for example width=32"),
        ("gpt2-tiny?layers", "NAME=VALUE"),
        ("gpt2-tiny?layers=", "NAME=VALUE"),
        ("gpt2-tiny?layers=1&layers=2", "given twice"),
    ],
)
def test_a_wrong_value_is_refused_when_loading_with_the_rule_it_breaks(spec, rule):
    with pytest.raises(PlaitError, match=rule):
        load_job(spec)


def test_a_fraction_given_as_argument_is_not_rounded_to_a_count():
    with pytest.raises(PlaitError, match="whole number"):
        load_job("gpt2-tiny", options={"layers": 2.5})
