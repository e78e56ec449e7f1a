"""The adaptive race that can be trusted, one query, in NumPy: the readable twin of ``csrc/adaptive/race.cpp``.

::

    |z_i - estimate_i| <= radius_i     "sure"        ‖B_i[unread]‖ ‖x[unread]‖                          (Cauchy-Schwarz)
                                       "calibrated"  factor times that, for all classes and looks at once
                                       "bernstein"   the narrower of it and  (N - m blocks unread, m drawn evenly of N)
                                                     N (s sqrt(2 rho L / m) + kappa R L / m),   L = ln(10 V looks / rate)

Blocks of 16 coordinates are read heaviest first, weight = (rms length of the block's rows) x (length of the query's).
"bernstein" reads the heaviest sixteenth so, and draws the others evenly without replacement, in an order of the query's
own: the union over classes and looks makes it a statement about the whole answer (Bardenet and Maillard, 2015, for the
allowance). The questions are those of ``reference/executor.py``: top-k by the k-th largest score, the normaliser from
intervals.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from headlong.engines.adaptive.columns import BLOCK, Arrays, coordinates
from headlong.engines.adaptive.variance import KAPPA
from headlong.engines.reference.gumbel import words
from headlong.engines.reference.query import Doubles, Flags, Ids, Matrix, Query

WIDTHS = ("sure", "calibrated", "bernstein")
SHARES = (16, 8, 4, 2)
FLOAT = 2.0**-24


class Widths(NamedTuple):
    """Which radius, the calibrated ``factor``, and ``odds`` = ln(10 * classes * looks / rate)."""

    kind: str
    factor: float = 1.0
    odds: float = 0.0


def looks_of(blocks: int) -> list[int]:
    """How many blocks have been read after each look: a sixteenth, an eighth, a quarter, half."""
    return sorted({m for part in SHARES if (m := -(-blocks // part)) < blocks})


def odds_of(classes: int, blocks: int, rate: float) -> float:
    """The union over classes and looks of an allowance that may fail at ``rate`` in all."""
    return math.log(10 * classes * max(1, len(looks_of(blocks))) / rate) if rate > 0 else math.inf


def order_of(weights: Doubles, lengths: Doubles, kind: str, seed: int, key: int) -> tuple[Ids, int]:
    """The blocks in the order in which they are read, and how many of them are the heaviest ones."""
    order = np.argsort(-weights * lengths, kind="stable")
    if kind != "bernstein":
        return order, len(order)
    heavy = -(-len(order) // 16)
    rest = np.sort(order[heavy:])
    noise = words(seed, key, 1, np.arange(len(order), dtype=np.int64))
    return np.concatenate([order[:heavy], rest[np.argsort(noise[rest], kind="stable")]]), heavy


class RaceQuery(Query):
    """A :class:`Query` whose levels are looks at blocks of coordinates."""

    def __init__(
        self, matrix: Matrix, hidden: Doubles, live: Flags, arrays: Arrays, widths: Widths, seed: int, key: int
    ) -> None:
        super().__init__(matrix, hidden, live)
        self.arrays, self.widths = arrays, widths
        self.x = coordinates(hidden, arrays)
        self.shared = float(arrays["centre"] @ hidden)
        self.lengths = np.sqrt(np.add.reduceat(self.x**2, np.arange(0, len(self.x), BLOCK)))
        self.order, self.heavy = order_of(arrays["column_weight"], self.lengths, widths.kind, seed, key)
        self.looks = looks_of(len(self.order))
        self.last = len(self.looks) + 1
        self.proves = widths.kind == "sure"

    def sums(self, blocks: Ids, ids: Ids) -> Doubles:
        """``[blocks, ids]``: what each block adds to each logit."""
        found = np.empty((len(blocks), len(ids)))
        for row, block in enumerate(blocks):
            part = slice(block * BLOCK, (block + 1) * BLOCK)
            found[row] = self.x[part] @ self.arrays["columns"][part, ids].astype(np.float64)
        return found

    def _read(self, depth: int, ids: Ids) -> None:
        m = self.looks[depth]
        read, rest = self.order[:m], self.order[m:]
        sums = self.sums(read, ids)
        base = self.arrays["base"][ids].astype(np.float64) + self.shared
        size = self.arrays["size"][ids].astype(np.float64)
        squares = self.arrays["squares"][np.ix_(read, ids)].sum(axis=0, dtype=np.float64)
        left = np.maximum(0.0, size**2 - squares * (1 - 2.0**-40))
        width = np.sqrt(left) * float(np.linalg.norm(self.lengths[rest])) * (1 + 1e-12)
        value = base + sums.sum(axis=0)
        if self.widths.kind == "calibrated":
            width = width * self.widths.factor
        elif self.widths.kind == "bernstein" and m - self.heavy >= 2:
            other, allowance = self._drawn(sums[self.heavy :], ids)
            closer = allowance < width
            value = np.where(closer, base + sums[: self.heavy].sum(axis=0) + other, value)
            width = np.where(closer, allowance, width)
        length = float(np.linalg.norm(self.x))
        rounding = (FLOAT + float(self.arrays["lost"][0])) * size * length + self._rotation_rounding(ids) + 2.0**-120 * length
        self.estimate[ids] = value
        self.radius[ids] = width + rounding + 2.0**-48 * (np.abs(base) + abs(self.shared) + np.abs(value)) + 2.0**-100
        self.depth[ids] = depth + 1
        before = self.looks[depth - 1] if depth else 0
        self.bytes += len(ids) * (m - before) * (4 * BLOCK + 4)

    def _drawn(self, sums: Doubles, ids: Ids) -> tuple[Doubles, Doubles]:
        """The estimate of all blocks but the heaviest from those drawn, and its allowance."""
        m, population = len(sums), len(self.order) - self.heavy
        mean = sums.mean(axis=0)
        spread = np.sqrt(np.maximum(0.0, (sums**2).mean(axis=0) - mean**2))
        rho = 1 - (m - 1) / population if 2 * m <= population else (1 - m / population) * (1 + 1 / m)
        span = 2 * self.arrays["peak"][ids].astype(np.float64) * float(self.lengths[self.order[self.heavy :]].max())
        odds = self.widths.odds
        return population * mean, population * (spread * math.sqrt(2 * rho * odds / m) + KAPPA * span * odds / m)

    def _rotation_rounding(self, ids: Ids) -> Doubles:
        most = float(self.matrix.norms.max())
        return np.full(len(ids), float(self.arrays["lost"][0]) * most * float(np.linalg.norm(self.hidden))) + self.rounding[ids]


def tail_scores(arrays: Arrays, queries: Doubles, logits: Doubles) -> Doubles:
    """For each query the largest |z - estimate| over the sure radius, over classes and looks: what calibration learns from."""
    vocab = logits.shape[1]
    squares = arrays["squares"][:, :vocab].astype(np.float64)
    columns = arrays["columns"][:, :vocab]
    size = arrays["size"][:vocab].astype(np.float64)
    scores = np.zeros(len(queries))
    for number, (hidden, exact) in enumerate(zip(queries, logits, strict=True)):
        x = coordinates(hidden, arrays)
        lengths = np.sqrt(np.add.reduceat(x**2, np.arange(0, len(x), BLOCK)))
        order, _ = order_of(arrays["column_weight"], lengths, "calibrated", 0, 0)
        value = arrays["base"][:vocab] + float(arrays["centre"] @ hidden)
        read, done = np.zeros(vocab), 0
        for m in looks_of(len(order)):
            ids = (np.sort(order[done:m])[:, None] * BLOCK + np.arange(BLOCK)).ravel()
            ids = ids[ids < len(x)]
            value = value + x[ids].astype(np.float32) @ columns[ids]
            read += squares[order[done:m]].sum(axis=0)
            sure = np.sqrt(np.maximum(0.0, size**2 - read)) * float(np.linalg.norm(lengths[order[m:]]))
            gap = np.abs(exact - value)
            # below what float32 can tell, the radius is rounding, which no factor shrinks
            seen = sure > 2.0**-18 * size * float(np.linalg.norm(x))
            scores[number] = max(scores[number], float(np.max(gap[seen] / sure[seen], initial=0.0)))
            done = m
    return scores
