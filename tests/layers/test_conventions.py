"""Folders of transformers' own classes: the layer's logits are the model's, or the folder is refused with a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import headlong as hl
from headlong.errors import MalformedFileError, MissingTensorError, OptionError
from headlong.layers.conventions import AROUND, CONVENTIONS, NO_LINK, link_of_config
from headlong.links import IDENTITY, Affine, SoftCap
from headlong.store import write_file

pytest.importorskip("transformers")

import tiny_classes

EVERY = 1 if os.environ.get("HEADLONG_TEST_ALL") == "1" else 12
"""One in so many of the families that do nothing to logits is tried."""
CLASSES = [(family, model) for _, family, model in tiny_classes.classes()]
OWN = [one for one in CLASSES if one[0] in {*CONVENTIONS, *NO_LINK, *AROUND}]
CHOSEN = OWN + [one for one in CLASSES if one not in OWN][::EVERY]
BUILT = {
    "beam", "cohere", "cohere2", "cohere2_moe", "diffusion_gemma", "falcon_h1", "gemma3n_text", "granite4_vision",
    "gemma2", "gemma3_text", "gemma4_text", "granite", "granite_swa",
    "granitemoe", "granitemoehybrid", "hyperclovax", "nanochat", "recurrent_gemma", "t5gemma2", "vaultgemma", "xlstm",
}  # fmt: skip
"""Families of the table that transformers builds at these sizes; others need more packages, or larger sizes."""


@pytest.mark.parametrize(("family", "model"), CHOSEN)
def test_a_folder_is_read_as_its_class_computes_or_refused(family: str, model: str) -> None:
    for tweak in tiny_classes.tweaks(family):
        found = tiny_classes.outcome(family, model, tweak)
        assert found.outcome != "wrong", (tweak, found.said)
        if family in BUILT and CONVENTIONS[family].key in tweak:
            assert found.outcome == "read" and not found.said.endswith("identity"), found


SAID: list[tuple[dict[str, Any], Any]] = [
    ({"model_type": "gemma2"}, SoftCap(30.0)),  # what the family assumes where its configuration is silent
    ({"model_type": "cohere"}, Affine(0.0625)),
    ({"model_type": "hyperclovax", "logits_scaling": 8.0}, Affine(8.0)),  # granite divides by it
    ({"model_type": "gemma2", "final_logit_softcapping": None}, IDENTITY),
    ({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "final_logit_softcapping": 25.0}}, SoftCap(25.0)),
    ({"model_type": "t5gemma", "decoder": {"final_logit_softcapping": 25.0}}, SoftCap(25.0)),
    ({"model_type": "blip-2", "text_config": {"model_type": "granite", "logits_scaling": 8.0}}, Affine(0.125)),
    ({"model_type": "granite_speech", "text_config": {"model_type": "granite", "logits_scaling": 8.0}}, "granite_speech model"),
    ({"model_type": "llama", "rope_scaling": {"factor": 8}, "attn_logit_softcapping": 50.0, "scale_emb": 12}, IDENTITY),
    ({"model_type": "llama", "logit_scale": 1.0}, IDENTITY),
    ({}, IDENTITY),
    (
        {"model_type": "cohere2_vision", "text_config": {"model_type": "cohere2", "logit_scale": 0.25}},
        "of a cohere2_vision model",
    ),
    ({"model_type": "grok", "output_multiplier_scale": 0.5}, "output_multiplier_scale=0.5 does to the logits of a grok model"),
    ({"model_type": "own", "scale_logits": True}, "scale_logits=True does to the logits of an own model"),
    ({"logit_scale": 0.5}, "of a model without a model_type is not known here; pass link="),
    ({"model_type": "mpt", "logit_scale": "inv_sqrt_d_model"}, "logit_scale='inv_sqrt_d_model'"),
    ({"model_type": "x", "unpadded_vocab_size": 90, "vocab_size": 96}, "all but the first 90 of its 96 classes"),
    ({"model_type": "muse_spark", "text_config": {}}, "multiplies its logits and then caps them"),
]


@pytest.mark.parametrize(("config", "expected"), SAID)
def test_configurations(config: dict[str, Any], expected: Any) -> None:
    if not isinstance(expected, str):
        assert link_of_config(config) == expected
        return
    with pytest.raises(OptionError, match=expected):
        link_of_config(config)


@pytest.mark.parametrize("value", [-1, 0, "x", [1]])
def test_a_number_that_is_no_link_is_malformed(value: Any) -> None:
    with pytest.raises(MalformedFileError, match=r"logits_scaling=.* is not a link"):
        link_of_config({"model_type": "granite", "logits_scaling": value})


WEIGHT = np.arange(48, dtype=np.float32).reshape(6, 8)


def test_a_part_that_a_user_names_is_read_with_its_index(tmp_path: Path) -> None:
    """Part 1 has the input embedding, which would pass for a tied head."""
    first, second = (tmp_path / f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    write_file(first, {"model.embed_tokens.weight": WEIGHT + 100}, {"format": "pt"})
    write_file(second, {"lm_head.weight": WEIGHT}, {"format": "pt"})
    with pytest.raises(MissingTensorError, match="is one part of a model, without 'lm_head.weight' and without the"):
        hl.Layer.load(first)
    np.testing.assert_array_equal(hl.Layer.load(second).weight, WEIGHT)
    index = {"weight_map": {"model.embed_tokens.weight": first.name, "lm_head.weight": second.name}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for path in (first, second, tmp_path):
        np.testing.assert_array_equal(hl.Layer.load(path).weight, WEIGHT)


@pytest.mark.parametrize("name", ["model_00001-of-00002", "model_00001_of_00002", "model.00001-of-00010", "part-1-of-2-x"])
def test_a_part_is_known_by_any_usual_name(name: str, tmp_path: Path) -> None:
    write_file(tmp_path / f"{name}.safetensors", {"model.embed_tokens.weight": WEIGHT}, {"format": "pt"})
    with pytest.raises(MissingTensorError, match="is one part of a model"):
        hl.Layer.load(tmp_path / f"{name}.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    write_file(tmp_path / "model-00001-of-00001.safetensors", {"model.embed_tokens.weight": WEIGHT}, {"format": "pt"})
    np.testing.assert_array_equal(hl.Layer.load(tmp_path / "model-00001-of-00001.safetensors").weight, WEIGHT)


def tiles(vocab: int, dim: int, side: int) -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((vocab, dim)).astype(ml_dtypes.float8_e4m3fn)
    scale = rng.uniform(0.5, 2.0, (-(-vocab // side), -(-dim // side))).astype(np.float32)
    wide = np.repeat(np.repeat(scale, side, axis=0)[:vocab], side, axis=1)[:, :dim]
    return {"lm_head.weight": codes, "lm_head.weight_scale_inv": scale}, codes.astype(np.float32) * wide


@pytest.mark.parametrize(("vocab", "dim"), [(1000, 960), (1000, 1024), (129, 128), (128, 129), (100, 960)])
def test_tiles_of_fp8_have_the_sides_that_the_configuration_records(vocab: int, dim: int, tmp_path: Path) -> None:
    tensors, weight = tiles(vocab, dim, 128)
    write_file(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    for sides in (
        {"weight_block_size": [128, 128]},
        {"config_groups": {"group_0": {"weights": {"block_structure": [128, 128]}}}},
    ):
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8", **sides}}))
        np.testing.assert_array_equal(hl.Layer.load(tmp_path).weight, weight)


def test_tiles_of_unknown_sides_are_refused(tmp_path: Path) -> None:
    tensors, _ = tiles(1000, 960, 128)
    write_file(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    with pytest.raises(MalformedFileError, match="8 scales for 1000 places of lm_head.weight, and no quantization_config"):
        hl.Layer.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"weight_block_size": [64, 64]}}))
    with pytest.raises(MalformedFileError, match="config.json says 64 share one"):
        hl.Layer.load(tmp_path)
    tensors, weight = tiles(1024, 512, 128)
    write_file(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    (tmp_path / "config.json").write_text("{}")
    np.testing.assert_array_equal(hl.Layer.load(tmp_path).weight, weight)  # even runs of a power of two are what they seem
