"""GGUF headers that lie: counts, offsets and types are compared with the file's size before anything is built."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from children import in_limits
from headlong.errors import MalformedFileError, MissingTensorError, OptionError, StoreError, VersionError
from headlong.layers.gguf_header import KINDS, GgufHeader
from headlong.links import IDENTITY, Affine, SoftCap

WEIGHT = np.arange(64, dtype=np.float32).reshape(8, 8)
CODES = {int: (4, "I"), float: (6, "f")}


def text(words: bytes | str) -> bytes:
    raw = words.encode() if isinstance(words, str) else words
    return struct.pack("<Q", len(raw)) + raw


def fact(key: bytes | str, value: Any) -> bytes:
    """A fact of type u32, f32 or text; bytes are written as they are, type and all."""
    if isinstance(value, bytes):
        return text(key) + value
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    kind, code = CODES[type(value)]
    return text(key) + struct.pack(f"<I{code}", kind, value)


def model(
    facts: dict[Any, Any],
    tensors: dict[str, tuple[list[int], int, int]],
    data: bytes = b"",
    counts: tuple[int, int] | None = None,
    version: int = 3,
) -> bytes:
    """``tensors``: name -> sizes (the shortest stride first), type, offset."""
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(facts))))
    head += b"".join(fact(key, value) for key, value in facts.items())
    for name, (sizes, kind, offset) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)
    return head + b"\0" * (-len(head) % 32) + data


HEAD = {"output.weight": ([8, 8], 0, 0)}
LLAMA = {"general.architecture": "llama"}
U64 = 2**64


def test_a_plain_file_needs_no_package(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(model(LLAMA, HEAD, WEIGHT.tobytes()))
    np.testing.assert_array_equal(hl.Layer.load(path).weight, WEIGHT)


LIES: dict[str, tuple[bytes, str]] = {
    "a list of 2^62 numbers": (
        model(LLAMA | {"x": struct.pack("<IIQ", 9, 4, 2**62)}, HEAD, WEIGHT.tobytes()), "4,611,686,018,427,387,904 entries"),
    "a list of 2^61 texts": (
        model(LLAMA | {"x": struct.pack("<IIQ", 9, 8, 2**61)}, HEAD, WEIGHT.tobytes()), "2,305,843,009,213,693,952 entries"),
    "a list of lists": (model({"x": struct.pack("<IIQ", 9, 9, 1)}, HEAD, WEIGHT.tobytes()), "fact of type 9"),
    "an unknown type of fact": (model({"x": struct.pack("<I", 99)}, HEAD, WEIGHT.tobytes()), "fact of type 99"),
    "a text of 2^63 bytes": (model({"x": struct.pack("<IQ", 8, 2**63)}, HEAD, WEIGHT.tobytes()), "header needs byte 9,223,3"),
    "text that is none": (model({b"\xff\xfe": 1}, HEAD, WEIGHT.tobytes()), "not UTF-8"),
    "2^60 tensors": (model({}, HEAD, WEIGHT.tobytes(), counts=(2**60, 0)), "1,152,921,504,606,846,976 tensors"),
    "2^64 - 1 facts": (model({}, HEAD, WEIGHT.tobytes(), counts=(1, U64 - 1)), "18,446,744,073,709,551,615 facts"),
    "an offset that wraps": (model({}, {"output.weight": ([8, 8], 0, U64 - 64)}, WEIGHT.tobytes()), "puts 'output.weight' at"),
    "sizes that wrap": (model({}, {"output.weight": ([2**32] * 2, 0, 0)}, WEIGHT.tobytes()), "puts 'output.weight' at"),
    "no weights": (model({}, {"output.weight": ([0, 8], 0, 0)}, WEIGHT.tobytes()), "without a weight"),
    "seven axes": (model({}, {"output.weight": ([1] * 7, 0, 0)}, WEIGHT.tobytes()), "tensor of 7 axes"),
    "an unknown type of tensor": (model({}, {"output.weight": ([8, 8], 5, 0)}, WEIGHT.tobytes()), "as type 5"),
    "half a block": (model({}, {"output.weight": ([8, 8], 8, 0)}, WEIGHT.tobytes()), "Q8_0 has blocks of 32"),
    "no alignment": (model({"general.alignment": 0}, HEAD, WEIGHT.tobytes()), "general.alignment of 0"),
    "two tensors in one place": (model({}, HEAD | {"b": ([8], 0, 0)}, WEIGHT.tobytes()), "over the bytes of another tensor"),
    "a word for a scale": (
        model({"general.architecture": "grok", "grok.logit_scale": "x"}, HEAD, WEIGHT.tobytes()), "expected a number"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_refused_at_once(lie: str, tmp_path: Path) -> None:
    data, said = LIES[lie]
    (tmp_path / "model.gguf").write_bytes(data)
    began = time.process_time()
    with pytest.raises(MalformedFileError, match=said):
        hl.Layer.load(tmp_path / "model.gguf")
    assert time.process_time() - began < 5


def _refused(path: str) -> bool:
    try:
        hl.Layer.load(path)
    except StoreError:
        return True
    return False


def test_a_list_that_is_longer_than_the_file_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(LIES["a list of 2^61 texts"][0])
    assert in_limits(_refused, str(tmp_path / "model.gguf"), seconds=30, memory=2 << 30)


def test_other_versions_are_named(tmp_path: Path) -> None:
    for version, said in ((1, "GGUF version 1; 2 and 3 are read"), (4, "GGUF version 4"), (3 << 24, "big-endian")):
        (tmp_path / "model.gguf").write_bytes(model(LLAMA, HEAD, WEIGHT.tobytes(), version=version))
        with pytest.raises((VersionError, MalformedFileError), match=said):
            hl.Layer.load(tmp_path / "model.gguf")


def test_kinds_are_those_of_the_gguf_package() -> None:
    gguf = pytest.importorskip("gguf")
    for number, (name, block, size) in KINDS.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (block, size)
        assert gguf.GGMLQuantizationType[name] == number


def test_facts_are_those_of_the_gguf_package(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "facts.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    facts = {"a": -3, "b": 2.5, "c": True, "d": "ä", "e": ["x", "", "zz"], "f": [1, 2, 3], "g": [0.5, 0.25]}
    for key, value in facts.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    header = GgufHeader(path.read_bytes(), "facts")
    assert {key: header.value(key) for key in facts} == facts
    assert header.value("general.architecture") == "llama" and header.value("z") is None


def parts(folder: Path, tensors: list[dict[str, Any]], data: list[bytes], name: str = "model") -> list[Path]:
    paths = []
    for number, (some, raw) in enumerate(zip(tensors, data, strict=True)):
        split = {"split.no": number, "split.count": len(tensors), "split.tensors.count": 2}
        path = folder / f"{name}-{number + 1:05}-of-{len(tensors):05}.gguf"
        path.write_bytes(model(split | (LLAMA if number == 0 else {}), some, raw))
        paths.append(path)
    return paths


def test_the_head_of_a_split_model_is_found_in_its_part(tmp_path: Path) -> None:
    """Part 1 alone has the input embedding, which is another matrix."""
    embedding = (WEIGHT + 100).tobytes()
    first, second = parts(tmp_path, [{"token_embd.weight": ([8, 8], 0, 0)}, HEAD], [embedding, WEIGHT.tobytes()])
    for path in (first, second, tmp_path):
        layer = hl.Layer.load(path)
        np.testing.assert_array_equal(layer.weight, WEIGHT)
        assert layer.name == "output.weight"
    renamed = first.rename(tmp_path / "first.gguf")
    with pytest.raises(MalformedFileError, match="is part 1 of 2 of a model; parts are found by their names"):
        hl.Layer.load(renamed)
    with pytest.raises(StoreError, match="model-00001-of-00002.gguf cannot be read"):
        hl.Layer.load(second)


def test_a_file_that_is_called_a_part_and_says_nothing_of_others_has_to_have_the_head(tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00002.gguf"
    path.write_bytes(model(LLAMA, {"token_embd.weight": ([8, 8], 0, 0)}, WEIGHT.tobytes()))
    with pytest.raises(MissingTensorError, match="is called part 1 of 2, has no 'output.weight', and does not say where"):
        hl.Layer.load(path)
    path.write_bytes(model(LLAMA, HEAD, WEIGHT.tobytes()))
    np.testing.assert_array_equal(hl.Layer.load(path).weight, WEIGHT)


LINKS: list[tuple[str, dict[str, float], Any]] = [
    ("gemma2", {}, SoftCap(30.0)),  # llama.cpp's default, where the file is silent
    ("gemma3n", {}, SoftCap(30.0)),
    ("gemma3", {}, IDENTITY),
    ("gemma4", {"final_logit_softcapping": 20.0}, SoftCap(20.0)),
    ("command-r", {"logit_scale": 0.0625}, Affine(0.0625)),
    ("talkie", {"logit_scale": 4.0}, Affine(4.0)),
    ("granite_swa", {"logit_scale": 4.0}, Affine(0.25)),
    ("minicpm", {"logit_scale": 4.0}, Affine(0.25)),
    ("grok", {}, Affine(0.5773502691896257)),
    ("grok", {"logit_scale": 1.0, "final_logit_softcapping": 30.0}, SoftCap(30.0)),
    ("llama", {"attn_logit_softcapping": 50.0}, IDENTITY),
    ("grok", {"final_logit_softcapping": 30.0}, "scales its logits and then caps them"),
    ("llama", {"logit_scale": 2.0}, r"what llama.logit_scale=2.0 does is not known"),
    ("llama", {"final_logit_softcapping": 2.0}, r"what llama.final_logit_softcapping=2.0 does is not known"),
    ("llama", {"logit_bias_power": 2.0}, r"what llama.logit_bias_power=2.0 does to logits is not known"),
    ("minicpm", {}, "older MiniCPM files"),
    ("chameleon", {}, "sets the logits of image tokens to -inf"),
    ("gemma2", {"final_logit_softcapping": -1.0}, "are no link"),
]


@pytest.mark.parametrize(("arch", "facts", "expected"), LINKS)
def test_what_llama_cpp_does_to_logits(arch: str, facts: dict[str, float], expected: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    said = {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in facts.items()}
    path.write_bytes(model(said, HEAD, WEIGHT.tobytes()))
    if not isinstance(expected, str):
        assert hl.Layer.load(path).link == expected
        return
    with pytest.raises((OptionError, MalformedFileError), match=expected):
        hl.Layer.load(path)
    assert hl.Layer.load(path, link=Affine(3.0)).link == Affine(3.0)


def test_a_tensor_that_scales_the_logits_is_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(model(LLAMA, HEAD | {"output.scale": ([1], 0, 256)}, WEIGHT.tobytes() + np.float32(0.5).tobytes()))
    with pytest.raises(OptionError, match="scales its logits by the tensor output.scale"):
        hl.Layer.load(path)
