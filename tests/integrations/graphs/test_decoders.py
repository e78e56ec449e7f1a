"""Decoders beside an encoder, as optimum runs them by OpenVINO and ONNX Runtime: Whisper's transcripts and BART's texts.

A decoder is one graph with states, two (one that starts a text, one that goes on), or two as branches of one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headlong import Layer, SoftCap
from headlong.errors import InputError
from headlong.integrations.graphs.hosts import same_layer
from headlong.integrations.transformers import accelerate, restore
from language_models import FIRST_TIMESTAMP, VOCAB, made, whisper

pytestmark = pytest.mark.filterwarnings("ignore")  # exporters' own
WITHOUT = "`just hosts` installs what goes together with optimum's packages and runs these tests"
NOISE = torch.Generator().manual_seed(1)
SOUND = {"input_features": torch.randn(2, 16, 3000, generator=NOISE)}
TEXT = {"input_ids": torch.randint(5, VOCAB, (2, 7), generator=NOISE), "attention_mask": torch.ones(2, 7, dtype=torch.int64)}
SHORT: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}
CALLS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "five beams": {"num_beams": 5},
    "timestamps": {"return_timestamps": True},
    "timestamps, five beams": {"return_timestamps": True, "num_beams": 5},
}
EXPORTED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "openvino whisper": ("optimum.intel", "OVModelForSpeechSeq2Seq", {"load_in_8bit": False}),
    "openvino whisper, two graphs": ("optimum.intel", "OVModelForSpeechSeq2Seq", {"load_in_8bit": False, "stateful": False}),
    "openvino bart": ("optimum.intel", "OVModelForSeq2SeqLM", {"load_in_8bit": False}),
    "onnx whisper": ("optimum.onnxruntime", "ORTModelForSpeechSeq2Seq", {}),
    "onnx whisper, merged": ("optimum.onnxruntime", "ORTModelForSpeechSeq2Seq", {"use_merged": True}),
    "onnx bart": ("optimum.onnxruntime", "ORTModelForSeq2SeqLM", {}),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``(class, folder)`` by its name; made once."""
    root, done = tmp_path_factory.mktemp("decoders"), {}

    def folder(name: str) -> tuple[Any, Path]:
        package, kind, options = EXPORTED[name]
        of = getattr(pytest.importorskip(package, reason=WITHOUT, exc_type=ImportError), kind)
        architecture = name.split()[1].strip(",")
        if name not in done:
            plain, done[name] = root / architecture, root / name.replace(" ", "-")
            if not plain.exists():
                (whisper() if architecture == "whisper" else made(architecture)).save_pretrained(plain)
            of.from_pretrained(plain, export=True, **options).save_pretrained(done[name])
        return of, done[name]

    return folder


@pytest.mark.parametrize("name", EXPORTED)
def test_the_tokens_are_those_of_a_float64_head_over_the_same_body(exported: Any, name: str) -> None:
    of, path = exported(name)
    model, given = of.from_pretrained(path), SOUND if "whisper" in name else TEXT
    before = model.generate(**given, **SHORT)
    head = accelerate(model, method="codes")
    layer = head.engine.layer
    weight = torch.from_numpy(np.asarray(layer.weight, np.float64))
    bias = 0 if layer.bias is None else torch.from_numpy(layer.bias.astype(np.float64))
    vectors = torch.eye(head.in_features)[:4]
    assert torch.allclose(head.host.product(vectors).double(), vectors.double() @ weight.T + bias, atol=1e-5)
    head.host._product = lambda hidden: hidden.double() @ weight.T + bias
    for options in CALLS.values() if "whisper" in name else list(CALLS.values())[:2]:
        expected = type(model).generate(model, **given, **SHORT, **options)
        head.paths.clear()
        found = model.generate(**given, **SHORT, **options)
        assert torch.equal(found, expected)
        assert head.paths and not any("dense" in path for path in head.paths)
        assert not options.get("return_timestamps") or (found >= FIRST_TIMESTAMP).any()
    restore(model)
    assert "forward" not in vars(model) and "generate" not in vars(model)
    assert torch.equal(model.generate(**given, **SHORT), before)


@pytest.mark.parametrize("name", ["onnx whisper", "onnx whisper, merged"])
def test_answers_that_are_bound_to_memory_before_are_as_wide_as_the_body_makes_them(exported: Any, name: str) -> None:
    of, path = exported(name)
    model = of.from_pretrained(path, use_io_binding=True)
    before = model.generate(**SOUND, **SHORT)
    accelerate(model)
    assert torch.equal(model.generate(**SOUND, **SHORT), before)
    restore(model)
    assert torch.equal(model.generate(**SOUND, **SHORT), before)


def test_graphs_that_end_in_different_layers_are_refused() -> None:
    weight = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    same = [Layer(weight, weight[:, 0]), Layer(weight.copy(), weight[:, 0].copy())]
    assert same_layer(same) is same[0]
    for other in (Layer(weight + 1, weight[:, 0]), Layer(weight), Layer(weight, weight[:, 0], SoftCap(30.0))):
        with pytest.raises(InputError, match="end in different layers"):
            same_layer([same[0], other])


def test_a_model_is_whole_after_its_graphs_were_refused(exported: Any) -> None:
    of, path = exported("onnx whisper")
    model = of.from_pretrained(path)
    before = model.generate(**SOUND, **SHORT)
    model.decoder_with_past.path = path / "encoder_model.onnx"
    with pytest.raises(InputError, match='"logits"'):
        accelerate(model)
    assert torch.equal(model.generate(**SOUND, **SHORT), before)
