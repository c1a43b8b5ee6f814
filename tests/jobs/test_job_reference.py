"""GPT-2 and BERT compute what the Hugging Face implementations compute with the same weights."""

import pytest
import torch

from plait.jobs import load_job

transformers = pytest.importorskip("transformers")


def _copy(target: torch.nn.Module, source: dict[str, torch.Tensor], names: dict[str, str]) -> None:
    """Load `source` after renaming; every parameter of `target` must be found."""
    renamed = {}
    for name, tensor in source.items():
        for old, new in names.items():
            name = name.replace(old, new)
        renamed[name] = tensor
    target.load_state_dict(renamed)


def test_gpt2_agrees_with_hugging_face():
    model = load_job("gpt2-tiny?layers=2&width=32&sequence=16&dropout=0").model().double()
    reference = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=2, n_embd=32, n_head=4, n_positions=16, vocab_size=256, bos_token_id=0, eos_token_id=0
        )
    )
    weights = {
        # Hugging Face's Conv1D keeps its weight transposed.
        name: tensor.T if name.endswith("weight") and ".c_" in name else tensor
        for name, tensor in reference.double().eval().transformer.state_dict().items()
    }
    _copy(
        model,
        weights,
        {
            "wte": "token_embedding",
            "wpe": "position_embedding",
            "h.": "blocks.",
            "ln_1": "attention_norm",
            "ln_2": "feed_forward_norm",
            "ln_f": "norm",
            "attn.c_attn": "attention.query_key_value",
            "attn.c_proj": "attention.output",
            "mlp.c_fc": "feed_forward.expand",
            "mlp.c_proj": "feed_forward.output",
        },
    )
    tokens = torch.randint(0, 256, (2, 16))
    torch.testing.assert_close(model.logits(tokens), reference(tokens).logits)


def test_bert_agrees_with_hugging_face():
    model = load_job("bert-tiny?layers=2&width=32&sequence=16&dropout=0").model().double()
    reference = transformers.BertForMaskedLM(
        transformers.BertConfig(
            num_hidden_layers=2,
            hidden_size=32,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=16,
            vocab_size=256,
        )
    )
    reference = reference.double().eval()
    weights = {
        name: tensor
        for name, tensor in reference.state_dict().items()
        if not name.startswith("cls.predictions.decoder") and not name.endswith("position_ids")
    }
    _copy(
        model,
        weights,
        {
            "bert.embeddings.LayerNorm": "embeddings.norm",
            "bert.embeddings.word_embeddings": "embeddings.tokens",
            "bert.embeddings.position_embeddings": "embeddings.positions",
            "bert.embeddings.token_type_embeddings": "embeddings.token_types",
            "bert.encoder.layer.": "layers.",
            "attention.self.": "attention.",
            "attention.output.dense": "attention.output",
            "attention.output.LayerNorm": "attention_norm",
            "intermediate.dense": "expand",
            "output.dense": "output",
            "output.LayerNorm": "output_norm",
            "cls.predictions.transform.dense": "head",
            "cls.predictions.transform.LayerNorm": "head_norm",
            "cls.predictions.bias": "head_bias",
        },
    )
    tokens, token_types = torch.randint(0, 256, (2, 16)), torch.randint(0, 2, (2, 16))
    mask = (torch.arange(16) < torch.tensor([[16], [11]])).long()
    labels = torch.where(torch.rand(2, 16) < 0.5, tokens, -100)
    expected = reference(tokens, attention_mask=mask, token_type_ids=token_types, labels=labels)
    torch.testing.assert_close(model.logits(tokens, mask, token_types), expected.logits)
    torch.testing.assert_close(model(tokens, mask, labels, token_types), expected.loss)
