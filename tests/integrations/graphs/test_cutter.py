"""What a graph of OpenVINO or ONNX says of its output layer, read as a float64 reading of the same graph has it, or refused.

A graph is a table here: ``{value: array}`` for constants, ``{value: (operation, inputs, attributes)}`` for the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headlong.errors import HeadlongError
from headlong.packed_rows import PackedRows

pytest.importorskip("transformers", reason="graphs are read for models of transformers: pip install 'headlong[transformers]'")

from headlong.integrations.graphs.cutter import Node, cut, unpacked

VOCAB, DIM = 24, 16
RNG = np.random.default_rng(3)
W = RNG.standard_normal((VOCAB, DIM)).astype(np.float32)
BIAS = RNG.standard_normal(VOCAB).astype(np.float32)
U8 = RNG.integers(0, 256, (VOCAB, DIM), dtype=np.uint8)
I8 = RNG.integers(-128, 128, (VOCAB, DIM), dtype=np.int8)
U4 = RNG.integers(0, 16, (VOCAB, 4, 4), dtype=np.uint8)
SCALE = RNG.uniform(0.01, 0.1, (VOCAB, 1)).astype(np.float16)
GROUPS = RNG.uniform(0.01, 0.1, (VOCAB, 4, 1)).astype(np.float16)
ZERO = RNG.integers(100, 150, (VOCAB, 1), dtype=np.uint8)
ZEROS = RNG.integers(0, 16, (VOCAB, 4, 1), dtype=np.uint8)
HALF, SINGLE = {"to": np.dtype(np.float16)}, {"to": np.dtype(np.float32)}
ROWS = {"transpose_b": True}


class Table:
    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def node(self, value: str) -> Node | None:
        made = self.values.get(value)
        return Node(made[0], made[1], (*made, {})[2]) if isinstance(made, tuple) else None

    def stored(self, value: str) -> Any:
        made = self.values.get(value)
        return made if isinstance(made, np.ndarray) else None


def nbits(bits: int, codes: Any) -> Any:
    """``[vocab, dim]`` codes as MatMulNBits packs them, in blocks of 8."""
    parts = codes.reshape(VOCAB, -1, 8 // bits).astype(np.uint8)
    packed = (parts << np.arange(0, 8, bits, dtype=np.uint8)).sum(2).astype(np.uint8)
    return packed.reshape(VOCAB, 2, -1)


def product(weight: dict[str, Any], op: str = "MatMul", inputs: Any = ("h", "w"), **said: Any) -> dict[str, Any]:
    return {**weight, "logits": (op, inputs, said)}


F64 = np.float64
BLOCKS = {"w": nbits(4, U4.reshape(VOCAB, DIM)), "s": GROUPS[:, :2, 0].astype(np.float32), "z": nbits(4, np.zeros((VOCAB, 16)))}
BLOCKS["z"] = (ZEROS[:, 0, 0] | ZEROS[:, 1, 0] << 4).astype(np.uint8).reshape(VOCAB, 1)
OF_BLOCKS = {"N": VOCAB, "K": DIM, "block_size": 8}
SHAPE = np.array([VOCAB, DIM])
ASYMMETRIC = {
    "c": U8, "c16": ("Cast", ("c",), HALF), "z": ZERO, "z16": ("Cast", ("z",), HALF), "d": ("Sub", ("c16", "z16")), "s": SCALE,
    "m": ("Mul", ("d", "s")), "w": ("Cast", ("m",), SINGLE),
}  # fmt: skip
GROUPED = {
    "c": U4, "c16": ("Cast", ("c",), HALF), "z": ZEROS, "z16": ("Cast", ("z",), HALF), "d": ("Sub", ("c16", "z16")),
    "s": GROUPS,
    "m": ("Mul", ("d", "s")), "shape": SHAPE, "r": ("Reshape", ("m", "shape")), "w": ("Cast", ("r",), SINGLE),
}  # fmt: skip
DYNAMIC = {
    "q": ("DynamicQuantizeLinear", ("h",)), "w": np.ascontiguousarray(U8.T), "zw": ZERO[:, 0],
    "sw": SCALE[:, 0].astype(np.float32), "step": ("DynamicQuantizeLinear", ("h",)), "zq": ("DynamicQuantizeLinear", ("h",)),
    "p": ("MatMulInteger", ("q", "w", "zq", "zw")), "f": ("Cast", ("p",), SINGLE), "scales": ("Mul", ("step", "sw")),
    "logits": ("Mul", ("f", "scales")),
}  # fmt: skip
BY_SCALE = (U8.astype(F64) - ZERO) * SCALE.astype(F64)
IN_GROUPS = ((U4.astype(F64) - ZEROS) * GROUPS.astype(F64)).reshape(VOCAB, DIM)
READ: dict[str, tuple[dict[str, Any], Any]] = {
    "rows of float32": (product({"w": W}, **ROWS), W),
    "columns of float32": (product({"w": W.T.copy()}), W),
    "columns behind a transpose": (product({"v": W, "w": ("Transpose", ("v",), {"perm": [1, 0]})}), W),
    "halves": (product({"w": W.astype(np.float16)}, **ROWS), W.astype(np.float16)),
    "halves that are cast": (product({"v": W.astype(np.float16), "w": ("Cast", ("v",), SINGLE)}, **ROWS), W.astype(np.float16)),
    "int8 with zero points": (product(ASYMMETRIC, **ROWS), BY_SCALE),
    "int8 with a scale a row": (
        product({"c": I8, "c16": ("Cast", ("c",), HALF), "s": SCALE, "w": ("Mul", ("c16", "s"))}, **ROWS),
        I8 * SCALE.astype(F64),
    ),
    "int4 in groups": (product(GROUPED, **ROWS), IN_GROUPS),
    "DequantizeLinear by rows": (
        product({"c": U8, "s": SCALE[:, 0], "z": ZERO[:, 0], "v": ("DequantizeLinear", ("c", "s", "z"), {"axis": 0}),
                 "w": ("Transpose", ("v",), {})}), BY_SCALE,
    ),
    "DequantizeLinear by columns": (
        product({"c": U8.T, "s": SCALE[:, 0], "z": ZERO[:, 0], "w": ("DequantizeLinear", ("c", "s", "z"), {"axis": -1})}),
        BY_SCALE,
    ),
    "DequantizeLinear, one scale": (
        product({"c": I8, "s": np.array(0.25, np.float32), "w": ("DequantizeLinear", ("c", "s"), {})}, **ROWS), I8 * 0.25,
    ),
    "DequantizeLinear in blocks": (
        product({"c": U4.reshape(VOCAB, DIM), "s": GROUPS[..., 0], "z": ZEROS[..., 0],
                 "w": ("DequantizeLinear", ("c", "s", "z"), {"axis": 1, "block_size": 4})}, **ROWS), IN_GROUPS,
    ),
    "MatMulNBits of four": (
        product(BLOCKS, "MatMulNBits", ("h", "w", "s", "z"), bits=4, **OF_BLOCKS),
        ((U4.reshape(VOCAB, 2, 8).astype(F64) - ZEROS[:, :2]) * GROUPS[:, :2].astype(F64)).reshape(VOCAB, DIM),
    ),
    "MatMulNBits of eight, without zero points": (
        product({**BLOCKS, "w": U8.reshape(VOCAB, 2, 8)}, "MatMulNBits", ("h", "w", "s"), bits=8, **OF_BLOCKS),
        ((U8.reshape(VOCAB, 2, 8).astype(F64) - 128) * GROUPS[:, :2].astype(F64)).reshape(VOCAB, DIM),
    ),
    "dynamic int8": (DYNAMIC, BY_SCALE),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_weights_are_read_as_they_are_stored(name: str) -> None:
    values, expected = READ[name]
    found = cut(Table(values), "logits")
    assert found.hidden == "h" and found.layer.bias is None
    weight = np.asarray(found.layer.weight, np.float64)
    assert np.array_equal(weight, np.asarray(expected, np.float64).astype(np.float32))


def test_codes_with_a_scale_a_row_stay_codes() -> None:
    for name in ("int8 with a scale a row", "DequantizeLinear, one scale"):
        assert isinstance(cut(Table(READ[name][0]), "logits").layer.weight, PackedRows)


def behind(*steps: Any, **more: Any) -> dict[str, Any]:
    """``steps`` one after the other behind a product of ``W``."""
    values: dict[str, Any] = {"w": W, "b": BIAS, "cap": np.full(1, 30, np.float32), "two": np.array(2, np.float16), **more}
    values["p"], last = ("MatMul", ("h", "w"), ROWS), "p"
    for place, (op, *inputs) in enumerate(steps):
        values[f"x{place}"] = (op, tuple(last if one == "." else one for one in inputs), {})
        last = f"x{place}"
    values["logits"] = ("Identity", (last,))
    return values


AFTER: dict[str, tuple[dict[str, Any], Any]] = {
    "a bias": (behind(("Add", ".", "b")), lambda z: z + BIAS),
    "a bias first": (behind(("Add", "b", ".")), lambda z: z + BIAS),
    "less a bias": (behind(("Sub", ".", "b")), lambda z: z - BIAS),
    "a scale": (behind(("Mul", ".", "two")), lambda z: 2 * z),
    "a divisor": (behind(("Div", ".", "two")), lambda z: z / 2),
    "a soft-cap": (behind(("Div", ".", "cap"), ("Tanh", "."), ("Mul", ".", "cap")), lambda z: 30 * np.tanh(z / 30)),
    "a bias and a soft-cap": (
        behind(("Add", ".", "b"), ("Div", ".", "cap"), ("Tanh", "."), ("Mul", "cap", ".")),
        lambda z: 30 * np.tanh((z + BIAS) / 30),
    ),
    "a Gemm between reshapes": (
        {"to": np.array([-1, DIM]), "back": np.array([1, -1, VOCAB]), "flat": ("Reshape", ("h", "to")), "w": W, "b": BIAS,
         "p": ("Gemm", ("flat", "w", "b"), {"transB": 1}), "logits": ("Reshape", ("p", "back"))}, lambda z: z + BIAS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AFTER)
def test_what_comes_behind_the_product_is_the_layers_bias_or_its_link(name: str) -> None:
    values, after = AFTER[name]
    found = cut(Table(values), "logits")
    z = RNG.standard_normal((5, DIM)) @ W.T.astype(F64) * 4
    bias = 0 if found.layer.bias is None else found.layer.bias.astype(F64)
    assert found.hidden == "h"
    assert np.allclose(found.layer.link(z + bias), after(z), rtol=1e-12, atol=1e-12)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a softmax": ({**behind(), "logits": ("Softmax", ("p",))}, "made by Softmax"),
    "two computed inputs": ({"logits": ("MatMul", ("h", "g"))}, "no matrix of constants"),
    "a choice of two graphs": ({"logits": ("If", ("condition",))}, "made by If"),
    "an input": ({}, "is an input of the graph"),
    "a scale that turns them around": (behind(("Sub", "two", ".")), "not a scale, shift or soft-cap"),
    "a scale for each class": (behind(("Mul", ".", "b")), "made by Mul with"),
    "a bias behind a scale": (behind(("Mul", ".", "two"), ("Add", ".", "b")), "made by Add with"),
    "a mask that is computed": (behind(("Add", ".", "mask")), "of 2 computed values"),
    "transposed hidden vectors": (product({"w": W}, transpose_a=True, **ROWS), "hidden vectors as rows"),
    "a Gemm that scales": (product({"w": W, "b": BIAS}, "Gemm", ("h", "w", "b"), transB=1, alpha=0.5), "unscaled"),
    "a permutation of columns": (
        product({**BLOCKS, "g": np.arange(DIM)}, "MatMulNBits", ("h", "w", "s", "z", "g"), bits=4, **OF_BLOCKS), "g_idx",
    ),
    "codes of whole numbers": (product({"w": I8}, **ROWS), "weights of int8"),
    "a zero point and no scale": (product({"c": U8, "z": ZERO, "w": ("Sub", ("c", "z"))}, **ROWS), "no scale"),
    "half a zero point": (
        product({"c": U8, "z": ZERO + np.float16(0.5), "s": SCALE, "d": ("Sub", ("c", "z")), "w": ("Mul", ("d", "s"))}, **ROWS),
        "no whole numbers",
    ),
    "a damaged scale": (
        product({**ASYMMETRIC, "s": np.full_like(SCALE, np.nan)}, **ROWS), "NaN or infinity",
    ),
    "a reshape behind the product alone": (
        {"w": W, "p": ("MatMul", ("h", "w"), ROWS), "back": np.array([-1]), "logits": ("Reshape", ("p", "back")),
         "h": ("Mul", ("g", "g"))}, "reshaped behind a product",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_graph_of_another_form_is_refused_with_what_was_found(name: str) -> None:
    values, words = REFUSED[name]
    with pytest.raises(HeadlongError, match=words):
        cut(Table(values), "logits")


def test_codes_are_unpacked_lowest_bits_first() -> None:
    assert unpacked(np.array([[0x21, 0x43]], np.uint8), 4).tolist() == [[1, 2, 3, 4]]
    assert unpacked(np.array([[0b11100100]], np.uint8), 2).tolist() == [[0, 1, 2, 3]]
