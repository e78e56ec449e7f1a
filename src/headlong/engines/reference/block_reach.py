"""Every class within a depth of the log-normaliser, by bounds on blocks: the twin of ``csrc/by_blocks/answers.h`` and of the
reach of a search in ``csrc/blocks/search.h``.

    s = log sum exp(a z) over what is scored,   tau = min(k-th best logit, (s - depth) / a)     both only rise
    s <= log sum exp(a z) over all <= s + log(1 + V exp(a tau - s))                 what is not scored lies below tau
    depth = log V - log(e^(2 eps) - 1)                                  the middle of these ends is within eps

So the search that finds the best classes also finds a normaliser, where few classes have all the mass.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import UNIT
from headlong.engines.reference.blocks import REACHED, SEEDS, BlockAnswer, BlockSearch, State
from headlong.engines.reference.query import Matrix
from headlong.native import Doubles, FoundTopK, FoundWithin, Mask

Ids = NDArray[np.int64]

OPENED = 0.5
"""The share of the coarsest nodes to open beyond which a look at all classes is cheaper; the same in ``csrc/blocks``."""
ROOM, MOST_EPS = 1.8, 8.0
"""Of the 2 eps that the ends may be apart; roundings have the rest. A larger eps asks for no less."""


class Reach(NamedTuple):
    """Every class is sought with ``scale * z`` no further than ``depth`` below ``log sum exp(scale * z)``."""

    scale: float
    depth: float


class Reached(State):
    """All rows scored so far, best first: none is dropped, for each of them is a part of the sum."""

    def __init__(self, search: BlockSearch, hidden: Doubles, k: int, reach: Reach) -> None:
        super().__init__(search, hidden, max(k, SEEDS))
        self.wanted, self.reach, self.share = k, reach, REACHED

    def score(self, ids: Ids) -> None:
        logits = self.scored(ids)
        logits = np.where(np.isfinite(logits), logits, -np.inf)
        ids, logits = np.concatenate([self.ids, ids]), np.concatenate([self.logits, logits])
        order = np.lexsort((ids, -logits))
        self.ids, self.logits = ids[order], logits[order]
        if len(order) >= self.wanted:
            lowest = (float(np.logaddexp.reduce(self.reach.scale * self.logits)) - self.reach.depth) / self.reach.scale
            self.tau = max(self.tau, min(float(self.logits[self.wanted - 1]), lowest))

    def wanders(self, bound: Doubles) -> bool:
        return int((bound >= self.tau).sum()) > OPENED * len(bound)


def reach_for(eps: float, scale: float, vocab: int) -> Reach:
    """How far a search has to reach so that the classes that it does not score leave a normaliser within ``eps``."""
    return Reach(scale, math.log(vocab) - math.log(math.expm1(ROOM * min(eps, MOST_EPS))))


def within(
    search: BlockSearch, matrix: Matrix | None, hidden: Doubles, k: int, mask: Mask, affine: tuple[float, float], eps: float
) -> FoundTopK:
    """The best, and the normaliser of all classes within ``eps``, under the link ``scale * z + shift``.

    ``matrix`` says how far logits are rounded; None: that is not counted. Queries that are not proved are asked elsewhere.
    """
    scale, shift = affine
    batch, vocab = len(hidden), len(search.weight)
    logits, ids = np.full((batch, k), -np.inf), np.full((batch, k), -1, np.int64)
    log_probs, lse, error = np.full((batch, k), -np.inf), np.full(batch, -np.inf), np.full(batch, np.inf)
    rows, read, done = np.zeros(batch, np.int64), np.zeros(batch), np.zeros(batch, bool)
    for b, row in enumerate(hidden):
        found, floor = _search(search, row, k, None if mask is None else mask[b % len(mask)] != 0, reach_for(eps, scale, vocab))
        rows[b], read[b], count = found.rows, found.bytes, min(k, len(found.ids))
        if not found.done or not len(found.ids) or not np.isfinite(found.logits).all():
            continue
        middle, half = _normaliser(found.logits * scale, floor * scale, vocab)
        middle += shift
        rounded = 0.0 if matrix is None else rounding(matrix, row) * max(scale, 1.0)
        off = half * (1 + 2.0**-40) + rounded + 2 * UNIT * (len(found.ids) + 16 + 4 * abs(middle))
        if off > eps:
            continue
        ids[b, :count], logits[b, :count] = found.ids[:count], found.logits[:count]
        log_probs[b, :count] = found.logits[:count] * scale + shift - middle
        lse[b], error[b], done[b] = middle, off, True
    return FoundTopK(logits, ids, log_probs, lse, error, done, rows, read, np.zeros(batch, bool))


def reached(search: BlockSearch, hidden: Doubles, mask: Mask, reach: Reach) -> FoundWithin:
    """One query's classes within the reach."""
    (row,) = hidden
    found, floor = _search(search, row, 1, None if mask is None else mask[0] != 0, reach)
    among = found.logits >= floor
    return FoundWithin(found.ids[among], found.logits[among], floor, found.rows, found.bytes, found.done)


def rounding(matrix: Matrix, hidden: Doubles) -> float:
    """How far any logit is from the real number that it stands for."""
    dim = matrix.weight.shape[1]
    bias = 0.0 if matrix.bias is None else float(np.abs(matrix.bias).max())
    return float((dim + 8) * UNIT * (float(matrix.norms.max()) * float(np.linalg.norm(hidden)) + bias + 1))


def _search(
    search: BlockSearch, hidden: Doubles, k: int, there: NDArray[np.bool_] | None, reach: Reach
) -> tuple[BlockAnswer, float]:
    """What the search scored, best first, and what every other class is below."""
    state = Reached(search, hidden, k, reach)
    return search.one(hidden, k, there, state), state.tau


def _normaliser(exponents: Doubles, floor: float, vocab: int) -> tuple[float, float]:
    """The middle and half the width of what ``log sum exp`` of all classes may be."""
    most = float(exponents[0])
    total = float(np.exp(exponents - most).sum())
    half = 0.5 * math.log1p(vocab * math.exp(min(floor - most, 0.0)) / total)
    return most + math.log(total) + half, half
