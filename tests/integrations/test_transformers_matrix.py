"""Fifteen architectures times the ways to decode: the tokens of the dense model, and dense where it is said."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import transformers as hf

from dense_noise import dense_with_noise
from headlong.integrations.transformers import accelerate, generate, headlong_generate, restore

VOCAB = 1200
IDS = torch.randint(5, VOCAB, (2, 6), generator=torch.Generator().manual_seed(3))
SHORT = {"max_new_tokens": 6, "pad_token_id": 0, "do_sample": False}

LLAMA = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48,
    "max_position_embeddings": 128, "head_dim": 16,
}  # fmt: skip
PAIR = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64, "decoder_start_token_id": 2,
    "pad_token_id": 0, "eos_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**LLAMA, "rotary_pct": 0.5}),
    "opt": (
        "OPTForCausalLM",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 48, "word_embed_proj_dim": 32},
    ),
    "phi": ("PhiForCausalLM", {**LLAMA, "num_key_value_heads": 2, "partial_rotary_factor": 0.5}),  # a bias in the layer
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", {**LLAMA, "sliding_window": 8}),
    "qwen2": ("Qwen2ForCausalLM", {**LLAMA, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", LLAMA),
    "gemma2": ("Gemma2ForCausalLM", {**LLAMA, "final_logit_softcapping": 20.0, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3ForCausalLM", {**LLAMA, "query_pre_attn_scalar": 16}),
    "granite": ("GraniteForCausalLM", {**LLAMA, "logits_scaling": 4.0}),
    "cohere": ("CohereForCausalLM", {**LLAMA, "logit_scale": 0.25}),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
    ),
    "bart": ("BartForConditionalGeneration", PAIR),
    "marian": ("MarianMTModel", PAIR),
}


def made(name: str) -> Any:
    torch.manual_seed(0)
    kind, sizes = ARCHITECTURES[name]
    of = getattr(hf, kind)
    config = of.config_class(**{"vocab_size": VOCAB, "pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1, **sizes})
    model = of(config)
    with torch.no_grad():
        layer = model.get_output_embeddings()
        layer.weight.mul_(15)
        if layer.bias is not None:
            layer.bias.normal_()
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
    return model.eval()


@functools.cache
def pair(name: str) -> tuple[Any, Any]:
    """The model as it is and an accelerated one with the same weights."""
    plain, fast = made(name), made(name)
    accelerate(fast, method="codes")
    return plain, fast


TOKENS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy without a cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static"},
    "penalties": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    "bans": {"bad_words_ids": [[7], [8, 9]], "min_new_tokens": 4},
    "beams": {"num_beams": 3},
    "beams that have to end": {"num_beams": 3, "forced_eos_token_id": [5, 6]},
    "beams among few": {"num_beams": 3, "prefix_allowed_tokens_fn": lambda row, ids: [0, 11, 12]},
    "two ends forced": {"forced_eos_token_id": [5, 6]},
}
LAW: dict[str, dict[str, Any]] = {
    "sampling": {"top_k": 0, "temperature": 1.3},
    "top-k": {"top_k": 9},
    "top-p and min-p": {"top_k": 0, "top_p": 0.9, "min_p": 0.001},
    "typical": {"top_k": 0, "typical_p": 0.8},
    "by surprisals": {"top_k": 0, "top_h": 0.7, "typical_p": 0.9, "epsilon_cutoff": 1e-3, "eta_cutoff": 1e-2},
}
SAID: dict[str, dict[str, Any]] = {
    "sampled beams": {"do_sample": True, "num_beams": 2},
    "beams with bans, renormalised": {"num_beams": 3, "bad_words_ids": [[7], [9]], "renormalize_logits": True},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_same_tokens_and_the_same_law(name: str) -> None:
    plain, fast = pair(name)
    head = fast.get_output_embeddings()
    for way, options in TOKENS.items():
        if "cache_implementation" in options and fast.config.is_encoder_decoder:
            continue  # transformers' own caches of both sides
        expected = plain.generate(IDS, **SHORT, **options)
        head.paths.clear()
        assert torch.equal(generate(fast, IDS, **SHORT, **options), expected), way
        assert head.paths and not any("dense" in path for path in head.paths), way
    for way, options in LAW.items():
        asked = {**SHORT, "do_sample": True, **options}
        expected = plain.generate(IDS, custom_generate=dense_with_noise(8), **asked)
        assert torch.equal(generate(fast, IDS, headlong_seed=8, **asked), expected), way


@pytest.mark.filterwarnings("ignore:headlong reads the whole output layer:RuntimeWarning")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_is_dense_is_the_models_own(name: str) -> None:
    plain, fast = pair(name)
    head = fast.get_output_embeddings()
    for options in SAID.values():
        torch.manual_seed(1)
        expected = plain.generate(IDS, **{**SHORT, **options})
        head.paths.clear()
        torch.manual_seed(1)
        found = fast.generate(IDS, custom_generate=headlong_generate, **{**SHORT, **options})
        assert torch.equal(found, expected)
        assert all("dense" in path for path, rows in head.paths.items() if rows) and head.paths
    with torch.no_grad():
        more = {"decoder_input_ids": IDS} if fast.config.is_encoder_decoder else {}
        assert torch.equal(fast(IDS, **more).logits, plain(IDS, **more).logits)
        assert abs(fast(IDS, labels=IDS).loss - plain(IDS, labels=IDS).loss) < 1e-6


def test_restore_gives_the_model_back() -> None:
    plain, fast = made("phi"), made("phi")
    accelerate(fast)
    restore(fast)
    assert type(fast.lm_head) is torch.nn.Linear
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), fast.parameters(), strict=True))
