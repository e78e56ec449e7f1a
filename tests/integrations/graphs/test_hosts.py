"""optimum's models over OpenVINO and ONNX Runtime: tokens of a float64 head over the same body, and everything undone.

Models of random weights are exported here, in single precision, and compressed to eight and four bits by the hosts' own tools.
"""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dense_noise import dense_with_noise
from headlong.errors import InputError
from headlong.integrations.generation.decoding import generate
from headlong.integrations.transformers import accelerate, restore
from language_models import VOCAB, made

pytestmark = pytest.mark.filterwarnings("ignore")  # exporters' own
WITHOUT = "`just hosts` installs what goes together with optimum's packages and runs these tests"
PROMPTS = torch.randint(3, VOCAB, (3, 6), generator=torch.Generator().manual_seed(1))
MASK = torch.ones_like(PROMPTS)
MASK[0, :3] = MASK[1, 0] = 0
PADDED = {"input_ids": PROMPTS * MASK, "attention_mask": MASK}
SHORT = {"max_new_tokens": 8, "min_new_tokens": 8, "pad_token_id": 0}
STORED = ["openvino fp32", "openvino int8", "openvino int4", "onnx fp32", "onnx int8", "onnx int4"]


def package(name: str) -> Any:
    return pytest.importorskip(name, reason=WITHOUT, exc_type=ImportError)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model's folder by its host, how it is stored and its architecture; made once."""
    root, done = tmp_path_factory.mktemp("exported"), {}

    def folder(stored: str, architecture: str) -> Path:
        host, kind = stored.split()
        name = f"{host}-{kind}-{architecture}"
        if name in done:
            return done[name]
        target, plain = root / name, root / architecture
        if not plain.exists():
            made(architecture, tie_word_embeddings=architecture == "llama").save_pretrained(plain)
        if host == "openvino":
            of = package("optimum.intel")
            if kind == "fp32":
                of.OVModelForCausalLM.from_pretrained(plain, export=True, load_in_8bit=False).save_pretrained(target)
            else:
                few = {"bits": 4, "group_size": 16, "ratio": 1.0, "all_layers": True}
                how = of.OVWeightQuantizationConfig(**few if kind == "int4" else {"bits": 8})
                whole = folder("openvino fp32", architecture)
                of.OVModelForCausalLM.from_pretrained(whole, quantization_config=how).save_pretrained(target)
        else:
            of = package("optimum.onnxruntime")
            if kind == "fp32":
                of.ORTModelForCausalLM.from_pretrained(plain, export=True).save_pretrained(target)
            else:
                whole = folder("onnx fp32", architecture)
                of.ORTModelForCausalLM.from_pretrained(whole).save_pretrained(target)
                quantised(kind, target / "model.onnx")
        done[name] = target
        return target

    return folder


def quantised(kind: str, file: Path) -> None:
    if kind == "int8":
        package("onnxruntime.quantization").quantize_dynamic(file, file, per_channel=True)
        return
    onnx, tool = package("onnx"), package("onnxruntime.quantization.matmul_nbits_quantizer")
    found = tool.MatMulNBitsQuantizer(onnx.load(file), bits=4, block_size=16, is_symmetric=False)
    found.process()
    found.model.save_model_to_file(str(file))


def opened(folder: Path) -> Any:
    if (folder / "model.onnx").is_file():
        return package("optimum.onnxruntime").ORTModelForCausalLM.from_pretrained(folder)
    return package("optimum.intel").OVModelForCausalLM.from_pretrained(folder)


@pytest.fixture(scope="module", params=[(stored, name) for stored in STORED for name in ("llama", "gpt2")], ids=" ".join)
def model(request: pytest.FixtureRequest, exported: Any) -> Any:
    return opened(exported(*request.param))


@pytest.fixture
def ours(model: Any) -> Any:
    """The model with its head read here, whose dense product is one in float64 over the weights that were read."""
    head = accelerate(model, method="codes")
    weight = torch.from_numpy(np.asarray(head.engine.layer.weight, np.float64))
    own, head.host._product = head.host._product, lambda hidden: hidden.double() @ weight.T
    yield model, head, own
    restore(model)


CALLS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 0},
    "top_k, temperature": {"do_sample": True, "top_k": 7, "temperature": 0.8},
    "top_p": {"do_sample": True, "top_k": 0, "top_p": 0.8},
    "penalty": {"do_sample": True, "top_k": 0, "repetition_penalty": 1.8},
    "grammar": {"do_sample": False, "prefix_allowed_tokens_fn": lambda row, ids: [5 + row, 7, 100 + len(ids), 2000]},
}


def test_the_tokens_are_those_of_a_float64_head_over_the_same_body(ours: Any) -> None:
    model, head, _ = ours
    for options in CALLS.values():
        expected = model.generate(**PADDED, custom_generate=dense_with_noise(5), **SHORT, **options)
        head.paths.clear()
        assert torch.equal(generate(model, **PADDED, headlong_seed=5, **SHORT, **options), expected)
        assert not any("dense" in path for path in head.paths) and sum(head.paths.values()) == 3 * SHORT["max_new_tokens"]


def test_beams_are_those_of_a_float64_head_over_the_same_body(ours: Any) -> None:
    model, head, _ = ours
    asked = {**PADDED, **SHORT, "num_beams": 4, "num_return_sequences": 2, "do_sample": False}
    expected = type(model).generate(model, **asked)
    head.paths.clear()
    assert torch.equal(model.generate(**asked), expected)
    assert all(path.startswith("beams") for path in head.paths)


def test_the_weights_that_were_read_are_those_that_the_host_multiplies(ours: Any) -> None:
    _, head, own = ours
    hidden = torch.eye(head.in_features)[:16]
    expected = hidden.double() @ torch.from_numpy(np.asarray(head.engine.layer.weight, np.float64)).T
    theirs = own(hidden).double()
    assert (theirs - expected).abs().max() <= 0.02 * expected.abs().max()  # hidden vectors in int8, where the host likes
    assert theirs.shape == (16, VOCAB)


def test_a_plain_call_and_a_restored_model_answer_as_before(model: Any) -> None:
    before = model(**PADDED).logits
    head = accelerate(model)
    # the product alone may be another kernel of the host's than in the whole graph, which rounds hidden vectors to int8
    assert (model(**PADDED).logits - before).abs().max() <= 0.02 * before.abs().max()
    assert head.paths["dense: a plain call of the model"] == PROMPTS.numel()
    restore(model)
    assert "forward" not in vars(model) and "generate" not in vars(model)
    assert torch.equal(model(**PADDED).logits, before)


def test_a_model_that_is_accelerated_saves_all_of_its_graph(model: Any, tmp_path: Path) -> None:
    expected = model(**PADDED).logits
    accelerate(model)
    model.save_pretrained(tmp_path)
    restore(model)
    assert torch.equal(opened(tmp_path)(**PADDED).logits, expected)


def test_texts_calibrate_and_a_second_time_is_refused(model: Any) -> None:
    head = accelerate(model, text=["a b c"] * 60, tokenizer=lambda piece: {"input_ids": [5, 6, 7]})
    assert head.gain is not None and head.gain.rest > 0
    with pytest.raises(InputError, match="restore"):
        accelerate(model)
    restore(model)
    assert restore(model) is None


@pytest.mark.parametrize("stored", ["openvino fp32", "onnx fp32"])
def test_an_accelerated_model_that_nobody_holds_is_gone(exported: Any, stored: str) -> None:
    model = opened(exported(stored, "llama"))
    accelerate(model)
    model.generate(**PADDED, **SHORT, do_sample=False)
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("said", [None, "0"])
def test_threads_of_onnx_runtime_stop_before_the_head_is_read_unless_told_otherwise(exported: Any, said: str | None) -> None:
    name, options = "session.force_spinning_stop", package("onnxruntime").SessionOptions()
    if said is not None:
        options.add_session_config_entry(name, said)
    folder = exported("onnx fp32", "llama")
    model = package("optimum.onnxruntime").ORTModelForCausalLM.from_pretrained(folder, session_options=options)
    for _ in range(2):
        accelerate(model)
        assert model.session.get_session_options().get_session_config_entry(name) == (said or "1")
        restore(model)
        with pytest.raises(RuntimeError) if said is None else nullcontext():
            assert model.session.get_session_options().get_session_config_entry(name) == said


@pytest.mark.parametrize("stored", ["openvino fp32", "openvino int8"])
def test_each_text_begins_with_states_of_its_own(exported: Any, stored: str) -> None:
    """Those that OpenVINO keeps have NaN when they grow for a batch after a longer text; how often is a matter of memory."""
    model = opened(exported(stored, "llama"))
    long = torch.randint(3, VOCAB, (1, 120), generator=torch.Generator().manual_seed(2))
    asked = {"max_new_tokens": 64, "min_new_tokens": 64, "pad_token_id": 0, "do_sample": False}
    first = opened(exported(stored, "llama")).generate(**PADDED, **asked)
    accelerate(model, calibration=long)
    requests = list[Any]()
    for text in (PADDED, {"input_ids": long}, PADDED):
        found = model.generate(**text, **asked)
        assert text is not PADDED or torch.equal(found, first)
        requests.append(model.request._request)
    assert len(set(map(id, requests))) == 3
    with pytest.raises(TypeError, match="pickle"):
        copy.deepcopy(model.request)


def test_what_was_compiled_again_is_noticed(exported: Any) -> None:
    model = opened(exported("openvino fp32", "llama"))
    head = accelerate(model)
    model.request = None
    with pytest.warns(RuntimeWarning, match="compiled again"):
        found = model.generate(**PADDED, **SHORT, do_sample=False)
    restore(model)
    assert torch.equal(model.generate(**PADDED, **SHORT, do_sample=False), found)
    assert any("compiled again" in path for path in head.paths)
