"""Checkpoints as people find them: GGUF, compressed-tensors, torchao and bitsandbytes int8, made small here.

The oracle is the matrix that the format's own rule gives, in float64; ids of the engine have to be those of its product.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest

import headlong as hl
from headlong.errors import (
    DtypeError,
    HeadlongError,
    MalformedFileError,
    MissingPackageError,
    MissingTensorError,
)
from headlong.links import Affine
from headlong.packed_rows import SIZES
from headlong.store import write_file
from tiny_gguf import gguf_file

VOCAB, DIM = 700, 512
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_0", "Q6_K", "Q5_K", "Q4_K")
Arrays = dict[str, Any]


def plain(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((VOCAB, DIM)) / np.arange(1, DIM + 1) ** 0.4).astype(np.float32)


def stored(kind: str) -> tuple[Any, Any]:
    """The bytes of a matrix in one of ggml's types, and the matrix that they are."""
    rng, of = np.random.default_rng(1), gguf.GGMLQuantizationType[kind]
    if kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_0"):
        data = gguf.quants.quantize(plain(), of)
    else:  # the package does not quantise to these: any bytes are codes, once the float16 scales in them are sane
        data = rng.integers(0, 256, (VOCAB, DIM // 256, gguf.GGML_QUANT_SIZES[of][1]), dtype=np.uint8)
        scales = rng.uniform(0.001, 0.01, (VOCAB, DIM // 256, 2)).astype(np.float16).view(np.uint8)
        data[..., slice(-2, None) if kind == "Q6_K" else slice(0, 4)] = scales[..., :2] if kind == "Q6_K" else scales
        data = data.reshape(VOCAB, -1)
    return data, gguf.quants.dequantize(data, of).astype(np.float64)


def of_kinds(path: Path, **kinds: str) -> Path:
    """A file with such matrices, each of its type."""
    return gguf_file(path, "llama", {f"{name}.weight": (stored(kind)[0], kind) for name, kind in kinds.items()})


def agrees(layer: hl.Layer, weight: Any, bias: Any = 0.0) -> None:
    """The stored matrix as it is, and ids, logits and normalisers of its float64 product, proved."""
    np.testing.assert_array_equal(np.asarray(layer.weight, np.float64), weight.astype(np.float32))
    hidden = np.random.default_rng(2).standard_normal((16, DIM))
    z = hidden @ weight.T + bias
    top = hl.compile(layer, "codes", delta=0.0).topk(hidden, 5)
    assert (top.ids == np.argsort(-z, axis=1, kind="stable")[:, :5]).all() and top.proved.all()
    np.testing.assert_allclose(top.logits, -np.sort(-z, axis=1)[:, :5], rtol=1e-6)
    lse = np.logaddexp.reduce(layer.link(z), axis=1)
    assert (np.abs(top.lse - lse) <= top.error + 1e-6).all()


@pytest.mark.parametrize("kind", KINDS)
def test_gguf(kind: str, tmp_path: Path) -> None:
    path = of_kinds(tmp_path / "model.gguf", token_embd="F16", output=kind)
    weight = stored(kind)[1]
    layer = hl.Layer.load(path)
    agrees(layer, weight)
    kept = kind if kind in SIZES else "float32"
    assert layer.dtype == {"F16": "float16", "BF16": "bfloat16"}.get(kind, kept)
    assert layer.name == ("output.weight (Q5_0, written out as float32: 1 MiB)" if kind == "Q5_0" else "output.weight")
    assert hl.Layer.load(tmp_path).checksum() == layer.checksum()  # the folder, too


def test_damaged_and_unread_gguf_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = of_kinds(tmp_path / "model.gguf", output="Q8_0")
    whole = path.read_bytes()
    for length in (4, 20, 100, len(whole) // 2):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises(MalformedFileError, match="cut off or damaged|says that it has|puts 'output.weight' at"):
            hl.Layer.load(tmp_path / "cut.gguf")
    with pytest.raises(MissingTensorError, match=r"it has output.weight \[700, 512\] Q8_0"):
        hl.Layer.load(path, weight="blk.0.attn_q.weight")
    other = of_kinds(tmp_path / "other.gguf", output="Q5_0")
    packed = of_kinds(tmp_path / "packed.gguf", output="Q6_K")
    expected = np.asarray(hl.Layer.load(path).weight)
    monkeypatch.setitem(sys.modules, "gguf", None)
    np.testing.assert_array_equal(np.asarray(hl.Layer.load(path).weight), expected)
    for read in (lambda: np.asarray(hl.Layer.load(packed).weight), lambda: hl.Layer.load(other)):
        with pytest.raises(MissingPackageError, match=r"pip install 'headlong\[gguf\]'"):
            read()


def packed(codes: Any, bits: int) -> Any:
    """compressed-tensors' int32 words: codes plus half their range, the first in the lowest bits."""
    per = 32 // bits
    wide = np.zeros((len(codes), -(-codes.shape[1] // per) * per), np.uint32)
    wide[:, : codes.shape[1]] = codes.astype(np.int64) + 2 ** (bits - 1)
    words = np.zeros((len(codes), wide.shape[1] // per), np.uint32)
    for place in range(per):
        words |= wide[:, place::per] << np.uint32(bits * place)
    return words.view(np.int32)


def grouped(bits: int, groups: int, scale_type: Any) -> tuple[Any, Any]:
    """Codes of the plain matrix, and their scales."""
    most = 2 ** (bits - 1) - 1
    runs = plain().reshape(VOCAB, groups, -1)
    scale = (np.abs(runs).max(2) / most).astype(scale_type)
    codes = np.clip(np.rint(runs / scale.astype(np.float32)[..., None]), -most - 1, most).reshape(VOCAB, DIM)
    return codes.astype(np.int8), scale


def wide(scale: Any) -> Any:
    return np.repeat(scale.astype(np.float64), DIM // scale.shape[1], axis=1)


def int8_by_rows() -> tuple[Arrays, Any]:
    codes, scale = grouped(8, 1, np.float32)
    return {"lm_head.weight": codes, "lm_head.weight_scale": scale}, codes * wide(scale)


def int4_packed(zero: bool = False, bits: int = 4) -> tuple[Arrays, Any]:
    codes, scale = grouped(bits, 4, ml_dtypes.bfloat16)
    tensors = {"lm_head.weight_packed": packed(codes, bits), "lm_head.weight_scale": scale}
    tensors["lm_head.weight_shape"] = np.array([VOCAB, DIM])
    if not zero:
        return tensors, codes * wide(scale)
    zeros = np.random.default_rng(3).integers(-3, 3, scale.shape).astype(np.int8)
    tensors["lm_head.weight_zero_point"] = np.ascontiguousarray(packed(zeros.T, bits).T)  # down the rows
    return tensors, (codes - wide(zeros)) * wide(scale)


def float8(scale_shape: tuple[int, int], name: str = "weight_scale") -> tuple[Arrays, Any]:
    scale = np.random.default_rng(4).uniform(0.001, 0.01, scale_shape).astype(np.float32)
    codes = (plain() * 30).astype(ml_dtypes.float8_e4m3fn)
    run = -(-VOCAB // scale_shape[0])
    every = np.repeat(np.repeat(scale.astype(np.float64), run, axis=0)[:VOCAB], DIM // scale_shape[1], axis=1)
    return {"lm_head.weight": codes, f"lm_head.{name}": scale}, codes.astype(np.float64) * every


def bitsandbytes() -> tuple[Arrays, Any]:
    codes, scale = grouped(8, 1, np.float32)
    tensors = {"lm_head.weight": codes, "lm_head.SCB": scale[:, 0] * np.float32(127), "lm_head.weight_format": np.uint8([0])}
    return tensors, codes * (tensors["lm_head.SCB"].astype(np.float64) / 127)[:, None]


def torchao() -> tuple[Arrays, Any]:
    codes, scale = grouped(8, 4, np.float16)
    zeros = np.random.default_rng(5).integers(-3, 3, scale.shape).astype(np.int8)
    names = ("qdata", "scale", "zero_point")
    tensors = {f"lm_head._weight_{name}": part for name, part in zip(names, (codes, scale, zeros), strict=True)}
    return tensors, (codes - wide(zeros)) * wide(scale)


def mxfp8(kind: Any = ml_dtypes.float8_e4m3fn, name: str = "weight_scale") -> tuple[Arrays, Any]:
    """Runs of 32 codes with the exponent of a power of two each, as a byte."""
    scale = np.random.default_rng(7).integers(110, 130, (VOCAB, DIM // 32)).astype(np.uint8)
    codes = (plain() * 30).astype(kind)
    return {"lm_head.weight": codes, f"lm_head.{name}": scale}, codes.astype(np.float64) * wide(2.0 ** (scale - 127.0))


FOUND: dict[str, Callable[[], tuple[Arrays, Any]]] = {
    "int8 codes": int8_by_rows,
    "int32 packed codes": int4_packed,
    "int32 packed codes with zeros": lambda: int4_packed(zero=True),
    "int32 packed codes of 8 bits": lambda: int4_packed(zero=True, bits=8),
    "float8_e4m3fn codes": lambda: float8((1, 1)),
    "float8_e4m3fn codes by rows": lambda: float8((VOCAB, 1)),
    "float8_e4m3fn codes in tiles": lambda: float8((7, 4), "weight_scale_inv"),
    "float8_e4m3fn codes of exponents": mxfp8,
    "float8_e5m2 codes of exponents": lambda: mxfp8(ml_dtypes.float8_e5m2, "weight_scale_inv"),
    "bitsandbytes int8": bitsandbytes,
    "int8 torchao codes": torchao,
}


def sides(form: str) -> dict[str, Any]:
    """What ``config.json`` says of runs that share a scale."""
    return {"quantization_config": {"weight_block_size": [1, 32] if "exponents" in form else [100, 128]}}


@pytest.mark.parametrize("form", FOUND)
def test_codes_and_scales(form: str, tmp_path: Path) -> None:
    tensors, weight = FOUND[form]()
    bias = np.random.default_rng(6).standard_normal(VOCAB).astype(np.float32)
    write_file(tmp_path / "model.safetensors", {**tensors, "lm_head.bias": bias}, {"format": "pt"})
    said = {"model_type": "cohere", "logit_scale": 0.5, **sides(form)}
    (tmp_path / "config.json").write_text(json.dumps(said))
    layer = hl.Layer.load(tmp_path)
    agrees(layer, weight, bias)
    assert layer.link == Affine(0.5)
    kind = form.partition(" with")[0].partition(" by")[0].partition(" of")[0].partition(" in t")[0]
    if form == "int8 codes":
        assert layer.dtype == "int8" and layer.name == "lm_head.weight"
    else:
        assert f"lm_head.weight ({kind}, written out as float32: 1 MiB)" in repr(layer)


def test_codes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    good, _ = int4_packed()
    reordered = np.arange(DIM, dtype=np.int32)[::-1] // 128
    bad: list[tuple[Arrays, type[Exception], str]] = [
        ({"lm_head.weight_packed": good["lm_head.weight_packed"][:, :-1]}, DtypeError, "4 or 8 bits in int32 are read"),
        ({"lm_head.weight_scale": np.ones((VOCAB, DIM + 1), np.float16)}, MalformedFileError, "513 scales for 512 columns"),
        ({"lm_head.weight_scale": np.full((VOCAB, 4), np.nan, np.float16)}, MalformedFileError, "holds NaN or infinity"),
        ({"lm_head.weight_zero_point": np.ones((3, 3), np.int32)}, MalformedFileError, "weight_zero_point has shape"),
        ({"lm_head.weight_g_idx": np.ascontiguousarray(reordered)}, DtypeError, "reorders the columns"),
    ]
    for change, error, said in bad:
        tensors = {name: np.ascontiguousarray(part) for name, part in {**good, **change}.items()}
        write_file(tmp_path / "model.safetensors", tensors, {"format": "pt"})
        with pytest.raises(error, match=said):
            hl.Layer.load(tmp_path)
    nibbles = {"lm_head._weight_qdata": np.zeros((VOCAB, DIM // 2), np.uint8), "lm_head._weight_scale": np.ones((VOCAB, 1))}
    write_file(tmp_path / "model.safetensors", nibbles, {"format": "pt"})
    with pytest.raises(DtypeError, match=r"is uint8 \(torchao codes\); int8 and float8 codes are read"):
        hl.Layer.load(tmp_path)


ODD: dict[str, Callable[[Any], Any]] = {
    "0-d": lambda part: np.array(part.reshape(-1)[0]),
    "empty": lambda part: part.reshape(-1)[:0],
    "no rows": lambda part: part[:0],
    "no columns": lambda part: part[..., :0],
    "flat": lambda part: part.reshape(-1),
    "one axis more": lambda part: part[None],
    "int64": lambda part: np.full(part.shape, 2**62),
    "complex": lambda part: np.zeros(part.shape, np.complex64),
    "bool": lambda part: np.zeros(part.shape, bool),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("form", FOUND)
def test_odd_tensors_are_read_or_refused(form: str, odd: str, tmp_path: Path) -> None:
    tensors, _ = FOUND[form]()
    if "packed" in form:
        tensors["lm_head.weight_g_idx"] = np.arange(DIM, dtype=np.int32) // 128
    for name in tensors:
        part = np.array(ODD[odd](np.asarray(tensors[name])), order="C")
        write_file(tmp_path / "model.safetensors", {**tensors, name: part}, {"format": "pt"})
        with contextlib.suppress(HeadlongError):
            hl.Layer.load(tmp_path)


SIDES: list[Any] = [None, 0, "x", [], [128], [0, 128], [-1, 4], [True, True], [100.0, 128], [2**70, 1], {"a": 1}]


@pytest.mark.parametrize("sides", SIDES)
def test_odd_sides_of_tiles_are_read_or_refused(sides: Any, tmp_path: Path) -> None:
    tensors, _ = FOUND["float8_e4m3fn codes in tiles"]()
    write_file(tmp_path / "model.safetensors", tensors, {"format": "pt"})
    weights = {"weights": {"block_structure": sides, "group_size": sides}}
    for said in ({"weight_block_size": sides}, {"config_groups": {"a": weights}}, {"config_groups": sides}, sides, [sides]):
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": said}))
        with pytest.raises(HeadlongError):
            hl.Layer.load(tmp_path)


def saved(tmp_path: Path, tensors: Arrays, config: Any = None) -> Path:
    write_file(tmp_path / "model.safetensors", {name: np.asarray(part) for name, part in tensors.items()}, {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps({} if config is None else config))
    return tmp_path


def test_a_byte_is_an_exponent(tmp_path: Path) -> None:
    """127 is one; the smallest is 2^-127, and 255 is no number."""
    codes = np.ones((4, 32)).astype(ml_dtypes.float8_e4m3fn)
    for byte, scale in ((127, 1.0), (128, 2.0), (0, 2.0**-127), (254, 2.0**127)):
        path = saved(tmp_path, {"lm_head.weight": codes, "lm_head.weight_scale": np.full((4, 1), byte, np.uint8)})
        np.testing.assert_array_equal(hl.Layer.load(path).weight, np.full((4, 32), scale, np.float32))
    with pytest.raises(MalformedFileError, match="holds NaN"):
        hl.Layer.load(saved(tmp_path, {"lm_head.weight": codes, "lm_head.weight_scale": np.full((4, 1), 255, np.uint8)}))


SCALES = (np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint32, bool, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("form", [form for form in FOUND if "exponents" not in form and " in tiles" not in form])
def test_scales_of_types_without_a_meaning_are_refused(form: str, kind: Any, tmp_path: Path) -> None:
    """nvfp4's float8 scales mean something beside a second scale alone, bytes beside float8 codes alone."""
    tensors, _ = FOUND[form]()
    name = next(name for name in tensors if "scale" in name or "SCB" in name)
    path = saved(tmp_path, {**tensors, name: np.ones(np.shape(tensors[name])).astype(kind)})
    if kind is np.uint8 and "float8" in form:
        assert np.array_equal(hl.Layer.load(path).weight, tensors["lm_head.weight"].astype(np.float32) * np.float32(2.0**-126))
        return
    with pytest.raises(DtypeError, match=f"{name} is {np.dtype(kind)} beside .* codes; expected floats"):
        hl.Layer.load(path)


COMPANIONS = [
    "weight_scale_2", "weight_global_scale", "pre_quant_scale", "weight_scale_inv", "weight_scale", "SCB", "weight_g_idx",
    "scale", "scales", "weight_scales", "qzeros", "channel_scale", "smooth_scale", "weight_quantizer._amax", "weight.absmax",
    "input_quantizer._pre_quant_scale", "weight_norm", "lora_A.default.weight", "forward_hadamard_matrix",
    "_weight_per_tensor_scale", "_weight_act_quant_scale", "weight_zero_point_2",
]  # fmt: skip


@pytest.mark.parametrize("name", COMPANIONS)
@pytest.mark.parametrize("form", ["int8 codes", "float8_e4m3fn codes", "float8_e4m3fn codes in tiles", "int8 torchao codes"])
def test_no_tensor_beside_a_quantised_weight_is_ignored(form: str, name: str, tmp_path: Path) -> None:
    tensors, _ = FOUND[form]()
    if f"lm_head.{name}" in tensors:
        return
    config = sides(form)
    with pytest.raises(DtypeError, match="which may change it"):
        hl.Layer.load(saved(tmp_path, {**tensors, f"lm_head.{name}": np.ones((1, 1), np.float32)}, config))


@pytest.mark.parametrize("form", FOUND)
def test_what_is_said_of_activations_leaves_the_weights_as_they_are(form: str, tmp_path: Path) -> None:
    tensors, weight = FOUND[form]()
    more = {f"lm_head.{name}": np.full(1, 3.0, np.float32) for name in ("input_scale", "output_scale", "input_global_scale")}
    path = saved(tmp_path, {**tensors, **more}, sides(form))
    np.testing.assert_array_equal(np.asarray(hl.Layer.load(path).weight), weight.astype(np.float32))


def test_a_layout_of_bitsandbytes_that_is_not_by_rows_is_refused(tmp_path: Path) -> None:
    tensors, _ = bitsandbytes()
    with pytest.raises(DtypeError, match="is not 0, which is row by row"):
        hl.Layer.load(saved(tmp_path, {**tensors, "lm_head.weight_format": np.uint8([1])}))


@pytest.mark.parametrize("shape", [(VOCAB, 0), (0, 4), (0, 0), (0,)])
@pytest.mark.parametrize("kind", [np.int32, np.int8])
def test_zero_points_of_no_size_are_malformed(shape: tuple[int, ...], kind: Any, tmp_path: Path) -> None:
    tensors, _ = int4_packed()
    with pytest.raises(MalformedFileError, match="weight_zero_point has shape"):
        hl.Layer.load(saved(tmp_path, {**tensors, "lm_head.weight_zero_point": np.zeros(shape, kind)}))
