"""Plain samples from bounds on blocks: the twin of ``csrc/sampling/largest_key.cpp`` and ``csrc/by_blocks/samples.cpp``.

    key_c = link(z_c) / T + g_c ,   few classes have g_c >= G

Those few are scored; of the others none with ``link(z) / T < K - G`` can win, where K is the best key so far. What may be
larger is found as the best classes are: by bounds on blocks. (The native code looks at the blocks of the few before it scores
them.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.engines.reference.blocks import REACHED, BlockSearch, State
from headlong.engines.reference.gumbel import gumbels, words
from headlong.native import Doubles, FoundDraws, Mask

LUCKY = 2
"""Times sqrt(V): how many classes are expected to have noise from G on."""
SEEDS, SLACK = 16, 1e-12


class Rule(NamedTuple):
    """How a sample is drawn: ``row`` and ids from ``class0`` on name the noise."""

    n: int
    temperature: float
    seed: int
    row: int
    class0: int

class LargestKey(State):
    """What was scored so far, and the best key of every draw; ``tau`` is what classes have to reach that are not lucky."""

    def __init__(self, search: BlockSearch, hidden: Doubles, rule: Rule, affine: tuple[float, float]) -> None:
        super().__init__(search, hidden, SEEDS)
        vocab = len(search.weight)
        share = min(1.0, math.ceil(LUCKY * math.sqrt(vocab)) / vocab)
        self.share = REACHED
        self.rule, self.affine, self.least = rule, affine, int(2.0**32 * (1 - share))
        with np.errstate(divide="ignore"):
            self.below = float(-np.log(-np.log1p(-(2.0**32 - self.least) / 2.0**32)))
        self.won, self.z, self.best = (np.full(rule.n, value) for value in (-1, -np.inf, -np.inf))

    def lucky(self, there: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Classes whose noise may win in some draw whatever their logits are."""
        ids = np.arange(len(self.search.weight))
        seed, row, names = self.rule.seed, self.rule.row, ids + self.rule.class0
        high = np.any([words(seed, row, draw, names) >= self.least for draw in range(self.rule.n)], axis=0)
        return ids[high] if there is None else ids[high & there]

    def score(self, ids: NDArray[np.int64]) -> None:
        z = self.scored(ids)
        exponents = (z * self.affine[0] + self.affine[1]) / self.rule.temperature
        for draw in range(self.rule.n if len(ids) else 0):
            keys = exponents + gumbels(self.rule.seed, self.rule.row, draw, ids + self.rule.class0)
            at = np.lexsort((ids, -keys))[0]
            if (-keys[at], ids[at]) < (-self.best[draw], self.won[draw] if self.won[draw] >= 0 else math.inf):
                self.won[draw], self.z[draw], self.best[draw] = ids[at], z[at], keys[at]
        scale, shift = self.affine
        lowest = float(self.best.min())
        if math.isfinite(lowest):
            slack = SLACK * (46 + abs(lowest) + abs(self.below) + abs(shift) / self.rule.temperature)
            self.tau = max(self.tau, ((lowest - self.below - slack) * self.rule.temperature - shift) / scale)


def samples(
    search: BlockSearch, hidden: Doubles, rule: Rule, affine: tuple[float, float], mask: Mask
) -> tuple[FoundDraws, NDArray[np.bool_]]:
    """The draws, and ``done [batch]``: False where they are to be asked for elsewhere."""
    keys, done = [], []
    for row, vector in enumerate(hidden):
        own = rule._replace(row=(rule.row + row) % 2**64)
        there = None if mask is None else mask[row % len(mask)] != 0
        key = LargestKey(search, vector, own, affine)
        key.score(key.lucky(there))
        found = search.one(vector, SEEDS, there, key)
        keys.append(key)
        done.append(found.done and bool((key.won >= 0).all()))
    shape = len(hidden), rule.n  # of no rows, too
    ids = np.array([key.won for key in keys], np.int64).reshape(shape)
    logits, best = (np.array([getattr(key, name) for key in keys], np.float64).reshape(shape) for name in ("z", "best"))
    rows, read = np.array([key.rows for key in keys], np.int64), np.array([key.bytes for key in keys], np.float64)
    dense = np.zeros(len(hidden), bool)
    return FoundDraws(ids, logits, best, np.ones(shape, bool), rows, read, dense), np.array(done, bool)
