"""Models of transformers whose classes have a ``generate`` of their own: a few thousand random weights, and what each reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from language_models import LLAMA, PAIR, SHARP, T5, VOCAB

ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IDS = torch.randint(3, VOCAB - 5, (2, 6), generator=torch.Generator().manual_seed(1))
SOUND = torch.randn(2, 12, 160, generator=torch.Generator().manual_seed(1))
WORDS = {"vocab_size": VOCAB, **LLAMA, **ENDS}


def built(name: str, **sizes: Any) -> Any:
    """A model of the class ``name``."""
    of = getattr(transformers, name)
    return of(of.config_class(**sizes))


def whisper() -> Any:
    sizes = {key: size for key, size in PAIR.items() if key not in ("max_position_embeddings", "forced_eos_token_id")}
    sizes |= {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 64, "decoder_start_token_id": 1}
    return built("WhisperForConditionalGeneration", vocab_size=VOCAB, **sizes, **ENDS)


def seamless(name: str) -> Any:
    sizes = {"speech_encoder_layers": 1, "speech_encoder_attention_heads": 2, "speech_encoder_intermediate_size": 32}
    names = {"d_model": "hidden_size"}
    pair = {names.get(key, key): size for key, size in PAIR.items() if key != "forced_eos_token_id"}
    return built(name, vocab_size=VOCAB, **sizes, **pair, **ENDS)


def granite_speech(name: str = "GraniteSpeechForConditionalGeneration") -> Any:
    ears = {"num_layers": 1, "hidden_dim": 32, "input_dim": 8, "feedforward_mult": 1, "num_heads": 2, "dim_head": 16}
    middle = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return built(
        name,
        text_config={"model_type": "granite", **WORDS},
        encoder_config={**ears, "output_dim": 8},
        projector_config={"model_type": "blip_2_qformer", "encoder_hidden_size": 32, **middle},
        audio_token_index=VOCAB - 1,
    )


def janus() -> Any:
    eyes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    paint = {"embed_dim": 8, "num_embeddings": 16, "latent_channels": 8, "base_channels": 32, "channel_multiplier": [1]}
    return built(
        "JanusForConditionalGeneration",
        text_config={"model_type": "llama", **WORDS},
        vision_config={**eyes, "mlp_ratio": 1, "projection_dim": 32},
        vq_config={**paint, "num_res_blocks": 1, "num_patches": 4, "image_token_embed_dim": 32, "projection_dim": 32},
        image_token_id=VOCAB - 1,
    )


def csm() -> Any:
    ears = {"hidden_size": 32, "num_filters": 8, "num_residual_layers": 1, "upsampling_ratios": [8, 4], "codebook_size": 64}
    ears |= {"vector_quantization_hidden_dimension": 64, "upsample_groups": 32, "num_hidden_layers": 1, "codebook_dim": 64}
    deep = {**LLAMA, "vocab_size": VOCAB, "backbone_hidden_size": 32, "num_codebooks": 2}
    return built(
        "CsmForConditionalGeneration",
        **{**LLAMA, "vocab_size": VOCAB, "text_vocab_size": VOCAB, "num_codebooks": 2, "codebook_pad_token_id": 0},
        codebook_eos_token_id=1,
        depth_decoder_config=deep,
        codec_config={"model_type": "mimi", "num_attention_heads": 2, "num_key_value_heads": 2, **ears},
    )


def pop2piano() -> Any:
    model = built("Pop2PianoForConditionalGeneration", vocab_size=VOCAB, composer_vocab_size=2, **T5)
    model.generation_config.composer_to_feature_token = {"composer1": 0, "composer2": 1}
    model.generation_config.update(**ENDS)
    return model


OWN: dict[str, tuple[Callable[[], Any], dict[str, torch.Tensor]]] = {
    "whisper": (whisper, {"input_features": torch.randn(1, 8, 40, generator=torch.Generator().manual_seed(1))}),
    "granite_speech": (granite_speech, {"input_ids": IDS}),
    "granite_speech_plus": (lambda: granite_speech("GraniteSpeechPlusForConditionalGeneration"), {"input_ids": IDS}),
    "janus": (janus, {"input_ids": IDS}),
    "csm": (csm, {"input_ids": IDS}),
    "pop2piano": (pop2piano, {"input_features": SOUND[:, :6, :32]}),
    **{
        f"seamless_m4t{version} {source}": (lambda name=name: seamless(name), inputs)  # type: ignore[misc]
        for version in ("", "v2")
        for source, inputs in (("Text", {"input_ids": IDS}), ("Speech", {"input_features": SOUND}))
        for name in [f"SeamlessM4T{version}For{source}ToText"]
    },
}
"""Those that hand ``custom_generate`` on."""


def made_with_own(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """The model, and what it reads."""
    torch.manual_seed(0)
    make, inputs = OWN[name]
    model = make()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(SHARP)
    return model.eval(), inputs
