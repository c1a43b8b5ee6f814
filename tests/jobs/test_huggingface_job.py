"""Jobs from a folder with a Hugging Face config.json."""

import json
import sys

import pytest
import torch

from plait.errors import PlaitError
from plait.jobs import load_job

transformers = pytest.importorskip("transformers")

SMALL_BERT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 300,
}
CONFIGS = {
    "GPT2LMHeadModel": (
        "gpt2",
        {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": 300,
         "bos_token_id": 0, "eos_token_id": 0},
        {"input_ids": (4, 64), "labels": (4, 64)},
    ),
    "LlamaForCausalLM": (
        "llama",
        {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 1, "vocab_size": 100, "dtype": "bfloat16"},
        {"input_ids": (4, 128), "labels": (4, 128)},
    ),
    "BertForMaskedLM": ("bert", SMALL_BERT, {"input_ids": (4, 128), "labels": (4, 128)}),
    "RobertaForMaskedLM": (
        "roberta",
        {**SMALL_BERT, "max_position_embeddings": 40},
        {"input_ids": (4, 38), "labels": (4, 38)},
    ),
    "T5ForConditionalGeneration": (
        "t5",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 300},
        {"input_ids": (4, 128), "labels": (4, 128)},
    ),
    "ViTForImageClassification": (
        "vit",
        {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
         "image_size": 32, "patch_size": 8, "num_labels": 4},
        {"pixel_values": (4, 3, 32, 32), "labels": (4,)},
    ),
}  # fmt: skip


@pytest.fixture
def write(tmp_path):
    def write_config(model_type, fields, architectures=None):
        config = {"model_type": model_type, **fields}
        if architectures:
            config["architectures"] = architectures
        (tmp_path / "config.json").write_text(json.dumps(config))
        return f"hf:{tmp_path}"

    return write_config


@pytest.mark.parametrize("architecture", CONFIGS)
def test_each_family_gets_batches_it_can_learn_from(write, architecture):
    model_type, fields, shapes = CONFIGS[architecture]
    spec = write(model_type, fields, [architecture])
    job = load_job(spec)
    assert job.name == spec
    torch.manual_seed(0)
    model = job.model()
    batch = next(job.batches(4, 0))
    assert type(model).__name__ == architecture
    assert model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == shapes
    loss = model(**batch).loss
    loss.backward()
    assert loss.shape == ()
    assert loss.isfinite()


@pytest.mark.parametrize(
    ("model_type", "architectures", "chosen"),
    [
        ("bert", None, "BertForMaskedLM"),
        ("bert", ["BertModel"], "BertForMaskedLM"),
        ("bert", ["BertLMHeadModel"], "BertLMHeadModel"),
    ],
)
def test_a_bare_model_is_given_a_head_with_a_loss(write, model_type, architectures, chosen):
    with torch.device("meta"):
        model = load_job(write(model_type, SMALL_BERT, architectures)).model()
    assert type(model).__name__ == chosen


def test_the_configuration_keeps_its_dropout_and_loses_its_cache(write):
    model_type, fields, _ = CONFIGS["GPT2LMHeadModel"]
    job = load_job(write(model_type, {**fields, "attn_pdrop": 0.3, "use_cache": True}, ["GPT2LMHeadModel"]))
    model = job.model()
    assert model.config.attn_pdrop == 0.3
    assert model.config.use_cache is False
    assert "past_key_values" not in model(**next(job.batches(2, 0)))


def test_batches_follow_from_the_seed_alone(write):
    model_type, fields, _ = CONFIGS["BertForMaskedLM"]
    job = load_job(write(model_type, fields, ["BertForMaskedLM"]))
    first, again = next(job.batches(3, 7)), next(job.batches(3, 7))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["input_ids"], next(job.batches(3, 8))["input_ids"])
    assert ((first["labels"] != -100).sum(dim=1) == 19).all()


def test_ids_stay_below_the_vocabulary(write):
    model_type, fields, _ = CONFIGS["LlamaForCausalLM"]
    job = load_job(write(model_type, fields))
    assert next(job.batches(8, 0))["input_ids"].max() < 100


def test_the_sequence_can_be_chosen_up_to_what_the_model_reads(write):
    model_type, fields, _ = CONFIGS["GPT2LMHeadModel"]
    spec = write(model_type, fields)
    assert load_job(f"{spec}?sequence=16").tokens_per_sample == 16
    with pytest.raises(PlaitError, match=r"sequence=65 .* below 65"):
        load_job(f"{spec}?sequence=65")
    with pytest.raises(PlaitError, match=r"no option 'layers'.*sequence \(default 64\)"):
        load_job(f"{spec}?layers=2")


def test_a_folder_without_a_configuration_is_told(tmp_path):
    with pytest.raises(PlaitError, match=r"config\.json does not exist: Plait downloads nothing"):
        load_job(f"hf:{tmp_path}")


def test_an_unknown_model_type_is_told(write):
    with pytest.raises(PlaitError, match=r"config\.json is not a configuration .*model_type"):
        load_job(write("no-such-model", {}))


def test_broken_json_is_told(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PlaitError, match=r"config\.json is not a configuration"):
        load_job(f"hf:{tmp_path}")


def test_code_in_the_folder_is_never_run(tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(PlaitError, match="without running code from the folder"):
        load_job(f"hf:{tmp_path}")


def test_a_task_without_data_is_told(write):
    with pytest.raises(PlaitError, match=r"BertForQuestionAnswering, and hf: jobs are .*file\.py"):
        load_job(write("bert", SMALL_BERT, ["BertForQuestionAnswering"]))


def test_a_missing_library_names_the_extra_to_install(write, monkeypatch):
    spec = write("bert", SMALL_BERT)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(PlaitError, match=r"pip install 'plait\[hf\]'"):
        load_job(spec)
