"""layers/: what a layer keeps, and where a checkpoint's output layer is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import headlong as hl
from headlong import arrays
from headlong.errors import (
    DtypeError,
    HeadlongError,
    InputError,
    MalformedFileError,
    MissingTensorError,
    NonFiniteError,
    OptionError,
    ShapeError,
    StoreError,
    VersionError,
)
from headlong.layers.matrix import Layer
from headlong.layers.written_to import digest
from headlong.links import IDENTITY, Affine, Link, SoftCap
from headlong.store import open_file, write_file

WEIGHT = np.arange(20, dtype=np.float16).reshape(5, 4)
BIAS = np.arange(5, dtype=np.float32)


def put(folder: Path, tensors: dict[str, Any], config: dict[str, Any] | None = None, name: str = "model.safetensors") -> Path:
    write_file(folder / name, tensors, {"format": "pt"})
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


# ---- the noun ----


def test_strided_weights_are_copied() -> None:
    wide = np.arange(20, dtype=np.float32).reshape(4, 5)
    layer = Layer(wide.T)
    assert (layer.weight == wide.T).all()
    assert layer.weight.flags.c_contiguous


def test_a_layer_does_not_change() -> None:
    layer = Layer(WEIGHT, BIAS)
    for name in ("weight", "bias", "link", "vocab", "dim", "dtype", "name"):
        with pytest.raises(AttributeError):
            setattr(layer, name, None)
    with pytest.raises(ValueError, match="read-only"):
        layer.weight[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        layer.bias[0] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((WEIGHT.astype(np.float64),), DtypeError, "weight is float64"),
        ((WEIGHT[0],), ShapeError, r"weight has shape \[4\]"),
        ((WEIGHT, BIAS[:4]), ShapeError, r"bias has shape \[4\]; expected \[5\]"),
        ((WEIGHT, np.full(5, np.nan, np.float32)), NonFiniteError, "bias"),
        ((WEIGHT, BIAS.astype(np.float64)), DtypeError, "bias is float64"),
        ((WEIGHT, None, "softcap"), OptionError, r"link is a str; expected Affine\(scale, shift\), SoftCap\(cap\)"),
        ((WEIGHT, None, np.tanh), OptionError, "link is a ufunc"),
    ],
)
def test_unusable_parts_are_refused(arguments: tuple[Any, ...], error: type[HeadlongError], message: str) -> None:
    with pytest.raises(error, match=message):
        Layer(*arguments)


# ---- checksum ----


def test_the_checksum_knows_everything_an_answer_depends_on() -> None:
    layers = [
        Layer(WEIGHT),
        Layer(WEIGHT.astype(np.float32)),
        Layer(WEIGHT.view(ml_dtypes.bfloat16)),  # the same bytes
        Layer(WEIGHT.reshape(4, 5)),  # likewise
        Layer(WEIGHT[::-1]),
        Layer(WEIGHT, BIAS),
        Layer(WEIGHT, BIAS + 1),
        Layer(WEIGHT, BIAS * 0),
        Layer(WEIGHT, None, SoftCap(30)),
        Layer(WEIGHT, None, SoftCap(31)),
        Layer(WEIGHT, None, Affine(2.0)),
    ]
    assert len({layer.checksum() for layer in layers}) == len(layers)
    assert Layer(WEIGHT, BIAS).checksum() == Layer(torch.from_numpy(WEIGHT), torch.from_numpy(BIAS), Affine()).checksum()


def test_the_checksum_reads_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Layer(WEIGHT).checksum()
    monkeypatch.setattr("headlong.layers.matrix.pieces", lambda count, width: arrays.pieces(count, width, 16))
    assert Layer(WEIGHT).checksum() == whole


# ---- saved and loaded ----


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("bias", "link"), [(None, None), (BIAS, SoftCap(30.0)), (None, Affine(0.5, 1.0))])
def test_saved_and_loaded(dtype: type, bias: Any, link: Link | None, tmp_path: Path) -> None:
    layer = Layer(WEIGHT.astype(dtype), bias, link)
    layer.save(tmp_path / "layer.safetensors")
    again = Layer.load(tmp_path / "layer.safetensors")
    assert again.checksum() == layer.checksum()
    assert again.link == layer.link
    assert again.name == "lm_head.weight"


def test_loading_maps(tmp_path: Path) -> None:
    Layer(WEIGHT).save(tmp_path / "layer.safetensors")
    weight = Layer.load(tmp_path / "layer.safetensors").weight
    while isinstance(weight, np.ndarray) and weight.base is not None:
        weight = weight.base
    assert isinstance(weight, memoryview) or type(weight).__name__ == "mmap"


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    Layer(WEIGHT).save(tmp_path / "f")
    file = open_file(tmp_path / "f")
    write_file(tmp_path / "g", {"lm_head.weight": WEIGHT}, {**file.metadata, "version": "2"})
    with pytest.raises(VersionError, match="version 2 of the headlong layer format"):
        Layer.load(tmp_path / "g")
    write_file(tmp_path / "h", {"lm_head.weight": WEIGHT}, {**file.metadata, "link": "{}"})
    with pytest.raises(MalformedFileError, match="link of kind None"):
        Layer.load(tmp_path / "h")


# ---- checkpoints ----


def test_the_bias_beside_the_weight_is_taken_unless_told_otherwise(tmp_path: Path) -> None:
    put(tmp_path, {"lm_head.weight": WEIGHT, "lm_head.bias": BIAS, "weight": WEIGHT, "bias": BIAS + 1, "other": BIAS + 2})
    path = tmp_path / "model.safetensors"

    def first(**names: Any) -> float | None:
        bias = Layer.load(path, **names).bias
        return None if bias is None else float(bias[0])

    assert first() == 0
    assert first(bias=False) is None
    assert first(bias="other") == 2
    assert first(weight="weight") == 1
    with pytest.raises(MissingTensorError, match="no tensor 'none'"):
        first(bias="none")


@pytest.mark.parametrize(
    ("names", "config", "found"),
    [
        (["model.embed_tokens.weight"], {"model_type": "gemma"}, "model.embed_tokens.weight"),
        (["transformer.wte.weight"], {"model_type": "gpt2"}, "transformer.wte.weight"),
        (["model.embed_tokens.weight"], {"tie_word_embeddings": True}, "model.embed_tokens.weight"),
        (["gpt_neox.embed_in.weight", "embed_out.weight"], {"tie_word_embeddings": False}, "embed_out.weight"),
        (["language_model.lm_head.weight", "model.embed_tokens.weight"], None, "language_model.lm_head.weight"),
        (["lm_head.weight", "model.embed_tokens.weight"], {"tie_word_embeddings": True}, "lm_head.weight"),
    ],
)
def test_tied_and_renamed_heads_are_found(names: list[str], config: Any, found: str, tmp_path: Path) -> None:
    put(tmp_path, dict.fromkeys(names, WEIGHT), config)
    layer = Layer.load(tmp_path)
    assert layer.name == found
    assert f"from {found}" in repr(layer)


def test_a_head_that_is_not_there_is_not_guessed(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": WEIGHT, "wte.weight": WEIGHT.astype(np.float32), "norm": BIAS}
    put(tmp_path, tensors, {"tie_word_embeddings": True})
    with pytest.raises(MissingTensorError) as caught:
        Layer.load(tmp_path)
    for part in ("wte.weight could all be it", "pass weight=", "wte.weight [5, 4] F32, model.embed_tokens.weight [5, 4] F16"):
        assert part in str(caught.value)
    assert "norm" not in str(caught.value)
    put(tmp_path, {"model.embed_tokens.weight": WEIGHT}, {"tie_word_embeddings": False})
    with pytest.raises(MissingTensorError, match="no tied embedding was found"):
        Layer.load(tmp_path)
    words = {"mobilebert.embeddings.word_embeddings.weight": WEIGHT, "cls.predictions.dense.weight": WEIGHT.T}
    put(tmp_path, words, {"architectures": ["MobileBertForMaskedLM"]})
    with pytest.raises(MissingTensorError, match=r"has a head of two matrices, mobilebert\.embeddings.*put them side by side"):
        Layer.load(tmp_path)
    put(tmp_path, {"model.embed_tokens.weight": WEIGHT})
    with pytest.raises(MissingTensorError, match=r"no tensor 'head'; its matrices are model\.embed_tokens\.weight"):
        Layer.load(tmp_path, weight="head")


LOGITS = {
    "GPT2DoubleHeadsModel": "transformer.wte.weight",
    "OpenAIGPTDoubleHeadsModel": "transformer.tokens_embed.weight",
    "OpenAIGPTLMHeadModel": "transformer.tokens_embed.weight",
    "SeamlessM4TModel": "shared.weight",
    "SeamlessM4Tv2Model": "shared.weight",
    "MarianMTModel": "model.shared.weight",
}


@pytest.mark.parametrize("kind", LOGITS)
def test_classes_named_model_that_give_logits_have_their_tied_head(kind: str, tmp_path: Path) -> None:
    """A second head (for multiple choice, for speech) does not stand in its way; a class that ends in the first has none."""
    second = {"multiple_choice_head.summary.weight": WEIGHT[:1], "multiple_choice_head.summary.bias": BIAS[:1]}
    put(tmp_path, {LOGITS[kind]: WEIGHT, **second}, {"architectures": [kind], "tie_word_embeddings": True})
    assert Layer.load(tmp_path).name == LOGITS[kind]
    put(tmp_path, {LOGITS[kind]: WEIGHT}, {"architectures": ["GPT2Model"]})
    with pytest.raises(MissingTensorError, match="holds a GPT2Model, which has no output layer"):
        Layer.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "link"),
    [
        ({"model_type": "gemma2", "final_logit_softcapping": 30.0}, SoftCap(30.0)),
        ({"model_type": "falcon_h1", "lm_head_multiplier": 0.5, "logits_scaling": 1}, Affine(0.5)),
    ],
)
def test_the_configuration_makes_the_link(config: dict[str, Any], link: Link, tmp_path: Path) -> None:
    put(tmp_path, {"lm_head.weight": WEIGHT, "classifier.weight": WEIGHT}, config)
    assert Layer.load(tmp_path).link == link
    assert Layer.load(tmp_path / "model.safetensors").link == link
    assert Layer.load(tmp_path, link=Affine(3)).link == Affine(3)
    assert Layer.load(tmp_path, weight="classifier.weight").link == IDENTITY  # the configuration is about the head


def sharded(folder: Path) -> Path:
    put(folder, {"model.embed_tokens.weight": WEIGHT, "x": BIAS}, name="model-1.safetensors")
    put(folder, {"lm_head.weight": WEIGHT + 1, "lm_head.bias": BIAS}, name="model-2.safetensors")
    names = {"model.embed_tokens.weight": 1, "x": 1, "lm_head.weight": 2, "lm_head.bias": 2}
    index = {"metadata": {}, "weight_map": {name: f"model-{shard}.safetensors" for name, shard in names.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_sharded_checkpoints(tmp_path: Path) -> None:
    sharded(tmp_path)
    for path in (tmp_path, tmp_path / "model.safetensors.index.json", str(tmp_path)):
        layer = Layer.load(path)
        assert layer.bias is not None
        assert layer.weight[0, 0] == 1
    (tmp_path / "model-1.safetensors").unlink()
    assert Layer.load(tmp_path).checksum() == layer.checksum()  # only the shards that are needed are opened
    with pytest.raises(MissingTensorError, match=r"its matrices are lm_head\.weight"):
        Layer.load(tmp_path, weight="none")
    with pytest.raises(StoreError, match="model-1.safetensors cannot be read"):
        Layer.load(tmp_path, weight="x")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "has no weight_map"),
        ({"weight_map": []}, "has no weight_map"),
        ({"weight_map": {"a": "../secret.safetensors"}}, "expected a .safetensors file next to it"),
        ({"weight_map": {"a": "/etc/x.safetensors"}}, "next to it"),
        ({"weight_map": {"a": "a.bin"}}, "next to it"),
        ({"weight_map": {"a": 3}}, "next to it"),
    ],
)
def test_malformed_indexes_are_refused(index: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(MalformedFileError, match=message):
        Layer.load(tmp_path)


def test_an_index_that_contradicts_its_shard(tmp_path: Path) -> None:
    put(tmp_path, {"x": BIAS}, name="a.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": "a.safetensors"}}))
    with pytest.raises(MissingTensorError, match=r"a\.safetensors has no tensor 'lm_head\.weight'; it has 'x'"):
        Layer.load(tmp_path)


def test_folders_without_one_model(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no safetensors file"):
        Layer.load(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(StoreError, match=r"pytorch_model\.bin is pickled, which is never read"):
        Layer.load(tmp_path)
    put(tmp_path, {"lm_head.weight": WEIGHT}, name="a.safetensors")
    assert Layer.load(tmp_path).vocab == 5
    put(tmp_path, {"lm_head.weight": WEIGHT}, name="b.safetensors")
    with pytest.raises(StoreError, match=r"several models: a\.safetensors, b\.safetensors"):
        Layer.load(tmp_path)


def trained(weight: Any) -> None:
    rate = torch.optim.SGD([weight], 0.1)
    weight.sum().backward()
    rate.step()


WRITES: dict[str, Callable[[Any], Any]] = {
    "a step of SGD": trained,
    "one number, in place": lambda weight: weight.detach()[3, 4].add_(1.0),
    "all numbers, through .data": lambda weight: weight.data.numpy().__imul__(1.5),
    "loaded again": lambda weight: weight.detach().copy_(weight.detach().flip(0)),
}


@pytest.mark.parametrize("method", ["full", "codes"])
@pytest.mark.parametrize("write", WRITES)
def test_weights_that_changed_after_compile_are_not_answered_from(write: str, method: str) -> None:
    """A step of SGD made ids wrong that were called proved."""
    weight = torch.nn.Parameter(torch.randn(300, 16, generator=torch.Generator().manual_seed(0)))
    engine = hl.compile(Layer(weight), method, threads=1)
    hidden = torch.randn(3, 16)
    ask: list[Callable[[], Any]] = [
        lambda: engine.topk(hidden, 3), lambda: engine.lse(hidden), lambda: engine.log_prob(hidden, [[1], [2], [3]]),
        lambda: engine.sample(hidden, seed=1), lambda: engine.topk(hidden, 3, exclude=[5]),
        lambda: engine.at_temperature(2.0).topk(hidden, 3),
    ]  # fmt: skip
    for one in ask:
        one()
    warmer = engine.at_temperature(2.0)
    WRITES[write](weight)
    for one in [*ask, lambda: warmer.topk(hidden, 3)]:
        with pytest.raises(InputError, match="have changed since this engine was compiled; compile again, or let the layer"):
            one()
    assert hl.compile(Layer(weight), method, threads=1).topk(hidden, 1).ids.shape == (3, 1)


def test_a_numpy_array_that_was_written_over_is_noticed_and_a_copy_is_not_touched() -> None:
    weight = np.random.default_rng(0).standard_normal((300, 16)).astype(np.float32)
    borrowed, own = hl.compile(Layer(weight), "full"), hl.compile(Layer(weight, copy=True), "full")
    hidden = np.ones((1, 16), np.float32)
    before = own.topk(hidden, 3).ids
    weight += 1e-3
    with pytest.raises(InputError, match="have changed since this engine was compiled"):
        borrowed.topk(hidden, 3)
    np.testing.assert_array_equal(own.topk(hidden, 3).ids, before)


@pytest.mark.parametrize("order", ["C", "F", "strided"])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32, np.int8])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (7, 5), (300, 64), (257, 1031)])
def test_a_digest_changes_with_every_word_and_every_place(shape: tuple[int, int], kind: Any, order: str) -> None:
    rng = np.random.default_rng(0)
    whole = rng.integers(-100, 100, (shape[0], 2 * shape[1])).astype(kind)
    array = whole[:, ::2] if order == "strided" else np.array(whole[:, : shape[1]], order=order)  # type: ignore[call-overload]
    before = digest(array)
    assert before == digest(array) and digest(array[:0]) != digest(array.reshape(-1)[:0])
    for _ in range(20 if array.size else 0):
        at = tuple(int(rng.integers(0, size)) for size in shape)
        old = array[at]
        array[at] = old + 1
        assert digest(array) != before
        array[at] = old
    if shape[0] > 1:
        array[[0, -1]] = array[[-1, 0]]
        assert digest(array) != before
