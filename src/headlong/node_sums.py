"""Classes in a binary tree, and what is known of the classes of each node: their normaliser is between bounds.

::

    logits of a node's n classes at x:     z_i = <w_i, x> + b_i      mean m, variance v, all of them in [l, u]
    n E exp(t)  <=  sum_i exp(z_i)  <=  n E exp(T)

    t   the variable of two values with that mean and variance, one of them l;  T  the same with u

Both are as close as mean, variance and ends allow (Chebyshev, Markov and Krein): they are apart by about ``(u - l)^3 / 100`` of
the sum. Mean and variance are exact but for rounding, a linear and a quadratic form of ``x``. The ends come from the box around
the rows and from ``g``, the level of the node, at which its classes are as nearly tied as they can be:

    z_i = <w_i, x - g> + (b_i + <w_i, g>)

Where classes are points and logits a Gaussian kernel, g is the centre of the points: bounds are about ``x - g``, as a tree's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_DIM = 8
"""Coordinates with which boxes of few classes are small; ``csrc/node_sums/search.h`` has the same."""


class NodeSums(NamedTuple):
    """``order``  ``[vocab]`` int32: the classes, those of every node side by side: node k of a level of 2^l has the places from
               ``k * vocab >> l`` to ``(k + 1) * vocab >> l``
    ``nodes``  ``[2^(levels + 1) - 1, fields]`` float64, level after level from the root, as :class:`Fields` divides a row
    ``most``   bytes beyond which a search is given up
    """

    order: NDArray[np.int32]
    nodes: NDArray[np.float64]
    most: float

    @property
    def nbytes(self) -> int:
        """What an engine holds: these arrays, and rows and biases in float32 in the order of the leaves."""
        dim = next(dim for dim in range(1, MOST_DIM + 1) if sum(widths_of(dim)) == self.nodes.shape[1])
        return self.order.nbytes + self.nodes.nbytes + 4 * len(self.order) * (dim + 1)


class Fields(NamedTuple):
    """What is known of nodes, views of ``[nodes, fields]``.

    ``mean``    ``[nodes, dim + 1]`` of rows and bias
    ``spread``  ``[nodes, (dim + 1)(dim + 2) / 2]``: their covariances, the lower triangle, off its diagonal twice
    ``level``   ``[nodes, dim]``
    ``low, high``  ``[nodes, dim]``: the box around the rows
    ``rest``    ``[nodes, 2]``: the ends of ``b_i + <w_i, level>``
    """

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]
    level: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    rest: NDArray[np.float64]


def widths_of(dim: int) -> tuple[int, ...]:
    """How many numbers each of :class:`Fields` takes."""
    return dim + 1, (dim + 1) * (dim + 2) // 2, dim, dim, dim, 2


def fields_of(nodes: NDArray[np.float64], dim: int) -> Fields:
    """The parts of ``nodes``."""
    ends = np.cumsum(widths_of(dim))
    return Fields(*np.split(nodes, ends[:-1], axis=1))


def levels_of(nodes: NDArray[Any]) -> int:
    """Levels below the root."""
    return (len(nodes) + 1).bit_length() - 2


def starts_of(vocab: int, level: int) -> NDArray[np.int64]:
    """Where each node of a level begins, and the end of the last one."""
    return np.arange(2**level + 1, dtype=np.int64) * vocab >> level
