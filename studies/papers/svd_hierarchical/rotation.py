"""The rotation of SVD-softmax (Shim, Lee, Choi, Boo, Sung 2017), and one that knows the hidden vectors::

    P = W T,  h' = T^-1 h      so that P h' = W h;   a preview is P[:, :width] h'[:width] + b

Plain: T holds the right singular vectors of W. Weighted: with C = E[h h^T] + ridge = L L^T, T = L R with R the eigenvectors of
L^T W^T W L; the first columns are then the best low-rank predictor of the logits of such vectors, not of the weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import Layer

Array = NDArray[Any]
RIDGE = 1e-4
"""Added to the second moment, as a share of its mean eigenvalue."""


class Preview(NamedTuple):
    """``columns [vocab, width]`` float32; ``turn [dim, width]``: a preview is ``(hidden @ turn) @ columns.T + bias``."""

    columns: Array
    turn: Array

    @classmethod
    def of(cls, layer: Layer, width: int, vectors: Array | None = None) -> Preview:
        """Weighted by ``vectors [n, dim]``; plain without."""
        weight = np.asarray(layer.weight, np.float32)
        gram = sum(part.T @ part for part in np.array_split(weight.astype(np.float64), max(1, len(weight) // 8192)))
        factor = np.eye(layer.dim)
        if vectors is not None:
            moment = vectors.T.astype(np.float64) @ vectors.astype(np.float64)
            factor = np.linalg.cholesky(moment * (layer.dim / np.trace(moment)) + RIDGE * np.eye(layer.dim))
        axes = np.linalg.eigh(factor.T @ gram @ factor)[1][:, ::-1][:, :width]
        columns = weight @ (factor @ axes).astype(np.float32)
        return cls(columns, np.linalg.solve(factor.T, axes).astype(np.float32))
