"""Normalisers by sums of nodes between bounds: the twin of ``csrc/node_sums``. Nodes: :mod:`headlong.node_sums`.

::

    lower = sum of n E exp(t)        upper = sum of n E exp(T)        over the nodes that are open, of one level

    The room is (e^(2 eps) - 1) lower less the gaps, upper - lower, of all nodes that were closed. Half of it (all of it among
    leaves) is divided among the nodes that are open. Those whose gaps are at most their share are closed: they stay as they
    are, and what they leave is divided among the others, three times. Others are opened: their halves are bounded, or the
    classes of a leaf are scored. Once all that are open have room together, they are closed, too.
    lse = log lower + half, half = log(upper / lower) / 2: within half of the truth
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import UNIT
from headlong.engines.reference.block_reach import rounding
from headlong.engines.reference.query import Matrix
from headlong.engines.reference.search_trial import Trial, finish
from headlong.links import Link
from headlong.native import Doubles, Mask
from headlong.node_sums import Fields, fields_of, levels_of, starts_of

Answer = tuple[NDArray[Any], ...]

ROOM, MOST_EPS = 0.98, 8.0
"""Of eps: roundings of the sums have the rest. A larger eps asks for no less."""
TURNS = 3
"""In which room is divided among the nodes that are left."""
LOST = 2.0**-39
"""Of a variance, times the root of how many classes it is of: see ``previews/sums/tree.py``."""


class Found(NamedTuple):
    """Of one query; ``done``: within eps, else it is to be asked elsewhere."""

    lse: float
    error: float
    rows: int
    bytes: float
    done: bool


class NodeSearch:
    """Finds normalisers of all classes under an affine link, proved; a search that takes too much is given up."""

    def __init__(self, matrix: Matrix) -> None:
        sums, weight, bias = matrix.plan.sums, matrix.weight, matrix.bias
        assert sums is not None
        biases = np.zeros(len(weight)) if bias is None else bias.astype(np.float64)
        self.matrix = matrix
        self.rows = np.concatenate([weight.astype(np.float64), biases[:, None]], axis=1)[sums.order]
        self.widest = np.abs(self.rows).max(axis=0)
        self.dim, self.levels, self.most = weight.shape[1], levels_of(sums.nodes), sums.most
        self.fields = fields_of(sums.nodes, self.dim)
        self.node_bytes, self.row_bytes = 8.0 * sums.nodes.shape[1], 4.0 * (self.dim + 1)
        self.scale, self.shift = matrix.link.lowered()[1:3]
        self.trial = Trial(sums.most)

    def takes(self, eps: float, mask: Mask) -> bool:
        """Whether normalisers are sought: of all classes, within a finite ``eps``, while most searches find theirs."""
        return math.isfinite(eps) and mask is None and not self.trial.over()

    def lse(self, hidden: Doubles, eps: float, others: Callable[[Doubles], Answer]) -> Answer:
        """``lse, error, rows, bytes, dense [batch]``; ``others`` answer what is given up."""
        found = [self.search(row, eps) for row in hidden]
        done = np.array([one.done for one in found], bool)
        columns = [np.array(column) for column in zip(*found, strict=True)] if found else [np.zeros(0)] * 5
        answer = (columns[0], columns[1], columns[2].astype(np.int64), columns[3], np.zeros(len(hidden), bool))
        if not done.all():
            left = np.flatnonzero(~done)
            finish(answer, left, others(hidden[left]), rows=2)
        return answer

    def search(self, hidden: Doubles, eps: float) -> Found:
        """The normaliser of one vector."""
        found = self._search(hidden, eps, rounding(self.matrix, hidden) * max(self.scale, 1.0))
        self.trial.count(found.bytes, found.done)
        return found

    def _search(self, hidden: Doubles, eps: float, fixed: float) -> Found:
        """``fixed``: how far what else is rounded carries the normaliser."""
        scale, shift = self.scale, self.shift
        size = 12 * self.widest[-1] + float(self.widest[:-1] @ np.abs(hidden))
        off = scale * size * (8 * self.dim + 256) * UNIT
        aim = ROOM * (min(eps, MOST_EPS) - off - fixed)
        if not aim > 0:
            return Found(-math.inf, math.inf, 0, 0.0, False)
        total, read, count = Total(), 0.0, 0
        room_of, scored = math.expm1(2 * aim), np.zeros(0)
        open_ = np.zeros(1, np.int64)
        for level in range(self.levels + 1):
            starts = starts_of(len(self.rows), level)
            lower, gap = self._bounds(open_, level, np.diff(starts)[open_].astype(np.float64), hidden, off, total)
            read, count = read + self.node_bytes * len(open_), count + len(open_)
            room = room_of * (total.lower + float(lower.sum())) - total.gap
            done = bool(gap.sum() <= room)
            closed = np.full(len(open_), done)
            total.close(lower[closed], gap[closed])
            most = total.gap + (room if level == self.levels else room / 2)
            for _ in range(TURNS):
                small = ~closed & (gap <= (most - total.gap) / max(1, int((~closed).sum())))
                total.close(lower[small], gap[small])
                closed |= small
            open_ = open_[~closed]
            if level < self.levels:
                open_ = np.stack([2 * open_, 2 * open_ + 1], axis=1).ravel()
            elif len(open_):
                places = np.concatenate([np.arange(starts[node], starts[node + 1]) for node in open_])
                scored = scale * (self.rows[places] @ np.append(hidden, 1.0))
                read += self.row_bytes * len(scored)
            if done or not len(open_):
                break
            if level < self.levels and read > self.most:
                return Found(-math.inf, math.inf, len(scored), read, False)
        total.add(scored)
        if not total.lower > 0:
            return Found(-math.inf, math.inf, len(scored), read, False)
        half = 0.5 * math.log1p(total.gap / total.lower)
        lse = shift + total.shift + math.log(total.lower) + half
        error = half * (1 + 2.0**-40) + off + fixed + 2 * UNIT * (count + len(scored) + 64 + 4 * abs(lse))
        return Found(lse, error, len(scored), read, error <= eps)

    def _bounds(
        self, nodes: NDArray[np.int64], level: int, count: Doubles, hidden: Doubles, off: float, total: Total
    ) -> tuple[Doubles, Doubles]:
        """The lower ends of what the nodes add up to, and how far the upper ones are above; relative to the total's shift."""
        scale, known = self.scale, Fields(*(part[2**level - 1 :][nodes] for part in self.fields))
        y = scale * np.append(hidden, 1.0)
        below, across = np.tril_indices(len(y))
        mean, spread = known.mean @ y, known.spread @ (y[below] * y[across])
        squares = known.spread[:, below == across] @ (y * y)
        apart = hidden - known.level
        one, two = known.low * apart, known.high * apart
        low = np.minimum(scale * (known.rest[:, 0] + np.minimum(one, two).sum(axis=1)), mean) - 2 * off
        high = np.maximum(scale * (known.rest[:, 1] + np.maximum(one, two).sum(axis=1)), mean) + 2 * off
        lost, most = LOST * np.sqrt(count) * len(y) * squares, (high - mean) * (mean - low)
        least, most = (np.minimum(np.maximum(end, 0.0), most) for end in (spread - lost, spread + lost))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            total.raise_to(float(np.max(np.where(mean > low, mean + least / (mean - low), mean))))
            lower = count * two_values(mean - total.shift, low - total.shift, least)
            return lower, count * two_values(mean - total.shift, high - total.shift, most) - lower


def with_normalisers(top: Answer, found: Answer, link: Link) -> Answer:
    """``topk``'s arrays, ids alone, with the normalisers of ``lse``'s."""
    logits, ids, _, _, _, proved, rows, read, dense = top
    lse, error, *cost = found
    log_probs = link(logits) - np.where(np.isfinite(lse), lse, 0.0)[:, None]
    return logits, ids, log_probs, lse, error, proved, rows + cost[0], read + cost[1], dense | cost[2]


def two_values(mean: Doubles, end: Doubles, variance: Doubles) -> Doubles:
    """``E exp(t)`` for the t of two values with this mean and variance, one of them ``end``; exp(end) where there is none."""
    square = (end - mean) ** 2
    other = np.exp(mean - variance / (end - mean))
    found = (variance * np.exp(end) + square * other) / (variance + square)
    return np.where((variance + square > 0) & np.isfinite(np.exp(end)), found, np.exp(end))


class Total:
    """Both ends of the sum over what is closed and scored, relative to ``exp(shift)``."""

    def __init__(self) -> None:
        self.shift, self.lower, self.gap = -math.inf, 0.0, 0.0

    def raise_to(self, shift: float) -> None:
        if shift > self.shift:
            by = math.exp(self.shift - shift)
            self.lower, self.gap, self.shift = self.lower * by, self.gap * by, shift

    def close(self, lower: Doubles, gap: Doubles) -> None:
        self.lower += float(lower.sum())
        self.gap += float(np.maximum(gap, 0.0).sum())

    def add(self, scored: Doubles) -> None:
        if len(scored):
            self.raise_to(float(scored.max()))
            self.lower += float(np.exp(scored - self.shift).sum())
