"""Language models of transformers with a few thousand random weights, one for each architecture."""

from __future__ import annotations

from typing import Any

import torch
import transformers

VOCAB = 2500
SHARP = 25.0
"""How much larger output layers are than transformers makes them: untrained scores are flat; these prefer some tokens."""
LLAMA = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48,
    "max_position_embeddings": 256, "head_dim": 16,
}  # fmt: skip
PAIR = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64, "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}  # fmt: skip
OPT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 48, "word_embed_proj_dim": 32}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**LLAMA, "rotary_pct": 0.5}),
    "opt": ("OPTForCausalLM", OPT),
    "phi": ("PhiForCausalLM", {**LLAMA, "num_key_value_heads": 2, "partial_rotary_factor": 0.5}),  # a bias in the layer
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 8}),
    "qwen2": ("Qwen2ForCausalLM", {**LLAMA, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", LLAMA),
    "gemma2": ("Gemma2ForCausalLM", {**LLAMA, "final_logit_softcapping": 20.0, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3ForCausalLM", {**LLAMA, "query_pre_attn_scalar": 16}),
    "granite": ("GraniteForCausalLM", {**LLAMA, "logits_scaling": 4.0}),
    "cohere": ("CohereForCausalLM", {**LLAMA, "logit_scale": 0.25}),
    "t5": ("T5ForConditionalGeneration", T5),
    "bart": ("BartForConditionalGeneration", PAIR),
    "marian": ("MarianMTModel", PAIR),
    "mbart": ("MBartForConditionalGeneration", PAIR),
}


def made(name: str, **sizes: Any) -> Any:
    """The model of the architecture ``name``; ``sizes`` of its configuration may be others."""
    torch.manual_seed(0)
    kind, usual = ARCHITECTURES[name]
    of = getattr(transformers, kind)
    ends = {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1}
    model = of(of.config_class(**{"vocab_size": VOCAB, **ends, **usual, **sizes}))
    with torch.no_grad():
        layer = model.get_output_embeddings()
        layer.weight.mul_(SHARP)
        for bias in (layer.bias, getattr(model, "final_logits_bias", None)):
            if bias is not None:
                bias.normal_()
    return model.eval()


WHISPER = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 16, "max_target_positions": 64, "decoder_start_token_id": 3,
}  # fmt: skip
FIRST_TIMESTAMP = 2000


def whisper() -> Any:
    """A Whisper that reads half a minute of noise, with tokens that it may not write, and timestamps."""
    torch.manual_seed(0)
    ends = {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1, "decoder_start_token_id": 3, "prev_sot_token_id": 4}
    none = {"suppress_tokens": None, "begin_suppress_tokens": None}
    kind = ["WhisperForConditionalGeneration"]
    config = transformers.WhisperConfig(vocab_size=VOCAB, architectures=kind, **{**ends, **WHISPER, **none})
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        model.proj_out.weight.mul_(SHARP)
    model.generation_config = transformers.GenerationConfig(
        **ends, is_multilingual=False, no_timestamps_token_id=FIRST_TIMESTAMP - 1, max_initial_timestamp_index=50,
        suppress_tokens=list(range(100, 900)), begin_suppress_tokens=[5, 2],
    )  # fmt: skip
    return model
