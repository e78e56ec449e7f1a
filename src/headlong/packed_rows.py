"""Rows that stay codes and scales, as a checkpoint has them: what stands in the place of a weight matrix.

::

    rows[ids]  ->  float32 [n, dim], the numbers that the format's own dequantisation gives; no others are read
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array, bits, closed_copy, pieces
from headlong.errors import DtypeError, MalformedFileError, MissingPackageError

SIZES = {"Q8_0": (32, 34), "Q4_0": (32, 18), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)}
"""Weights and bytes of a block, of those of GGUF's kinds that engines read as they are; ``csrc/kernels/stored_types.h``."""
PIECE = 1 << 18
"""Weights written out at once."""
INT8 = "int8"
"""A row is a float32 scale and int8 codes: ``weight = scale * code``, rounded once to float32."""


def width(kind: str, dim: int) -> int:
    """The bytes of a row of ``dim`` weights; 0: there is no such row."""
    if kind == INT8:
        return 4 + dim
    weights, size = SIZES.get(kind, (1, 0))
    return 0 if dim % weights else dim // weights * size


def dequantised(rows: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    """``[n, bytes] -> [n, dim]`` float32: ``kind`` as GGUF names it, any that the ``gguf`` package knows, or :data:`INT8`."""
    if kind == INT8:
        return np.ascontiguousarray(rows[:, :4]).view(np.float32) * rows[:, 4:].view(np.int8)
    if kind == "Q8_0":  # the package takes sixteen rows at a time
        blocks = rows.reshape(*rows.shape[:-1], -1, SIZES[kind][1])
        with np.errstate(all="ignore"):
            found = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32) * blocks[..., 2:].view(np.int8)
        return np.asarray(found.reshape(*rows.shape[:-1], -1), np.float32)
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise MissingPackageError(f"{kind} needs a package to be written out: pip install 'headlong[gguf]'") from error
    try:
        with np.errstate(all="ignore"):  # compile refuses what is not finite, as in every layer
            return np.asarray(dequantize(rows, GGMLQuantizationType[kind]), np.float32)
    except (KeyError, NotImplementedError, ValueError) as error:  # ValueError: a type that this version has not
        raise DtypeError(f"{kind} is no kind that the gguf package can write out") from error


class PackedRows:
    """``stored [vocab, bytes]`` uint8, read as a matrix ``[vocab, dim]``: some rows by ``[]``, all by ``np.asarray``."""

    ndim, dtype = 2, np.dtype(np.float32)

    def __init__(self, stored: Array, kind: str, dim: int) -> None:
        came = f"rows of kind {kind} are {stored.dtype} {list(stored.shape)}"
        if stored.dtype != np.uint8 or stored.ndim != 2 or stored.shape[1] != width(kind, dim) or 0 in stored.shape:
            raise MalformedFileError(f"{came}; expected the bytes of {dim:,} weights, uint8 [vocab, bytes]")
        self.stored = np.ascontiguousarray(stored).view()
        self.stored.flags.writeable = False
        self.kind, self.shape = kind, (len(stored), dim)

    @property
    def nbytes(self) -> int:
        """As stored."""
        return self.stored.nbytes

    @property
    def itemsize(self) -> float:
        """Bytes of a weight as stored, scales included."""
        return float(self.stored.shape[1] / self.shape[1])

    @property
    def size(self) -> int:
        """Weights."""
        return self.shape[0] * self.shape[1]

    def closed_copy(self) -> PackedRows:
        """A copy that nobody can write to."""
        return PackedRows(closed_copy(self.stored), self.kind, self.shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, ids: Any) -> NDArray[np.float32]:
        """Rows by a slice, ids or marks."""
        rows = self.stored[ids]
        found = np.empty((len(rows), self.shape[1]), np.float32)
        for part in pieces(len(rows), self.shape[1], PIECE):
            found[part] = dequantised(np.ascontiguousarray(rows[part]), self.kind)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(np.float32 if dtype is None else dtype, copy=False)

    def astype(self, dtype: Any) -> Array:
        """All rows in another type."""
        return np.asarray(self, dtype)


def stored_as(weight: Any) -> tuple[Array, str]:
    """What native code reads a matrix from, and the name of how it is stored."""
    if isinstance(weight, PackedRows):
        return weight.stored, weight.kind
    return bits(weight), weight.dtype.name
