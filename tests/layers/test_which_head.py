"""Which tensor of which file is the output layer: what the model's own code takes, or a refusal with a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.errors import MalformedFileError, MissingTensorError, StoreError
from headlong.layers.tying import ARCHITECTURES, FAMILIES
from headlong.store import write_file
from tiny_gguf import gguf_file

VOCAB, DIM = 12, 8
RNG = np.random.default_rng(0)
WORDS, HEAD = (RNG.standard_normal((VOCAB, DIM)).astype(np.float32) for _ in range(2))


def folder(place: Path, tensors: dict[str, Any], config: dict[str, Any] | None = None, name: str = "model") -> Path:
    """A checkpoint's folder, as ``save_pretrained`` makes it."""
    write_file(place / f"{name}.safetensors", tensors, {"format": "pt"})
    if config is not None:
        (place / "config.json").write_text(json.dumps(config))
    return place


@pytest.mark.timeout(60)
@pytest.mark.skipif(os.name != "posix", reason="pipes as POSIX has them")
@pytest.mark.parametrize("name", ["model.safetensors.index.json", "config.json", "model.safetensors", "model.gguf"])
def test_a_pipe_in_a_checkpoints_folder_is_refused(name: str, tmp_path: Path) -> None:
    """Nobody writes to it: what opens it waits for ever, and what looks away reads another model."""
    if name == "config.json":
        folder(tmp_path, {"lm_head.weight": HEAD})
    os.mkfifo(tmp_path / name)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(StoreError, match="is not a regular file"):
            hl.Layer.load(path)


# ---- tied: by a configuration that says so, or a family that is known to tie where it is silent ----

EMBEDDED = {"model.embed_tokens.weight": WORDS}
SAYS: dict[str, tuple[Any, bool]] = {
    "no configuration": (None, False),
    "an empty one": ({}, False),
    "a family that ties": ({"model_type": "gemma2"}, True),
    "a family that does not": ({"model_type": "llama"}, False),
    "one of mixtures that does not": ({"model_type": "qwen2_moe"}, False),
    "one that is not known": ({"model_type": "own"}, False),
    "silence in both halves": ({"model_type": "llava", "text_config": {"model_type": "gemma"}}, False),
    "a half that says it": ({"model_type": "llava", "text_config": {"tie_word_embeddings": True}}, True),
    "a model around one that ties": ({"model_type": "blip-2", "text_config": {"model_type": "opt"}}, True),
    "a model around one that does not": ({"model_type": "blip-2", "text_config": {"model_type": "llama"}}, False),
    "said": ({"model_type": "llama", "tie_word_embeddings": True}, True),
    "denied": ({"model_type": "gemma2", "tie_word_embeddings": False}, False),
    "null": ({"model_type": "llama", "tie_word_embeddings": None}, False),
    "null of a family that ties": ({"model_type": "gpt2", "tie_word_embeddings": None}, True),
}


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("said", SAYS)
def test_an_embedding_is_the_head_only_where_something_says_so(said: str, shards: bool, tmp_path: Path) -> None:
    config, tied = SAYS[said]
    folder(tmp_path, EMBEDDED, config, "a" if shards else "model")
    if shards:
        index = {"weight_map": dict.fromkeys(EMBEDDED, "a.safetensors")}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    if tied:
        assert hl.Layer.load(tmp_path).name == "model.embed_tokens.weight"
    else:
        with pytest.raises(MissingTensorError, match="no tensor 'lm_head.weight', and .*weight="):
            hl.Layer.load(tmp_path)
    np.testing.assert_array_equal(hl.Layer.load(tmp_path, weight="model.embed_tokens.weight").weight, WORDS)


@pytest.mark.parametrize("flag", [0, 1, "true", "false", [], {}])
def test_a_flag_that_is_none_is_malformed(flag: Any, tmp_path: Path) -> None:
    folder(tmp_path, EMBEDDED, {"model_type": "gpt2", "tie_word_embeddings": flag})
    with pytest.raises(MalformedFileError, match="tie_word_embeddings is .*; expected true or false"):
        hl.Layer.load(tmp_path)


def test_families_that_tie_in_silence_are_those_of_transformers() -> None:
    configurations = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    for family in sorted(FAMILIES & set(configurations)):
        assert configurations[family]().tie_word_embeddings is True, family
    assert not {"llama", "mistral", "qwen2", "qwen3", "phi3", "gpt_neox", "olmo2"} & FAMILIES


# ---- classes that give no logits over words ----

OTHERS: dict[str, dict[str, Any]] = {
    "LlamaForSequenceClassification": {"score.weight": HEAD[:2]},
    "Qwen2ForTokenClassification": {"score.weight": HEAD[:2], "score.bias": HEAD[0, :2]},
    "BertForSequenceClassification": {"classifier.weight": HEAD[:2]},
    "RobertaForSequenceClassification": {"classifier.out_proj.weight": HEAD[:2]},
    "BartForSequenceClassification": {"classification_head.out_proj.weight": HEAD[:2]},
    "Gemma2ForQuestionAnswering": {"qa_outputs.weight": HEAD[:2]},
    "GPT2ForSequenceClassification": {"score.weight": HEAD[:1]},
    "LlamaForRewardModel": {"v_head.weight": HEAD[:1]},
    "Qwen2ForProcessRewardModel": {"score.weight": HEAD[:1]},
    "ElectraForPreTraining": {"discriminator_predictions.dense.weight": HEAD},
    "FunnelForPreTraining": {},
    "FlavaForPreTraining": {},
    "GritLM": {},
    "T5EncoderModel": {},
    "Qwen3Model": {},
    "BertForNextSentencePrediction": {"cls.seq_relationship.weight": HEAD[:2]},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_the_embedding_of_a_classifier_is_not_its_head(kind: str, tmp_path: Path) -> None:
    words = {"bert.embeddings.word_embeddings.weight": WORDS} if kind.startswith(("Bert", "Rob", "Elec")) else EMBEDDED
    folder(tmp_path, {**words, **OTHERS[kind]}, {"architectures": [kind], "tie_word_embeddings": True, "model_type": "gpt2"})
    with pytest.raises(MissingTensorError) as caught:
        hl.Layer.load(tmp_path)
    own = next((name for name in OTHERS[kind] if "score." in name or "classif" in name), None)
    if own is not None and own.endswith("weight"):
        assert own in str(caught.value)
        np.testing.assert_array_equal(hl.Layer.load(tmp_path, weight=own).weight, OTHERS[kind][own])
    assert "weight=" in str(caught.value)


def test_the_embedding_of_a_body_within_another_is_not_the_head(tmp_path: Path) -> None:
    """BLIP's decoder has a bias beside it, under the decoder's name."""
    bias = {"text_decoder.cls.predictions.bias": WORDS[:, 0].copy()}
    tensors = {"text_decoder.bert.embeddings.word_embeddings.weight": WORDS, **bias}
    folder(tmp_path, tensors, {"architectures": ["BlipForConditionalGeneration"], "model_type": "blip"})
    with pytest.raises(MissingTensorError, match="no tied embedding was found"):
        hl.Layer.load(tmp_path)


def test_a_model_that_gives_vectors_of_texts_has_no_head(tmp_path: Path) -> None:
    """As sentence-transformers saves Qwen3-Embedding: its class is that of a language model."""
    folder(tmp_path, EMBEDDED, {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True})
    assert hl.Layer.load(tmp_path).vocab == VOCAB
    (tmp_path / "modules.json").write_text("[]")
    with pytest.raises(MissingTensorError, match="gives vectors of texts"):
        hl.Layer.load(tmp_path)


UNREAD = [
    "lm_head.qweight", "lm_head.weight._data", "lm_head.W_q", "lm_head.codebooks", "lm_head.base_layer.weight",
    "lm_head.parametrizations.weight.original0", "language_model.lm_head.scales", "lm_head.lora_A.default.weight",
]  # fmt: skip


@pytest.mark.parametrize("name", UNREAD)
def test_a_head_in_a_form_that_is_not_read_is_not_passed_over(name: str, tmp_path: Path) -> None:
    folder(tmp_path, {**EMBEDDED, name: HEAD}, {"tie_word_embeddings": True})
    with pytest.raises(MissingTensorError, match="an output layer in a form that is not read"):
        hl.Layer.load(tmp_path)


@pytest.mark.parametrize("name", ["embed_out.weight", "lm_head.decoder.weight", "cls.predictions.decoder.weight"])
def test_a_name_of_another_kinds_head_is_not_this_ones(name: str, tmp_path: Path) -> None:
    """Gemma 2 has none of these: transformers leaves the tensor out and ties."""
    folder(tmp_path, {**EMBEDDED, name: HEAD}, {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]})
    np.testing.assert_array_equal(hl.Layer.load(tmp_path).weight, WORDS)
    beside = "gpt_neox.embed_in.weight" if name.startswith("embed") else "bert.embeddings.word_embeddings.weight"
    more = {name.replace("decoder.weight", "bias"): HEAD[:, 0].copy()} if "decoder" in name else {}
    folder(tmp_path, {beside: WORDS, name: HEAD, **more}, {"model_type": "gpt_neox", "tie_word_embeddings": False})
    np.testing.assert_array_equal(hl.Layer.load(tmp_path).weight, HEAD)


# ---- which file of a folder ----


def test_the_file_goes_before_an_index_that_does_not_name_it(tmp_path: Path) -> None:
    """As in transformers, which looks for ``model.safetensors`` first."""
    write_file(tmp_path / "shard.safetensors", {"lm_head.weight": WORDS}, {"format": "pt"})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "shard.safetensors"}}))
    np.testing.assert_array_equal(hl.Layer.load(tmp_path).weight, WORDS)
    folder(tmp_path, {"lm_head.weight": HEAD})
    np.testing.assert_array_equal(hl.Layer.load(tmp_path).weight, HEAD)
    np.testing.assert_array_equal(hl.Layer.load(tmp_path / "shard.safetensors").weight, WORDS)
    np.testing.assert_array_equal(hl.Layer.load(index).weight, WORDS)
    folder(tmp_path, {"model.norm.weight": HEAD})
    with pytest.raises(MissingTensorError, match="no tied embedding was found"):
        hl.Layer.load(tmp_path)
    both = {"lm_head.weight": "shard.safetensors", "model.norm.weight": "model.safetensors"}
    index.write_text(json.dumps({"weight_map": both}))
    np.testing.assert_array_equal(hl.Layer.load(tmp_path).weight, WORDS)


# ---- GGUF ----


HEADLESS = ["bert", "nomic-bert", "nomic-bert-moe", "modern-bert", "neo-bert", "eurobert", "jina-bert-v2", "jina-bert-v3",
            "t5encoder", "gemma-embedding", "llama-embed", "clip", "wavtokenizer-dec"]  # fmt: skip
UNTIED = ["gptneox", "qwen2moe", "phi2", "olmo2", "gpt-oss", "rwkv7", "stablelm", "own", ""]


@pytest.mark.parametrize("architecture", HEADLESS + UNTIED)
def test_architectures_that_do_not_tie_have_no_head_in_their_embedding(architecture: str, tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "model.gguf", architecture, {"token_embd.weight": WORDS})
    with pytest.raises(MissingTensorError, match=r"and an? .*model.* is not known to share token_embd.weight"):
        hl.Layer.load(path)
    np.testing.assert_array_equal(hl.Layer.load(path, weight="token_embd.weight").weight, WORDS)
    whole = gguf_file(tmp_path / "whole.gguf", architecture, {"token_embd.weight": WORDS, "output.weight": HEAD})
    np.testing.assert_array_equal(hl.Layer.load(whole).weight, HEAD)


def test_architectures_that_tie_have(tmp_path: Path) -> None:
    for architecture in sorted(ARCHITECTURES - {"chameleon", "grok", "minicpm"}):  # which do more to their logits
        path = gguf_file(tmp_path / "model.gguf", architecture, {"token_embd.weight": WORDS})
        np.testing.assert_array_equal(hl.Layer.load(path).weight, WORDS)
    assert not ARCHITECTURES & {*HEADLESS, *UNTIED}


@pytest.mark.parametrize("pooling", [1, 2, 3, 4])
def test_a_file_that_pools_its_vectors_has_no_head_of_its_own(pooling: int, tmp_path: Path) -> None:
    """As those of embedding models and rerankers around a language model."""
    path = gguf_file(tmp_path / "model.gguf", "qwen3", {"token_embd.weight": WORDS}, {"qwen3.pooling_type": pooling})
    with pytest.raises(MissingTensorError, match="pools its vectors"):
        hl.Layer.load(path)
    assert hl.Layer.load(gguf_file(path, "qwen3", {"token_embd.weight": WORDS}, {"qwen3.pooling_type": 0})).vocab == VOCAB


# ---- folders of models of transformers, changed ----


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_neox", "bert"])
def test_changed_folders_are_read_as_transformers_reads_them_or_refused(family: str) -> None:
    pytest.importorskip("transformers")
    from mutated_checkpoints import mutated

    came = mutated(family, 12, 3)
    assert set(came) <= {"read", "refused"} and came["read"] > 2 and came["refused"] > 0, came
