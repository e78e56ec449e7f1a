"""What is known of every logit while one query is answered: an estimate, a radius, and how far each class was read.

    |z[i] - estimate[i]| <= radius[i]        radius 0 once row i has been scored exactly

The NumPy twin of the state in ``csrc/executor/look.cpp``, for reading and for checking it. The questions (top-k, normaliser,
samples) are in ``executor.py``. Everything is float64 and whole-vocabulary arrays; nothing here is meant to be fast.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import UNIT
from headlong.errors import InputError
from headlong.links import Link
from headlong.native import round_up
from headlong.plan import MOST_PEAKS, PLANES, TERM_KINDS, Level, Plan, Term, deinterleave, in_bytes, slack_rows

Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]

"""Rounding unit of float64, in which finalists are accumulated."""
ROWS_AT_ONCE = 4096


class Matrix(NamedTuple):
    """What a query reads: the stored rows, how the logits become log-probabilities, and the plan.

    ``weight [vocab, dim]`` as stored, ``bias [vocab]`` or None, ``norms [vocab]`` ‖w_i‖ rounded up.
    """

    weight: NDArray[Any]
    bias: NDArray[np.float32] | None
    norms: NDArray[np.float32]
    link: Link
    plan: Plan


class QuerySide(NamedTuple):
    """The query's side of every estimate and radius: ``x`` and ``x - x^``."""

    x: Doubles
    lost: Doubles


class Query:
    """One hidden vector against one matrix, restricted to the ``live`` classes."""

    def __init__(self, matrix: Matrix, hidden: Doubles, live: Flags) -> None:
        self.matrix, self.hidden, self.live = matrix, hidden, live
        vocab, dim = matrix.weight.shape
        self.estimate = np.zeros(vocab)
        self.radius = np.full(vocab, np.inf)
        self.depth = np.zeros(vocab, np.int64)
        """Levels read so far; one more than there are once the row has been scored."""
        self.last = len(matrix.plan.levels) + 1
        self.rows, self.bytes, self.dense = 0, 0.0, False
        self.within = live
        """The classes a top-k is chosen from: all that are live, or the rows that a budget paid for."""
        self.proves = True
        norms = np.minimum(matrix.norms.astype(np.float64), math.sqrt(dim) * float(np.finfo(np.float32).max))
        bias = 0.0 if matrix.bias is None else np.abs(matrix.bias.astype(np.float64))
        self.rounding: Doubles = (dim + 4) * UNIT * (norms * float(np.linalg.norm(hidden)) + bias)
        """How far the float64 logit of each class can be from the real number."""
        self.halves = halves_of(matrix.plan, hidden)

    @property
    def scored(self) -> Flags:
        return np.asarray(self.depth == self.last)

    def reach(self) -> tuple[Doubles, Doubles]:
        """The ends of every interval, before the link."""
        return self.estimate - self.radius, self.estimate + self.radius

    def exponents(self, ids: Ids, temperature: float = 1.0) -> tuple[Doubles, Doubles]:
        """The ends of ``link(z) / temperature`` of each of ``ids``."""
        low, high = self.matrix.link.interval(self.estimate[ids] - self.radius[ids], self.estimate[ids] + self.radius[ids])
        exact = self.matrix.link(self.estimate[ids])
        scored = self.scored[ids]
        return np.where(scored, exact, low) / temperature, np.where(scored, exact, high) / temperature

    def look(self, ids: Ids) -> None:
        """Read ``ids`` one level further: the next codes, or the row itself where no level is left."""
        for depth in np.unique(self.depth[ids]):
            here = ids[self.depth[ids] == depth]
            if depth < self.last - 1:
                self._read(int(depth), here)
            elif depth == self.last - 1:
                self.score(here)

    def score(self, ids: Ids) -> None:
        """``z = <w, hidden> + b`` in float64, each row summed in the same order whatever else is scored."""
        ids = ids[self.depth[ids] < self.last]
        self.estimate[ids] = logits(self.matrix, self.hidden, ids)
        self.radius[ids] = 0.0
        self.depth[ids] = self.last
        self.rows += len(ids)
        self.bytes += len(ids) * self.matrix.weight.shape[1] * self.matrix.weight.itemsize

    def score_all(self) -> None:
        """Finish densely: every live row, from here on nothing is left to decide."""
        self.score(np.flatnonzero(self.live))
        self.dense = True

    def trust(self) -> None:
        """Take every estimate for the logit: what a published method without a radius does after its budget."""
        self.within = self.live & self.scored
        self.proves = False
        self.radius[:] = 0.0
        self.depth[:] = self.last

    def _read(self, depth: int, ids: Ids) -> None:
        plan, level = self.matrix.plan, self.matrix.plan.levels[depth]
        start = _base(plan, ids) + _shared(plan, self.hidden)
        with np.errstate(invalid="ignore", over="ignore"):
            self.estimate[ids] = start + products(level, self.halves.x, ids, len(self.estimate))
            self.radius[ids] = radii(level, self.halves, ids) + self.rounding[ids]
        lost = ids[~np.isfinite(self.estimate[ids])]  # overflow, or codes damaged into no number: nothing is known
        self.estimate[lost], self.radius[lost] = 0.0, math.inf
        self.depth[ids] = depth + 1
        self.bytes += len(ids) * _row_bytes(level)


def logits(matrix: Matrix, hidden: Doubles, ids: Ids) -> Doubles:
    """The exact logits of ``ids``."""
    values = np.empty(len(ids))
    for start in range(0, len(ids), ROWS_AT_ONCE):
        part = ids[start : start + ROWS_AT_ONCE]
        with np.errstate(invalid="ignore"):
            values[start : start + len(part)] = dots(matrix.weight[part], hidden)
    if matrix.bias is not None:
        values += matrix.bias[ids].astype(np.float64)
    values[~np.isfinite(values)] = -math.inf  # rows damaged since their norms were taken are no rivals, and order like others
    return values


def dots(rows: NDArray[Any], hidden: Doubles) -> Doubles:
    """``rows @ hidden``. The products of float32 and float32 are exact in float64; sums round, from the smallest term up,
    so that rows with the same terms tie. In a matrix product not even equal rows would."""
    return np.asarray(np.sort(rows.astype(np.float64) * hidden, axis=1).sum(axis=1))


def two_planes(x: Doubles) -> Doubles:
    """``x^``: ``x`` as whole multiples of one step, up to 32512 = 127 * 256: a coarse and a fine int8 plane."""
    with np.errstate(over="ignore"):
        step = float(round_up(np.abs(x).max(keepdims=True, initial=0.0) / PLANES)[0])
    if step == 0.0 or math.isinf(step):
        return np.zeros_like(x)
    with np.errstate(over="ignore"):
        steps = x * (1.0 / step)
    return np.asarray(np.rint(np.clip(steps, -PLANES, PLANES)) * step)


def halves_of(plan: Plan, hidden: Doubles) -> QuerySide:
    """``x = hidden @ rotation``, and what two int8 planes lose of it."""
    x = hidden if plan.rotation is None else np.asarray(hidden @ plan.rotation.astype(np.float64))
    return QuerySide(x, _lost(plan, x))


def _lost(plan: Plan, x: Doubles) -> Doubles:
    """``|x - x^|`` of every coordinate; 0 where no codes read it."""
    lost = np.zeros_like(x)
    for level in plan.levels:
        for start, stop in level.layout if level.scale is not None else ():
            lost[start:stop] = np.abs(x[start:stop] - two_planes(x[start:stop]))
    return lost


def products(level: Level, x: Doubles, ids: Ids, vocab: int) -> Doubles:
    """``sum_s scale[s, i] * <code[i, s], x^[s]>`` for each of ``ids``."""
    if level.scale is None:
        ((start, stop),) = level.layout
        return np.asarray((level.codes[ids].astype(np.float64) * x[start:stop]).sum(axis=1))
    codes = deinterleave(in_bytes(level.codes, sum(stop - start for start, stop in level.layout)), vocab)[ids]
    total, column = np.zeros(len(ids)), 0
    for segment, (start, stop) in enumerate(level.layout):
        rounded = two_planes(x[start:stop])
        for first in range(0, len(ids), ROWS_AT_ONCE):
            part = slice(first, first + ROWS_AT_ONCE)
            signed = codes[part, column : column + stop - start].astype(np.float64) - 128
            total[part] += level.scale[segment, ids[part]].astype(np.float64) * (signed @ rounded)
        column += -(-(stop - start) // 4) * 4
    return total


def radii(level: Level, halves: QuerySide, ids: Ids) -> Doubles:
    """``sum_r slack[r, i] * sum_{t on row r} factor_t * term_t(x)``; 0 for a level that states none."""
    total = np.zeros(len(ids))
    if level.slack is None:
        return total
    sums = np.zeros(len(level.slack))
    for term, row in zip(level.terms, slack_rows(level.terms), strict=True):
        sums[row] += term.factor * query_half(term, halves)
    for slack, half in zip(level.slack, sums, strict=True):
        if half > 0:  # an infinite slack times nothing is nothing
            total += slack[ids].astype(np.float64) * half
    return total


def query_half(term: Term, halves: QuerySide) -> float:
    """The query's half of one summand of the radius; ``plan.Term`` defines the kinds."""
    part = slice(term.start, term.stop)
    match term.kind:
        case "one":
            return 1.0
        case "norm":
            return float(np.linalg.norm(halves.x[part]))
        case "quantised":
            return float(np.linalg.norm(halves.lost[part]))
        case "peaks":
            return split_peaks(halves.x[part])[0]
        case "rest":
            return split_peaks(halves.x[part])[1]
    raise InputError(f"a plan has a term of kind {term.kind!r}; expected one of {', '.join(TERM_KINDS)}")


def split_peaks(x: Doubles) -> tuple[float, float]:
    """``(sum of |x_j| over the peaks, ‖x without them‖)`` for the number of peaks that makes the sum below least."""
    sizes, most = np.sort(np.abs(x))[::-1], min(MOST_PEAKS, -(-len(x) // 4))
    peaks = np.concatenate([[0.0], np.cumsum(sizes[:most])])
    scale = sizes[0] if len(sizes) and sizes[0] > 0 else 1.0  # the squares of huge or tiny coordinates stay finite
    rest = np.concatenate([np.sqrt(np.cumsum((sizes[::-1] / scale) ** 2))[::-1] * scale, [0.0]])[: most + 1]
    best = int(np.argmin(peaks + math.sqrt(len(x) / 3) * rest))
    return float(peaks[best]), float(rest[best])


def _base(plan: Plan, ids: Ids) -> Doubles:
    return np.zeros(len(ids)) if plan.base is None else plan.base[ids].astype(np.float64)


def _shared(plan: Plan, hidden: Doubles) -> float:
    return 0.0 if plan.centre is None else float(np.dot(plan.centre, hidden))


def _row_bytes(level: Level) -> float:
    """What one class costs at this level: its codes, scales and slacks."""
    padded = level.codes.shape[0] * 64 if level.codes.ndim == 4 else level.codes.shape[0]
    per_class = sum(array.shape[0] * array.itemsize for array in (level.scale, level.slack) if array is not None)
    return float(level.codes.nbytes / padded + per_class + 4)
