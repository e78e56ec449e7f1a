"""The product that makes a graph's "logits": where it is fed, its weights as they are stored, and what comes behind it.

::

    logits = after(hidden @ weight.T)     after: Add, Sub, Mul, Div, Tanh with constants: a bias of the layer, or its link
    weight = (code - zero) * scale        in groups along a row, or plain numbers

Both hosts show a graph the same way (:class:`Graph`), with ONNX's names of operations. What is not one of the forms here is
refused with what was found; no number is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from headlong import Layer
from headlong.dtypes import STORED
from headlong.errors import InputError
from headlong.integrations.generation.score_maps import link_between
from headlong.layers.codes_and_scales import Stored, packed, written_out

RAMP = 60.0
"""Scores from -RAMP to RAMP show what comes behind the product."""
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Tanh": np.tanh,
    "Cast": lambda x: x, "Identity": lambda x: x,
}  # fmt: skip
EXPECTED = "expected a product with stored weights, and behind it a bias, a scale or a soft-cap"


class Node(NamedTuple):
    """One operation; ``inputs`` are values that the graph knows, None where an optional one is left out."""

    op: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any] = {}


class Graph(Protocol):
    """``node(value)`` makes it, None for an input of the graph; ``stored(value)``: the numbers of a constant, or None."""

    def node(self, value: Any) -> Node | None: ...

    def stored(self, value: Any) -> Any: ...


class Cut(NamedTuple):
    """``hidden``: the value that feeds the product of ``layer``, in which numbers are of the type ``kind``."""

    hidden: Any
    layer: Layer
    kind: Any


class Constant(NamedTuple):
    """``(codes - zero) * scale``; plain numbers where there is no scale. A group of codes has an axis of its own."""

    codes: Any
    zero: Any = None
    scale: Any = None


def cut(graph: Graph, logits: Any, link: Any = None) -> Cut:
    """The layer behind the value ``logits``; ``link``: what is behind its product, None: as the graph has it."""
    behind: list[tuple[str, list[Any]]] = []
    value, flat = logits, False
    while (node := _made(graph, value)).op not in PRODUCTS:
        if node.op == "Mul" and (found := _dynamic(graph, node)) is not None:
            return Cut(found[0], _layer(found[1][0], None, behind, link), np.dtype(np.float32))
        inputs = [_plain(graph, one) for one in node.inputs]
        varying = [place for place, numbers in enumerate(inputs) if numbers is None]
        if node.op == "Reshape" and varying == [0]:
            flat = True
        elif node.op in ELEMENTWISE and len(varying) == 1:
            behind.append((node.op, inputs))
        else:
            raise InputError(f'"logits" is made by {node.op} of {len(varying):,} computed values; {EXPECTED}')
        value = node.inputs[varying[0]]
    hidden, (weight, kind), bias = PRODUCTS[node.op](graph, node)
    if flat:
        before = _made(graph, hidden)
        if before.op != "Reshape":
            raise InputError(f'"logits" is reshaped behind a product of {before.op}; expected a Reshape before it, too')
        hidden = before.inputs[0]
    return Cut(hidden, _layer(weight, bias, behind, link), kind)


def _layer(weight: Any, bias: Any, behind: list[tuple[str, list[Any]]], link: Any) -> Layer:
    ramp = np.random.default_rng(0).permutation(np.linspace(-RAMP, RAMP, weight.shape[0]))
    scores, added, known = ramp, np.zeros(len(ramp)) if bias is None else np.asarray(bias, np.float64).reshape(-1), []
    for op, inputs in reversed(behind):
        numbers = next((one for one in inputs if one is not None), None)
        if numbers is None or numbers.size == 1:
            known += [] if numbers is None else [abs(float(numbers.reshape(-1)[0]))]
            arguments = [scores if one is None else float(one.reshape(-1)[0]) for one in inputs]
            scores = ELEMENTWISE[op](*arguments)
        elif numbers.size == len(ramp) and scores is ramp and (op == "Add" or (op == "Sub" and inputs[0] is None)):
            added = added + ELEMENTWISE[op](0.0, np.asarray(numbers, np.float64).reshape(-1))
        else:
            raise InputError(f'"logits" is made by {op} with {list(numbers.shape)} numbers; {EXPECTED}')
    if link is None:
        link = link_between(ramp, scores, [value for value in known if value], "torch.float64")
    offset = added.astype(np.float32) if added.any() else None
    return Layer(weight, offset, link, name="the graph's logits")


def _made(graph: Graph, value: Any) -> Node:
    if (node := graph.node(value)) is None:
        raise InputError(f'"logits" is an input of the graph or a constant; {EXPECTED}')
    return node


def _constant(graph: Graph, value: Any) -> Constant | None:
    """What constants alone make; the first input that they do not ends the search, so that it is short."""
    if (numbers := graph.stored(value)) is not None:
        return Constant(numbers)
    node = graph.node(value)
    if node is None or node.op not in FOLDED:
        return None
    parts: list[Any] = []
    for one in node.inputs:
        part = None if one is None else _constant(graph, one)
        if one is not None and part is None:
            return None
        parts.append(part)
    return FOLDED[node.op](node, *parts)


def _plain(graph: Graph, value: Any) -> Any:
    """The numbers of a constant that is not codes and scales; None elsewhere."""
    found = None if value is None else _constant(graph, value)
    return found.codes if found is not None and found.scale is None and found.zero is None else None


def _cast(node: Node, weight: Constant) -> Constant | None:
    to, codes = node.attributes.get("to"), weight.codes
    if to is None or weight.scale is not None:
        return weight if to is None or to in (np.float32, np.float64) else None
    small = codes.dtype.kind in "iu" and codes.dtype.itemsize == 1 and to.kind != "i"
    return weight if small or (codes.dtype in STORED and to.itemsize > codes.dtype.itemsize) else Constant(codes.astype(to))


def _sub(node: Node, weight: Constant, zero: Constant) -> Constant | None:
    free = weight.zero is None and weight.scale is None and zero.scale is None and zero.zero is None
    return weight._replace(zero=zero.codes) if free else None


def _mul(node: Node, weight: Constant, scale: Constant) -> Constant | None:
    if weight.codes.size < scale.codes.size:
        weight, scale = scale, weight
    return weight._replace(scale=scale.codes) if weight.scale is None and scale.scale is None and scale.zero is None else None


def _reshape(node: Node, weight: Constant, shape: Constant) -> Constant | None:
    """``[vocab, groups, size]`` to ``[vocab, dim]``: scales lose the axis that they are one along."""
    codes = weight.codes.reshape([int(size) for size in shape.codes])
    if weight.scale is None and weight.zero is None:
        return Constant(codes)
    if weight.codes.ndim != 3 or codes.ndim != 2 or len(codes) != len(weight.codes):
        return None
    rest = [None if part is None else part.reshape(part.shape[:2]) for part in (weight.zero, weight.scale)]
    return Constant(codes, *rest)


def _transpose(node: Node, weight: Constant, order: Constant | None = None) -> Constant | None:
    order = node.attributes.get("perm") if order is None else order.codes
    if weight.codes.ndim != 2 or (order is not None and [int(one) for one in order] != [1, 0]):
        return None
    return Constant(*(part if part is None or part.ndim < 2 else part.T for part in weight))


def _dequantised(node: Node, codes: Constant, scale: Constant, zero: Constant | None = None) -> Constant | None:
    """ONNX's: one scale in all, one for each place along ``axis``, or one for each block along it."""
    if codes.codes.ndim != 2 or codes.scale is not None:
        return None
    axis = int(node.attributes.get("axis", 1)) % 2
    shape = {0: [1, 1], 1: [-1, 1] if axis == 0 else [1, -1]}.get(scale.codes.ndim)
    parts = [None if part is None else part.codes if shape is None else part.codes.reshape(shape) for part in (zero, scale)]
    return Constant(codes.codes, *parts)


FOLDED: dict[str, Callable[..., Constant | None]] = {
    "Cast": _cast, "Identity": _cast, "Sub": _sub, "Mul": _mul, "Reshape": _reshape, "Transpose": _transpose,
    "DequantizeLinear": _dequantised,
}  # fmt: skip


def matrix(weight: Constant | None, op: str, transposed: bool, group: int | None = None) -> tuple[Any, Any]:
    """``[vocab, dim]`` as it is stored (plain numbers, rows of int8 with a scale each, or else written out as float32), and
    the type of the numbers that are multiplied."""
    if weight is None or weight.codes.ndim != 2:
        raise InputError(f'"logits" is made by {op}, whose second input is no matrix of constants; {EXPECTED}')
    codes, zero, scale = (part.T if transposed and part is not None and part.ndim == 2 else part for part in weight)
    if scale is None and zero is None:
        if codes.dtype not in STORED:
            raise InputError(f'"logits" is made by {op} with weights of {codes.dtype}; expected {", ".join(map(str, STORED))}')
        return np.ascontiguousarray(codes), codes.dtype
    if scale is None:
        raise InputError(f'"logits" is made by {op} with codes less a zero point and no scale; {EXPECTED}')
    vocab, dim = codes.shape
    scale = scale.reshape(1, 1) if scale.ndim < 2 else scale
    if codes.dtype == np.uint8:  # the same differences, in signed codes
        codes = (codes ^ np.uint8(128)).view(np.int8)
        zero = (np.zeros(1, np.int64) if zero is None else _whole(zero, op)) - 128
    elif zero is not None:
        zero = _whole(zero, op)
    if zero is not None:
        zero, scale = np.broadcast_arrays(zero.reshape(1, 1) if zero.ndim < 2 else zero, scale)
    arrays = {"the codes": codes, "the scales": scale, "the zero points": zero}
    how = Stored("codes", "the codes", "the scales", None if zero is None or not zero.any() else "the zero points")
    rows = packed(how, arrays.__getitem__)
    if rows is not None:
        return rows, scale.dtype
    sides = tuple(-(-size // count) for size, count in zip((vocab, dim), scale.shape, strict=True))
    return written_out(how, arrays.__getitem__, (sides[0], sides[1] if group is None else group)), scale.dtype


def _whole(zero: Any, op: str) -> Any:
    whole = np.rint(zero.astype(np.float64)).astype(np.int64)
    if (whole != zero).any():
        raise InputError(f'"logits" is made by {op} with zero points that are no whole numbers; {EXPECTED}')
    return whole


def _matmul(graph: Graph, node: Node) -> tuple[Any, Any, Any]:
    """MatMul of both hosts (OpenVINO's may transpose), and Gemm with its bias."""
    said = node.attributes
    usual = not (said.get("transpose_a") or said.get("transA")) and said.get("alpha", 1) == 1 == said.get("beta", 1)
    if not usual:
        raise InputError(f'"logits" is made by {node.op} with {dict(said)}; expected its hidden vectors as rows, unscaled')
    weight = _constant(graph, node.inputs[1])
    bias = _plain(graph, node.inputs[2]) if len(node.inputs) > 2 else None
    if len(node.inputs) > 2 and node.inputs[2] is not None and bias is None:
        raise InputError(f'"logits" is made by {node.op} with a bias that is computed; {EXPECTED}')
    return node.inputs[0], matrix(weight, node.op, not (said.get("transpose_b") or said.get("transB"))), bias


def _nbits(graph: Graph, node: Node) -> tuple[Any, Any, Any]:
    """ONNX Runtime's: codes ``[vocab, blocks, bytes]``, the first in the lowest bits; without zero points half their range."""
    hidden, codes, scale, zero, order, bias = (*node.inputs, *[None] * 6)[:6]
    said = {name: int(node.attributes[name]) for name in ("N", "K", "bits", "block_size")}
    vocab, dim, bits, size = said.values()
    if order is not None or bits not in (2, 4, 8):
        found = f"{bits} bits{' and g_idx' if order is not None else ''}"
        raise InputError(f'"logits" is made by MatMulNBits of {found}; expected 2, 4 or 8 bits in their order')
    blocks = -(-dim // size)
    packed_codes, scales = _plain(graph, codes), _plain(graph, scale)
    if packed_codes is None or scales is None:
        raise InputError(f'"logits" is made by MatMulNBits of computed weights; {EXPECTED}')
    zeros = np.full((vocab, blocks), 2 ** (bits - 1)) if zero is None else _plain(graph, zero)
    if zero is not None and zeros.dtype == np.uint8:
        zeros = unpacked(zeros.reshape(vocab, -1), bits)[:, :blocks]
    rows = unpacked(packed_codes.reshape(vocab, -1), bits)[:, :dim]
    weight = Constant(rows, zeros.reshape(vocab, blocks), scales.reshape(vocab, blocks))
    return hidden, matrix(weight, node.op, False, size), None if bias is None else _plain(graph, bias)


def unpacked(codes: Any, bits: int) -> Any:
    """``[n, bytes]`` uint8 -> ``[n, codes]``, the first in the lowest bits."""
    parts = codes[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8(2**bits - 1)
    return parts.reshape(len(codes), -1)


PRODUCTS: dict[str, Callable[[Graph, Node], tuple[Any, Any, Any]]] = {"MatMul": _matmul, "Gemm": _matmul, "MatMulNBits": _nbits}


def _dynamic(graph: Graph, node: Node) -> tuple[Any, Any] | None:
    """ONNX's dynamic int8: ``Cast(MatMulInteger(q, codes, _, zero)) * (step * scale)``, ``q, step`` of the hidden vector."""
    made = [graph.node(one) for one in node.inputs]
    cast = next((one for one in made if one is not None and one.op == "Cast"), None)
    scales = next((one for one in made if one is not None and one.op == "Mul"), None)
    product = None if cast is None else graph.node(cast.inputs[0])
    if product is None or scales is None or product.op != "MatMulInteger":
        return None
    source = graph.node(product.inputs[0])
    numbers = next((one for one in (_plain(graph, one) for one in scales.inputs) if one is not None), None)
    if source is None or source.op != "DynamicQuantizeLinear" or numbers is None:
        return None
    zero = _plain(graph, product.inputs[3]) if len(product.inputs) > 3 else None
    weight = Constant(
        _plain(graph, product.inputs[1]), *(None if part is None else part.reshape(1, -1) for part in (zero, numbers))
    )
    return source.inputs[0], matrix(weight, product.op, True)
