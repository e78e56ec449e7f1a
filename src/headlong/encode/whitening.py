"""The basis in which the leading coordinates say most about the logits.

    C = cov(hidden) + ridge = L L^T,   U = eigenvectors of L^T A^T A L,   A = weight - mean row
    R = (L^-T U) in 16 bits,  T = R^-T:     x' = (hidden - mean) R,  B = A T:     A (hidden - mean) = B x'

Coordinates of x' have variance one over the calibration vectors, and those of B descend in energy: the first ``width`` of
them are the best linear look at the logits of such vectors. Any invertible R gives the same products for *any* hidden
vector, so calibration decides how tight a look is, never whether it is right; what float64 loses is in ``lost``. For the
same reason R may be rounded as coarsely as it likes, as long as T is its inverse: every query reads all of it.

Rows many times longer than most have no part in the mean row and in A^T A, which is streamed: float32 products, summed up
in float64. Nothing of size [vocab, dim] is ever decomposed or held.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array
from headlong.dtypes import UNIT, Doubles, Floats, Halves
from headlong.plan import TILE

RIDGE = 1e-4
"""What is added to the covariance, as a share of its mean eigenvalue: no direction is thought impossible."""
FEWER = 0.02
"""FEWER * dim / n is added, too, for n vectors: the fewer there are, the less their smallest eigenvalues say."""
ENOUGH = 8
"""Calibration vectors per coordinate; more of them make no better covariance."""
GRAM_ROWS = 8192
"""Rows, evenly spread, that tell the energy of every direction, where there are no fewer than eight per coordinate."""
ROUNDED = 2.0**-9
"""What rounding a rotation to float16 may take of any of its rows and columns, relatively."""
SOME = 1024
"""Rows whose median length is the typical one."""
MANY_TIMES = 16.0
"""How many times longer than that a row may be."""
AT_ONCE = 512
"""Vectors whose products are added up in one go."""
SMALL = 64
"""Rows of a triangle that are solved at once."""
PIECE = 1 << 21
"""Numbers of float64 that a streaming pass holds at once."""


class Basis(NamedTuple):
    """``mean``, ``centre [dim]`` of hidden vectors and of rows; ``rotation`` R and ``back`` T ``[dim, dim]``; and

    ``lost``   |<a, x> - <a T, x R>| <= lost * ‖a‖ * ‖x‖ for all a and x, with both products as they are computed
    ``scale``  x' has variance ``scale ** 2`` over the calibration vectors
    """

    mean: Doubles
    centre: Doubles
    rotation: Halves | Floats
    back: Doubles
    lost: float
    scale: float


class Directions(NamedTuple):
    """A basis before it is rounded and inverted: its ``rotation`` R, and ``back``, which is R^-T in float32. For choices."""

    mean: Doubles
    centre: Doubles
    rotation: Doubles
    back: Floats
    scale: float

    def basis(self) -> Basis:
        """The finished basis."""
        return basis_of(self.mean, self.centre, stored(self.rotation), self.scale)


def whiten(weight: Array, calibration: Doubles) -> Basis:
    """The basis for hidden vectors like ``calibration [n, dim]``; any n, any rank."""
    return directions(weight, calibration).basis()


def directions(weight: Array, calibration: Doubles) -> Directions:
    """What :func:`whiten` makes a basis of."""
    calibration = calibration[:: -(-len(calibration) // (ENOUGH * weight.shape[1]))]
    mean, longest = calibration.mean(axis=0), _longest(weight)
    some = weight[:: max(1, len(weight) // max(GRAM_ROWS, ENOUGH * weight.shape[1]))]
    centre, gram = _moments(some, longest)
    factor, scale = _factor(calibration, mean)
    # In float32: directions are mixed only where their energies are alike, and whatever comes out is inverted exactly enough.
    # Equal rows leave nothing but roundings, of either sign: the unit is the largest of any.
    energy = factor.T @ (gram / max(float(np.abs(gram).max(initial=0.0)), 1e-300)).astype(np.float32) @ factor
    rotation = np.linalg.eigh(energy / max(float(np.abs(energy).max(initial=0.0)), 1e-30))[1][:, ::-1]
    return Directions(mean, centre, _solved(factor.T, rotation).astype(np.float64), factor @ rotation, scale)


def _solved(upper: Floats, right: Floats) -> Floats:
    """``upper^-1 right`` of a triangle, half by half."""
    if len(upper) <= SMALL:
        return np.asarray(np.linalg.solve(upper, right))
    half = len(upper) // 2
    low = _solved(upper[half:, half:], right[half:])
    return np.concatenate([_solved(upper[:half, :half], right[:half] - upper[:half, half:] @ low), low])


def stored(rotation: Doubles) -> Halves | Floats:
    """``rotation`` in float16 where that keeps every direction, else in float32."""
    with np.errstate(over="ignore"):
        halves = np.ascontiguousarray(rotation, np.float16)
    gap = halves.astype(np.float64) - rotation
    kept = all(np.all(np.linalg.norm(gap, axis=axis) <= ROUNDED * np.linalg.norm(rotation, axis=axis)) for axis in (0, 1))
    return halves if kept else np.ascontiguousarray(rotation, np.float32)


def basis_of(mean: Doubles, centre: Doubles, rotation: Halves | Floats, scale: float) -> Basis:
    """The basis that rotates hidden vectors by ``rotation [dim, dim]``, an invertible one, as it is stored."""
    wide = rotation.astype(np.float64)
    back = np.linalg.inv(wide).T
    if not (np.isfinite(wide).all() and np.isfinite(back).all()):
        raise np.linalg.LinAlgError("its numbers are none")
    sizes = float(np.linalg.norm(wide) * np.linalg.norm(back))
    gap = float(np.linalg.norm(np.eye(len(wide)) - back @ wide.T))
    # Five products of this length are rounded: x R, A T, their sum, the subtraction of means, and the gap just computed.
    lost = gap + 8 * (len(wide) + 8) * UNIT * sizes
    return Basis(mean, centre, rotation, np.ascontiguousarray(back), lost, scale)


def parts(weight: Array, rows: int = TILE) -> Iterator[slice]:
    """Runs of ``rows`` rows, whole blocks of classes, and of as many such as have :data:`PIECE` numbers."""
    step = max(1, PIECE // (rows * weight.shape[1])) * rows
    return (slice(start, min(start + step, len(weight))) for start in range(0, len(weight), step))


def _longest(weight: Array) -> float:
    """How long a row may be to have a part in the basis: one of 1e25 among ones would leave nothing else to see."""
    some = weight[:: -(-len(weight) // SOME)].astype(np.float64)
    typical = float(np.median(np.sqrt(np.einsum("ij,ij->i", some, some))))
    return MANY_TIMES * typical if typical > 0 else np.inf


def _moments(weight: Array, longest: float) -> tuple[Doubles, Doubles]:
    """The mean row, and ``A^T A`` of the rows less it up to a factor; rows longer than ``longest`` have no part in either.

    They only decide how good the basis is, so float32 will do, in a unit of the rows' size and from a centre near theirs.
    """
    if not np.isfinite(longest):
        longest = float(np.abs(weight).max(initial=0)) * weight.shape[1] ** 0.5
    unit = min(max(longest, 1e-30), 1e38)
    near = _scaled(weight[:: -(-len(weight) // SOME)], unit)[0].mean(axis=0)
    total, moved, count = np.zeros((weight.shape[1], weight.shape[1])), np.zeros(weight.shape[1]), 0
    for part in parts(weight):
        rows, short = _scaled(weight[part], unit)
        rows -= near
        rows[~short] = 0.0
        total += rows.T @ rows
        moved += rows.sum(axis=0)
        count += int(short.sum())
    moved /= count
    return (near + moved) * unit, total - count * np.outer(moved, moved)


def _scaled(rows: Array, unit: float) -> tuple[Floats, NDArray[np.bool_]]:
    """``rows / unit`` in float32, those longer than ``unit`` as zeros, and which are not."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = rows.astype(np.float32)
        scaled /= np.float32(unit)
        short = np.einsum("ij,ij->i", scaled, scaled) <= 1 + 1e-6
    scaled[~short] = 0.0
    return scaled, short


def _factor(vectors: Doubles, mean: Doubles) -> tuple[Floats, float]:
    """L of the covariance ``L L^T``, and what :func:`_covariance` says of its scale. Products in float32 will do where the
    ridge is more than their rounding; else, of many coordinates with all their energy in a few, those in float64."""
    covariance, scale = _covariance(vectors, mean, np.float32)
    try:
        factor = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        covariance, scale = _covariance(vectors, mean, np.float64)
        factor = np.linalg.cholesky(covariance)
    return factor.astype(np.float32), scale


def _covariance(vectors: Doubles, mean: Doubles, kind: Any) -> tuple[Doubles, float]:
    """The covariance over its mean eigenvalue (a scale cancels between T and R), with its ridge, and that scale's root.

    Vectors that are all equal say nothing: every direction is then as likely as any other.
    """
    dim = vectors.shape[1]
    largest = float(np.maximum(vectors.max(axis=0) - mean, mean - vectors.min(axis=0)).max(initial=0.0))
    if largest == 0.0:
        return np.eye(dim), 0.0
    moment = np.zeros((dim, dim))
    for start in range(0, len(vectors), AT_ONCE):
        scaled = ((vectors[start : start + AT_ONCE] - mean) / largest).astype(kind)
        moment += scaled.T @ scaled
    moment /= len(vectors)
    power = float(np.trace(moment)) / dim
    ridge = RIDGE + FEWER * min(1.0, dim / len(vectors))
    return np.asarray(moment / power + ridge * np.eye(dim)), largest * power**0.5
