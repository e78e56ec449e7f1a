"""SVD-softmax (Shim, Lee, Choi, Boo, Sung, 2017), as published: measured, not trusted.

    P = W T,  h' = T^-1 h   (so that P h' = W h)
    preview z~ = P[:, :width] h'[:width] + b ;  the N largest z~ are scored exactly ;  softmax over all of z~

Plain: T holds the eigenvectors of W^T W in descending order, the right singular vectors of W. Weighted: with calibration
vectors H and C = H^T H / n + ridge = L L^T, T = L R with R the eigenvectors of L^T W^T W L: the first columns of P are then
the best low-rank predictor of the logits of such vectors, not of the weights.

The Gram matrix (dim x dim) is decomposed in float64; nothing of size [vocab, dim] ever is. The exact step reads the
layer's own rows, so only the first ``width`` columns of P and of the rotation are kept.

Without calibration vectors the columns are the layer's singular directions; with them, those that predict its logits best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headlong.arrays import Array
from headlong.dtypes import Doubles
from headlong.engines.method import Making, Method, register
from headlong.errors import NonFiniteError, OptionError
from headlong.layers.matrix import Layer
from headlong.number_checks import whole
from headlong.plan import Plan, Preview, padded
from headlong.promise import Promise

RIDGE = 1e-4
"""Added to the calibration vectors' second moment, as a share of its mean eigenvalue."""
ROWS_AT_ONCE = 4096


@register
@dataclass(frozen=True)
class Svd(Method):
    """``width``  columns of the preview; None: ceil(dim / 8)
    ``rows``   classes scored exactly; None: ceil(vocab / 16)
    """

    width: int | None = None
    rows: int | None = None

    name: ClassVar[str] = "svd"

    def __post_init__(self) -> None:
        for name in ("width", "rows"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), name, 1, 2**31)

    def plan(self, making: Making) -> Plan:
        layer = making.layer
        width = -(-layer.dim // 8) if self.width is None else whole(self.width, "width", 1, layer.dim)
        rows = -(-layer.vocab // 16) if self.rows is None else whole(self.rows, "rows", 1, layer.vocab)
        return svd_plan(layer, width, rows, making.calibration)

    def promise(self, wanted: Promise, plan: Plan) -> Promise:
        return Promise(math.inf, 1.0)


def svd_plan(layer: Layer, width: int, budget: int, calibration: Doubles | None = None) -> Plan:
    """A float32 preview of ``width`` columns without a radius, and a budget of exact rows."""
    forth, back = rotation(layer.weight, calibration)
    base = np.zeros(padded(layer.vocab), np.float32)
    if layer.bias is not None:
        base[: layer.vocab] = layer.bias
    preview = np.empty((layer.vocab, width), np.float32)
    with np.errstate(over="ignore"):
        for start in range(0, layer.vocab, ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            preview[part] = layer.weight[part].astype(np.float64) @ forth[:, :width]
    if not np.isfinite(preview).all():
        raise NonFiniteError("the layer's rows leave float32's range once rotated; svd cannot hold them: use full")
    columns = np.ascontiguousarray(back[:, :width], np.float32)
    return Plan(preview=Preview(columns, preview, base, budget))


def rotation(weight: Array, calibration: Doubles | None = None) -> tuple[Doubles, Doubles]:
    """``T`` and ``T^-T``, ``[dim, dim]`` each: ``(W T) (hidden T^-T)^T = W hidden^T``, energy in descending order."""
    gram = _gram(weight)
    if calibration is None:
        axes = _eigenvectors(gram)
        return axes, axes
    factor = np.linalg.cholesky(_second_moment(calibration))
    axes = _eigenvectors(factor.T @ gram @ factor)
    # (L R)^-T = L^-T R: one triangular solve, no inverse.
    return factor @ axes, np.linalg.solve(factor.T, axes)


def _gram(weight: Array) -> Doubles:
    """``W^T W`` in float64, streamed over blocks of rows."""
    total = np.zeros((weight.shape[1], weight.shape[1]))
    for start in range(0, len(weight), ROWS_AT_ONCE):
        rows = weight[start : start + ROWS_AT_ONCE].astype(np.float64)
        total += rows.T @ rows
    return total


def _second_moment(calibration: Doubles) -> Doubles:
    """``H^T H / n`` with its ridge, scaled to a mean eigenvalue of one (a scale cancels between T and T^-1)."""
    largest = np.abs(calibration).max(initial=0.0)
    if largest == 0.0:
        raise OptionError("calibration holds no vector other than zero; pass hidden vectors as the layer will see them")
    scaled = calibration / largest
    moment = scaled.T @ scaled
    dim = len(moment)
    return np.asarray(moment * (dim / np.trace(moment)) + RIDGE * np.eye(dim))


def _eigenvectors(symmetric: Doubles) -> Doubles:
    """Columns by descending eigenvalue."""
    return np.asarray(np.linalg.eigh(symmetric)[1][:, ::-1])
