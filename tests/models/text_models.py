"""Language models of the transformers library: decoders, encoders, encoder-decoders and state-space models."""

from functools import partial
from typing import Any

from architecture import (
    SEQUENCE,
    VOCABULARY,
    Architecture,
    HuggingFace,
    causal_batch,
    masked_batch,
    paired_batch,
    transcript_batch,
)

MARKS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# The names that most configurations share ...
WIDE: dict[str, Any] = {
    **MARKS, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32,
}  # fmt: skip
GROUPED: dict[str, Any] = {**WIDE, "num_key_value_heads": 2}
# ... and GPT-2's, which some took over.
GPT: dict[str, Any] = {**MARKS, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}
# The default way of computing experts knows no float64; this is another of the library's own.
SPARSE: dict[str, Any] = {**GROUPED, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"}
EXPERTS: dict[str, Any] = {**SPARSE, "num_experts": 4, "moe_intermediate_size": 8}
TWO_SIDED: dict[str, Any] = {
    **MARKS, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "decoder_start_token_id": 1,
    "encoder_layerdrop": 0.1, "decoder_layerdrop": 0.1,
}  # fmt: skip
T5 = {**MARKS, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}


def _text(
    family: str,
    task: str,
    name: str,
    class_name: str,
    model_type: str,
    middle: str,
    fields: dict[str, Any],
    **rest: Any,
) -> Architecture:
    batch = {"causal": causal_batch, "masked": masked_batch, "paired": paired_batch, "speech": transcript_batch}[task]
    return Architecture(name, family, task, HuggingFace(class_name, model_type, fields), batch, middle, **rest)


decoder = partial(_text, "decoder", "causal")
encoder = partial(_text, "encoder", "masked")
encoder_decoder = partial(_text, "encoder-decoder", "paired")
state_space = partial(_text, "state space", "causal")

DECODERS = (
    decoder("GPT-2", "GPT2LMHeadModel", "gpt2", "transformer.h.1", GPT),
    decoder("GPT-Neo", "GPTNeoForCausalLM", "gpt_neo", "transformer.h.1",
            {**WIDE, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4}),
    decoder("GPT-J", "GPTJForCausalLM", "gptj", "transformer.h.1", {**GPT, "rotary_dim": 4}),
    decoder("GPT-NeoX", "GPTNeoXForCausalLM", "gpt_neox", "gpt_neox.layers.1", WIDE),
    decoder("GPT-BigCode", "GPTBigCodeForCausalLM", "gpt_bigcode", "transformer.h.1", GPT),
    decoder("OPT", "OPTForCausalLM", "opt", "model.decoder.layers.1",
            {**WIDE, "ffn_dim": 32, "layerdrop": 0.1}, draws=True, fast=True),
    decoder("BLOOM", "BloomForCausalLM", "bloom", "transformer.h.1",
            {**MARKS, "hidden_size": 16, "n_layer": 2, "n_head": 4}),
    decoder("LLaMA", "LlamaForCausalLM", "llama", "model.layers.1", GROUPED, fast=True),
    decoder("Mistral", "MistralForCausalLM", "mistral", "model.layers.1", {**GROUPED, "sliding_window": 4}),
    decoder("Mixtral", "MixtralForCausalLM", "mixtral", "model.layers.1",
            {**SPARSE, "num_local_experts": 4}, fast=True),
    decoder("Mixtral, experts in a loop", "MixtralForCausalLM", "mixtral", "model.layers.1",
            {**SPARSE, "num_local_experts": 4, "experts_implementation": "eager"}),
    decoder("Qwen2", "Qwen2ForCausalLM", "qwen2", "model.layers.1", GROUPED),
    decoder("Qwen2-MoE", "Qwen2MoeForCausalLM", "qwen2_moe", "model.layers.1",
            {**EXPERTS, "shared_expert_intermediate_size": 16}),
    decoder("Qwen3", "Qwen3ForCausalLM", "qwen3", "model.layers.1", {**GROUPED, "head_dim": 4}),
    decoder("Qwen3-MoE", "Qwen3MoeForCausalLM", "qwen3_moe", "model.layers.1", {**EXPERTS, "head_dim": 4}),
    decoder("Gemma", "GemmaForCausalLM", "gemma", "model.layers.1", {**GROUPED, "head_dim": 4}),
    decoder("Gemma 2", "Gemma2ForCausalLM", "gemma2", "model.layers.1",
            {**GROUPED, "head_dim": 4, "query_pre_attn_scalar": 4, "sliding_window": 4}),
    decoder("Gemma 3", "Gemma3ForCausalLM", "gemma3_text", "model.layers.1",
            {**GROUPED, "head_dim": 4, "query_pre_attn_scalar": 4, "sliding_window": 4,
             "layer_types": ["sliding_attention", "full_attention"]}),
    decoder("Phi", "PhiForCausalLM", "phi", "model.layers.1", GROUPED),
    decoder("Phi-3", "Phi3ForCausalLM", "phi3", "model.layers.1", GROUPED),
    decoder("Falcon", "FalconForCausalLM", "falcon", "transformer.h.1",
            {**MARKS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}),
    decoder("MPT", "MptForCausalLM", "mpt", "transformer.blocks.1",
            {**MARKS, "d_model": 16, "n_heads": 4, "n_layers": 2, "expansion_ratio": 2, "max_seq_len": 32}),
    decoder("StarCoder2", "Starcoder2ForCausalLM", "starcoder2", "model.layers.1", GROUPED),
    decoder("OLMo", "OlmoForCausalLM", "olmo", "model.layers.1", GROUPED),
    decoder("OLMo 2", "Olmo2ForCausalLM", "olmo2", "model.layers.1", GROUPED),
    decoder("OLMoE", "OlmoeForCausalLM", "olmoe", "model.layers.1",
            {**SPARSE, "num_experts": 4}),
    decoder("Cohere", "CohereForCausalLM", "cohere", "model.layers.1", GROUPED),
    decoder("Cohere 2", "Cohere2ForCausalLM", "cohere2", "model.layers.1",
            {**GROUPED, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
    decoder("DeepSeek-V3", "DeepseekV3ForCausalLM", "deepseek_v3", "model.layers.1",
            {**SPARSE, "num_key_value_heads": 4, "moe_intermediate_size": 8, "n_routed_experts": 4, "n_group": 2,
             "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 8,
             "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}),
    decoder("StableLM", "StableLmForCausalLM", "stablelm", "model.layers.1", GROUPED),
    decoder("Granite", "GraniteForCausalLM", "granite", "model.layers.1", GROUPED),
    decoder("GLM", "GlmForCausalLM", "glm", "model.layers.1", {**GROUPED, "head_dim": 4}),
    decoder("Nemotron", "NemotronForCausalLM", "nemotron", "model.layers.1", {**GROUPED, "head_dim": 4}),
    decoder("Persimmon", "PersimmonForCausalLM", "persimmon", "model.layers.1", WIDE),
    decoder("SmolLM3", "SmolLM3ForCausalLM", "smollm3", "model.layers.1", GROUPED),
    decoder("GPT-OSS", "GptOssForCausalLM", "gpt_oss", "model.layers.1",
            {**SPARSE, "head_dim": 4, "num_local_experts": 4, "sliding_window": 4}),
)  # fmt: skip

ENCODERS = (
    encoder("BERT", "BertForMaskedLM", "bert", "bert.encoder.layer.1", WIDE, fast=True),
    encoder("RoBERTa", "RobertaForMaskedLM", "roberta", "roberta.encoder.layer.1", WIDE),
    encoder("ALBERT", "AlbertForMaskedLM", "albert", "predictions",
            {**WIDE, "embedding_size": 8}),
    encoder("ELECTRA", "ElectraForMaskedLM", "electra", "electra.encoder.layer.1", {**WIDE, "embedding_size": 8}),
    encoder("DeBERTa", "DebertaForMaskedLM", "deberta", "deberta.encoder.layer.1",
            {**WIDE, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    encoder("DeBERTa-v2", "DebertaV2ForMaskedLM", "deberta-v2", "deberta.encoder.layer.1",
            {**WIDE, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    encoder("DistilBERT", "DistilBertForMaskedLM", "distilbert", "distilbert.transformer.layer.1",
            {**MARKS, "dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 32}),
    encoder("XLNet", "XLNetLMHeadModel", "xlnet", "transformer.layer.1",
            {**MARKS, "d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 32}),
    encoder("MPNet", "MPNetForMaskedLM", "mpnet", "mpnet.encoder.layer.1", WIDE),
    encoder("ModernBERT", "ModernBertForMaskedLM", "modernbert", "model.layers.1",
            {**WIDE, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 4}),
    encoder("FNet", "FNetForMaskedLM", "fnet", "fnet.encoder.layer.1", WIDE),
    encoder("Funnel", "FunnelForMaskedLM", "funnel", "funnel.encoder.blocks.1.0",
            {**MARKS, "block_sizes": [2, 2], "num_decoder_layers": 1, "d_model": 16, "n_head": 4, "d_head": 4,
             "d_inner": 32}),
)  # fmt: skip

ENCODER_DECODERS = (
    encoder_decoder("T5", "T5ForConditionalGeneration", "t5", "decoder.block.0", T5, fast=True),
    encoder_decoder("mT5", "MT5ForConditionalGeneration", "mt5", "decoder.block.0",
                    {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    encoder_decoder("BART", "BartForConditionalGeneration", "bart", "model.decoder.layers.0",
                    {**TWO_SIDED, "max_position_embeddings": 32}, draws=True),
    encoder_decoder("mBART", "MBartForConditionalGeneration", "mbart", "model.decoder.layers.0",
                    {**TWO_SIDED, "max_position_embeddings": 32}, draws=True),
    encoder_decoder("Pegasus", "PegasusForConditionalGeneration", "pegasus", "model.decoder.layers.0",
                    {**TWO_SIDED, "max_position_embeddings": 32}, draws=True),
    encoder_decoder("Marian", "MarianMTModel", "marian", "model.decoder.layers.0",
                    {**TWO_SIDED, "decoder_vocab_size": VOCABULARY, "max_position_embeddings": 32}, draws=True),
    _text("encoder-decoder", "speech", "Whisper", "WhisperForConditionalGeneration", "whisper",
          "model.decoder.layers.0",
          {**TWO_SIDED, "num_mel_bins": 8, "max_source_positions": SEQUENCE, "max_target_positions": 16,
           "suppress_tokens": None, "begin_suppress_tokens": None}, draws=True),
)  # fmt: skip

STATE_SPACES = (
    state_space("Mamba", "MambaForCausalLM", "mamba", "backbone.layers.1",
                {**MARKS, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2}, fast=True),
    state_space("Mamba 2", "Mamba2ForCausalLM", "mamba2", "backbone.layers.1",
                {**MARKS, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 8,
                 "n_groups": 2, "chunk_size": 4}),
    state_space("FalconMamba", "FalconMambaForCausalLM", "falcon_mamba", "backbone.layers.1",
                {**MARKS, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2}),
    state_space("RWKV", "RwkvForCausalLM", "rwkv", "rwkv.blocks.1",
                {**MARKS, "hidden_size": 16, "attention_hidden_size": 16, "intermediate_size": 32,
                 "num_hidden_layers": 2, "context_length": 32}),
)  # fmt: skip

TEXT_MODELS = (*DECODERS, *ENCODERS, *ENCODER_DECODERS, *STATE_SPACES)
