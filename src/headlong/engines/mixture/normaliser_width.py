"""How many leading coordinates make a look's own normaliser as close as it is wanted, counted on calibration vectors.

::

    L_w = log( sum over the best classes of exp z_i + sum over the others of exp(z_i over the first w coordinates) )
    the fewest w with     FURTHER * max |L - L_w - median| <= aim       over some vectors that the basis was not made of

Radii (:mod:`headlong.previews.first_look`) say how far a logit can be off; the errors of thousands of them nearly cancel in a
sum, which only vectors can show. What codes lose is not counted: it is small beside this. Two streaming passes.
"""

from __future__ import annotations

import numpy as np

from headlong.engines.few_allowed_classes import lse_of
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.previews.first_look import CANDIDATES
from headlong.previews.whitening import Basis, pieces, whiten

BEST, TRIED, LOGITS, FURTHER = 32, 240, 2**25, 2.0
"""Classes whose logits a look has exactly, most vectors and logits that are tried, and how much farther others reach."""


def close_width(layer: Layer, vectors: Doubles, aim: float) -> int | None:
    """The width for queries like ``vectors [n, dim]``; None where no prefix is close enough."""
    tried = vectors[-min(TRIED, max(8, LOGITS // layer.vocab), max(1, len(vectors) // 2)) :]
    basis = whiten(layer.weight, vectors[: max(1, len(vectors) - len(tried))])
    widths = [width for width in CANDIDATES if width < layer.dim]
    far = FURTHER * _farthest(layer, basis, tried, widths)
    return next((width for width, error in zip(widths, far, strict=True) if error <= aim), None)


def _farthest(layer: Layer, basis: Basis, tried: Doubles, widths: list[int]) -> Doubles:
    """``max |L - L_w - median|`` of each width."""
    x = ((tried - basis.mean) @ basis.rotation.astype(np.float64)).astype(np.float32)
    lse, edge = _exact(layer, tried)
    sums = np.zeros((len(widths), len(tried)))
    for part, rows in pieces(layer.weight):
        shared = rows @ basis.mean + (tried - basis.mean) @ basis.centre[:, None]
        shared = (shared if layer.bias is None else shared + layer.bias[part]).astype(np.float32)
        rotated = ((rows - basis.centre) @ basis.back).astype(np.float32)
        exact = shared + x @ rotated.T
        best = exact >= edge[:, None]
        for number, width in enumerate(widths):
            near = np.where(best, exact, shared + x[:, :width] @ rotated[:, :width].T)
            sums[number] += np.exp(layer.link(near) - lse[:, None]).sum(axis=1)
    errors = np.log(sums)
    return np.asarray(np.abs(errors - np.median(errors, axis=1, keepdims=True)).max(axis=1))


def _exact(layer: Layer, tried: Doubles) -> tuple[Doubles, Doubles]:
    """The normaliser of each vector, and the logit from which on classes are among its best."""
    parts = [tried.astype(np.float32) @ rows.astype(np.float32).T for _, rows in pieces(layer.weight)]
    z = np.concatenate(parts, axis=1) if layer.bias is None else np.concatenate(parts, axis=1) + layer.bias
    f = layer.link(z)
    place = max(0, layer.vocab - BEST)
    edge = np.partition(z, place, axis=1)[:, place]
    return lse_of(f), edge
