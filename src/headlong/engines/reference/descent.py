"""A layer that decides step by step: the form that its search takes, one node at a time, and every class.

Trees and bands are lowered to one :class:`Steps`. Opening a node reads its rows: one for a two-way node, all of its
branches' for a many-way one. Everything is float64. ``csrc/structured/descent.cpp`` searches, best branch first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import UNIT, Doubles, Ids

ROWS = 4096
"""Rows made float64 at a time."""


class Part(NamedTuple):
    """One matrix: ``weight [rows, width]``, ``bias [rows]`` or None, over ``projection [width, dim] @ hidden`` or hidden."""

    weight: NDArray[Any]
    bias: NDArray[np.float32] | None
    projection: NDArray[Any] | None


class Steps(NamedTuple):
    """The nodes: ``part, first [nodes]`` say which rows node ``n`` opens, ``starts [nodes + 1]`` its branches.

    ``children [branches]``  a node, or ``~class``;  ``two_way``  one row and two branches for each node
    ``depth``                the longest path
    """

    parts: tuple[Part, ...]
    part: Ids
    first: Ids
    starts: Ids
    children: Ids
    two_way: bool
    depth: int


class Paths:
    """The way to every class of :class:`Steps`, and the log-probabilities of all of them."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        branches = len(steps.children)
        self.owner = np.repeat(np.arange(len(steps.part)), np.diff(steps.starts))
        """The node of each branch."""
        inner = steps.children >= 0
        self.above = np.full(len(steps.part), -1)
        """The branch that leads to each node; -1 for the root."""
        self.above[steps.children[inner]] = np.arange(branches)[inner]
        self.leaf = np.empty(branches - int(inner.sum()), np.int64)
        """The branch that leads to each class."""
        self.leaf[~steps.children[~inner]] = np.arange(branches)[~inner]

    def everything(self, hidden: Doubles) -> Doubles:
        """``[batch, vocab]``: all rows by matrix products, whose sums go by their batch: so each query by itself; then the sums
        along all paths, a level at a time."""
        steps = self.steps
        values = np.concatenate([np.zeros((0, sum(len(part.weight) for part in steps.parts))), *map(self._rows, hidden)])
        if steps.two_way:
            both = np.stack([-np.logaddexp(0, -values), -np.logaddexp(0, values)], axis=2)
            branches = both.reshape(len(values), 2 * values.shape[1])
        else:
            branches = self._normalised(values)
        total, at = branches.copy(), self.above[self.owner]
        while (at >= 0).any():
            going = at >= 0
            total[:, going] += branches[:, at[going]]
            at = np.where(going, self.above[self.owner[at]], -1)
        return total[:, self.leaf]

    def _rows(self, row: Doubles) -> Doubles:
        return np.concatenate([_rows_of(part, row[None]) for part in self.steps.parts], axis=1)

    def _normalised(self, values: Doubles) -> Doubles:
        """The log-softmax within each node; the rows of the parts, in turn, are in the order of the branches."""
        starts = self.steps.starts[:-1]
        shifted = values - np.maximum.reduceat(values, starts, axis=1)[:, self.owner]
        sums = np.log(np.add.reduceat(np.exp(shifted), starts, axis=1))
        return np.minimum(shifted - sums[:, self.owner], 0.0)


class Reading:
    """One query: what each part sees of the hidden vector, and what has been read."""

    def __init__(self, steps: Steps, hidden: Doubles) -> None:
        self.steps, self.hidden = steps, hidden
        self.views: dict[int, Doubles] = {}
        self.rows, self.bytes = 0, 0.0

    def open(self, node: int) -> Doubles:
        """The log-probabilities of the node's branches, none above 0."""
        steps = self.steps
        number, first = int(steps.part[node]), int(steps.first[node])
        count = 1 if steps.two_way else int(steps.starts[node + 1] - steps.starts[node])
        part = steps.parts[number]
        x = self._view(number)
        rows = part.weight[first : first + count]
        # Not a matrix product: BLAS may add equal rows in different orders, and equal rows have to tie.
        z = (rows.astype(np.float64) * x).sum(axis=1)
        if part.bias is not None:
            z += part.bias[first : first + count]
        self.rows += count
        self.bytes += rows.nbytes
        if steps.two_way:
            return np.array([-np.logaddexp(0, -z[0]), -np.logaddexp(0, z[0])])
        shifted = z - z.max()
        return np.asarray(np.minimum(shifted - np.log(np.exp(shifted).sum()), 0.0))

    def _view(self, number: int) -> Doubles:
        if number not in self.views:
            projection = self.steps.parts[number].projection
            if projection is None:
                return self.hidden
            self.views[number] = (projection.astype(np.float64) * self.hidden).sum(axis=1)
            self.bytes += projection.nbytes
        return self.views[number]


def _rows_of(part: Part, hidden: Doubles) -> Doubles:
    """``[batch, rows]``: every row of a part."""
    x = hidden if part.projection is None else hidden @ part.projection.astype(np.float64).T
    values = np.empty((len(hidden), len(part.weight)))
    for start in range(0, len(part.weight), ROWS):
        values[:, start : start + ROWS] = x @ part.weight[start : start + ROWS].astype(np.float64).T
    return values if part.bias is None else values + part.bias


class Rounding(NamedTuple):
    """How far float64 can carry a log-probability: ``slope * ‖hidden‖ + shift``."""

    slope: float
    shift: float

    def __call__(self, hidden: Doubles) -> Doubles:
        return np.asarray(self.slope * np.linalg.norm(hidden, axis=1) + self.shift)


def rounding(steps: Steps) -> Rounding:
    """Along the longest path: the logits, their normalisers, the sums. One pass over the weights."""
    slope, shift, rows = 0.0, 0.0, 1
    for part in steps.parts:
        norm = float(np.max([np.linalg.norm(piece, axis=1).max() for piece in _wide(part.weight)]))  # NaN stays
        stretch = 1.0 if part.projection is None else float(np.linalg.norm(part.projection.astype(np.float64)))
        bias = 0.0 if part.bias is None else float(np.abs(part.bias).max())
        terms = 2 * part.weight.shape[1] + (0 if part.projection is None else 2 * part.projection.shape[1]) + 24
        slope, shift = float(np.maximum(slope, terms * norm * stretch)), max(shift, terms * bias)
        rows = max(rows, len(part.weight))
    size = steps.depth * UNIT
    return Rounding(size * slope, size * (shift + (0 if steps.two_way else rows) + 32))


def _wide(weight: NDArray[Any]) -> Iterator[Doubles]:
    """The rows in float64, some at a time."""
    for start in range(0, len(weight), ROWS):
        yield weight[start : start + ROWS].astype(np.float64)
