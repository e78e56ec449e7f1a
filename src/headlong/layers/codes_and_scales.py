"""Output layers that a checkpoint stores as codes and scales, written out as float32.

::

    weight = (code - zero) * scale        in float64, rounded once to float32 (exact where scales have 16 bits)

compressed-tensors  ``weight_packed`` int32: 4- or 8-bit codes plus half their range, the first in the lowest bits;
                    ``weight_shape``, ``weight_scale [vocab, groups]``, ``weight_zero_point`` (packed down the rows)
                    or ``weight`` int8 or float8 with ``weight_scale [1]``, ``[vocab, 1]``, ``[vocab, groups]`` or of tiles,
                    whose sides ``config.json`` records: the last tile of a row or column may be smaller
bitsandbytes int8   ``weight`` int8 by rows, ``SCB [vocab]``: the scale is SCB / 127
torchao             ``_weight_qdata`` int8 or float8, ``_weight_scale``, ``_weight_zero_point``

A scale's type says what it means: a float is the scale itself, a byte beside float8 codes is E8M0, mxfp8's exponent b of
2^(b - 127); other types have no meaning here. What else lies beside the codes would change them (a second scale, a global one,
one for the vectors): it is refused by its name, but for what is said of activations alone.

These are the weights that exactness is defined against. int8 with one scale a row stays so, in a copy; the rest is written out,
which takes four bytes a weight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array, pieces, shape_of
from headlong.errors import DtypeError, MalformedFileError
from headlong.packed_rows import INT8, PIECE, PackedRows, width

FLOAT8 = {np.dtype(kind) for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)}
SCALES = {np.dtype(kind) for kind in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)}
OF_ACTIVATIONS = {
    "input_scale", "input_zero_point", "input_global_scale", "input_scale_ub", "output_scale", "output_zero_point",
}  # fmt: skip
"""How a runtime rounds hidden vectors and logits; the weights are what they are."""
OF_WEIGHT = re.compile(r"[^.]+|(weight|parametrizations|base_layer|lora_[^.]*|[a-z]+_quantizer)\..*")
"""What a module has beside ``weight`` that makes other weights of it, without the modules in it."""
CODES = {np.dtype(kind) for kind in (np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)}


class Stored(NamedTuple):
    """Which tensors of a checkpoint make one matrix; ``kind`` is what people call it."""

    kind: str
    codes: str
    scale: str
    zero: str | None = None
    shape: str | None = None
    order: str | None = None


def stored(weight: str, names: Collection[str]) -> Stored | None:
    """How ``weight`` is stored as codes and scales; None where it is not."""
    stem, _, last = weight.rpartition("weight")
    if last or not stem:
        return None
    how = _stored(weight, stem, names)
    if how is not None and (other := set(companions(weight, names)) - {name for name in how if name is not None}):
        others = ", ".join(sorted(other))
        raise DtypeError(f"{how.codes} ({how.kind}) comes with {others}, which may change it; write it out, pass Layer(weight)")
    return how


def companions(weight: str, names: Collection[str]) -> list[str]:
    """The tensors of the same module that are neither its weight nor its bias, nor about activations."""
    stem = weight.removesuffix("weight")
    known = {"", "weight", "bias", *OF_ACTIVATIONS}
    beside = (name for name in names if name.startswith(stem))
    return [name for name in beside if (last := name.removeprefix(stem)) not in known and OF_WEIGHT.fullmatch(last)]


def _stored(weight: str, stem: str, names: Collection[str]) -> Stored | None:
    def found(name: str) -> str | None:
        return stem + name if stem + name in names else None

    packed, scale, zero = found("weight_packed"), found("weight_scale"), found("weight_zero_point")
    if packed and scale:
        return Stored("packed codes", packed, scale, zero, found("weight_shape"), found("weight_g_idx"))
    if found("_weight_qdata") and found("_weight_scale"):
        return Stored("torchao codes", f"{stem}_weight_qdata", f"{stem}_weight_scale", found("_weight_zero_point"))
    if weight in names and (scale or found("weight_scale_inv")):
        return Stored("codes", weight, scale or f"{stem}weight_scale_inv", zero)
    if weight in names and found("SCB"):
        return Stored("bitsandbytes int8", weight, f"{stem}SCB", order=found("weight_format"))
    return None


Block = tuple[int | None, int | None]
"""Rows and columns that share a scale, where a configuration says so."""


def block_of_config(config: Mapping[str, Any]) -> Block:
    """``weight_block_size`` of fp8 checkpoints, or what all groups of compressed-tensors agree on."""
    found = config.get("quantization_config") or config.get("compression_config") or {}
    if not isinstance(found, Mapping):
        return None, None
    sides = found.get("weight_block_size")
    groups = found.get("config_groups")
    if sides is None and isinstance(groups, Mapping):
        weights = [group.get("weights") for group in groups.values() if isinstance(group, Mapping)]
        said = {json.dumps(_sides(one)) for one in weights if isinstance(one, Mapping)}
        sides = json.loads(said.pop()) if len(said) == 1 else None
    if (
        not isinstance(sides, list)
        or len(sides) != 2
        or not all(side is None or (type(side) is int and side > 0) for side in sides)
    ):
        return None, None
    return sides[0], sides[1]


def _sides(weights: Mapping[str, Any]) -> Any:
    return weights.get("block_structure") or [None, weights.get("group_size")]


def written_out(how: Stored, read: Callable[[str], Array], block: Block = (None, None)) -> NDArray[np.float32]:
    """``[vocab, dim]`` float32 of the tensors that ``read`` gives."""
    order = None if how.order is None else read(how.order)
    if how.kind == "bitsandbytes int8" and order is not None:
        if order.size != 1 or order.dtype.kind not in "iu" or int(order.reshape(-1)[0]) != 0:
            raise DtypeError(f"{how.order} is not 0, which is row by row; that layout is not read: save the model again")
        order = None
    if order is not None and (order.dtype.kind not in "iu" or (np.diff(order.astype(np.int64).ravel()) < 0).any()):
        raise DtypeError(f"{how.order} reorders the columns of groups; that layout is not read: save the model without it")
    codes = read(how.codes)
    scale = _numbers(read(how.scale), how.scale, codes)
    if how.kind == "bitsandbytes int8":
        scale = scale.reshape(-1, 1) / 127
    vocab, dim, rows = _rows(how, codes, read)
    scale = scale.reshape(-1, 1) if scale.ndim < 2 else scale
    zero = None if how.zero is None else _zeros(read(how.zero), how, scale.shape, codes, dim)
    for name, size, count in (("rows", vocab, scale.shape[0]), ("columns", dim, scale.shape[1])):
        if not 1 <= count <= size:
            raise MalformedFileError(f"{how.scale} is {shape_of(scale)}: {count:,} scales for {size:,} {name} of {how.codes}")
    down = _places(vocab, scale.shape[0], block[0], how)
    along = _places(dim, scale.shape[1], block[1], how)
    dense = np.empty((vocab, dim), np.float32)
    for some in pieces(vocab, dim, PIECE):
        with np.errstate(over="ignore", invalid="ignore"):  # compile refuses what is not finite, as in every layer
            exact = rows(some).astype(np.float64)
            if zero is not None:
                exact -= zero[down[some]][:, along]
            dense[some] = exact * scale[down[some]][:, along]
    dense.flags.writeable = False
    return dense


def packed(how: Stored, read: Callable[[str], Array]) -> PackedRows | None:
    """int8 codes with one scale a row, or one in all, that float32 has exactly; None: another form."""
    if how.kind not in ("codes", "torchao codes") or how.zero is not None or how.order is not None:
        return None
    codes, scale = read(how.codes), read(how.scale)
    if codes.dtype != np.int8 or codes.ndim != 2 or 0 in codes.shape or scale.size not in (1, len(codes)) or scale.ndim > 2:
        return None
    wide = _numbers(scale, how.scale, codes)
    with np.errstate(over="ignore"):
        single = wide.astype(np.float32)
    if (single != wide).any() or (scale.ndim == 2 and scale.shape[1] != 1):
        return None
    rows = np.empty((len(codes), width(INT8, codes.shape[1])), np.uint8)
    rows[:, :4] = np.broadcast_to(single.reshape(-1, 1), (len(codes), 1)).copy().view(np.uint8)
    rows[:, 4:] = codes.view(np.uint8)
    rows.flags.writeable = False
    return PackedRows(rows, INT8, codes.shape[1])


def _rows(how: Stored, codes: Array, read: Callable[[str], Array]) -> tuple[int, int, Callable[[slice], Array]]:
    """``vocab, dim`` and what gives the codes of some rows."""
    if codes.ndim != 2 or 0 in codes.shape:
        raise MalformedFileError(f"{how.codes} has shape {shape_of(codes)}; expected codes [vocab, dim]")
    if how.shape is None:
        if codes.dtype not in CODES:
            raise DtypeError(f"{how.codes} is {codes.dtype} ({how.kind}); int8 and float8 codes are read, one byte a weight")
        return int(codes.shape[0]), int(codes.shape[1]), lambda some: codes[some]
    sizes = read(how.shape)
    if sizes.shape != (2,) or sizes.dtype.kind not in "iu" or int(sizes.min()) < 1:
        raise MalformedFileError(f"{how.shape} is {sizes.dtype} {shape_of(sizes)}; expected two sizes, [vocab, dim]")
    vocab, dim = (int(size) for size in sizes)
    bits = _bits(codes, (vocab, dim), how)
    return vocab, dim, lambda some: unpacked(codes[some], bits, dim)


def _bits(codes: Array, shape: tuple[int, int], how: Stored) -> int:
    vocab, dim = shape
    for bits in (4, 8):
        if codes.dtype == np.int32 and codes.shape == (vocab, -(-dim * bits // 32)):
            return bits
    raise DtypeError(
        f"{how.codes} is {codes.dtype} {shape_of(codes)} for weights [{vocab}, {dim}]; codes of 4 or 8 bits in int32 are read"
    )


def unpacked(packed: Array, bits: int, dim: int) -> NDArray[np.int8]:
    """``[n, words] int32 -> [n, dim]``: codes plus half their range, the first in the lowest bits."""
    words = np.ascontiguousarray(packed).view(np.uint32)[..., None] >> np.arange(0, 32, bits, dtype=np.uint32)
    codes = (words & np.uint32(2**bits - 1)).reshape(len(packed), -1)[:, :dim]
    return np.asarray(codes.astype(np.int16) - 2 ** (bits - 1), np.int8)


def _zeros(zero: Array, how: Stored, shape: tuple[int, ...], codes: Array, dim: int) -> NDArray[np.float64]:
    """The zero points in the shape of the scales; those of packed codes are packed too, down the rows."""
    if how.shape is not None and zero.dtype == np.int32 and zero.ndim == 2 and zero.size and zero.shape != shape:
        bits = 4 if codes.shape[1] == -(-dim // 8) else 8
        zero = unpacked(np.ascontiguousarray(zero.T), bits, shape[0]).T
    zero = zero.reshape(-1, 1) if zero.ndim < 2 else zero
    if zero.shape != shape:
        raise MalformedFileError(f"{how.zero} has shape {shape_of(zero)}; expected {list(shape)}, as {how.scale}")
    if zero.dtype.kind not in "iu":
        raise DtypeError(f"{how.zero} is {zero.dtype}; expected whole numbers")
    return zero.astype(np.float64)


def _numbers(scale: Array, name: str, codes: Array) -> NDArray[Any]:
    if scale.dtype == np.uint8 and codes.dtype in FLOAT8:
        wide = np.where(scale == 255, np.nan, np.ldexp(1.0, scale.astype(np.int32) - 127))
    elif scale.dtype in SCALES:
        with np.errstate(invalid="ignore"):  # a NaN that signals; refused below
            wide = scale.astype(np.float64)
    else:
        raise DtypeError(f"{name} is {scale.dtype} beside {codes.dtype} codes; expected floats, or exponents of float8 codes")
    if wide.ndim > 2 or not wide.size:
        raise MalformedFileError(f"{name} has shape {shape_of(scale)}; expected scales [rows, groups]")
    if not np.isfinite(wide).all():
        raise MalformedFileError(f"{name} holds NaN or infinity; the checkpoint is damaged")
    return wide


def _places(size: int, groups: int, side: int | None, how: Stored) -> NDArray[np.int64]:
    """Which of the groups each place is in: runs of ``side``, the last perhaps shorter.

    Where no configuration says how long a run is, one scale, one a place, and even runs of a power of two are what they seem;
    other counts could be runs of several lengths.
    """
    even = size // groups
    if groups in (1, size) or (side is None and size % groups == 0 and even & (even - 1) == 0):
        side = even
    if side is None:
        raise MalformedFileError(
            f"{how.scale} has {groups} scales for {size} places of {how.codes}, and no quantization_config in config.json says "
            "how many share one; put the model's config.json next to the file"
        )
    if -(-size // side) != groups:
        raise MalformedFileError(
            f"{how.scale} has {groups} scales for {size:,} places of {how.codes}; config.json says {side} share one"
        )
    return np.arange(size) // side
