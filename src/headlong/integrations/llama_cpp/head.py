"""The head of a GGUF model, read by an engine: all that this folder asks of headlong's core, in one place.

::

    x = link(hidden @ W.T)      the exponents: what llama.cpp calls logits
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import headlong
from headlong.answers import Cost
from headlong.cached_attribute import once
from headlong.dtypes import Doubles, Ids
from headlong.engines.edited_row import exponents
from headlong.errors import StoreError
from headlong.integrations.llama_cpp.body import Singles
from headlong.layers.matrix import Layer
from headlong.links import Affine

BLOCK, TURNED = 32, 1024
"""Coordinates of a group of codes, and of a rotation at most: larger ones take long to make."""
LEAST_DIM, LEAST_WEIGHTS = 256, 1 << 22
"""Smaller heads are read in microseconds in any way."""
ROWS_AT_ONCE = 4096
"""That are written out in float64."""
NOTHING = Cost(np.zeros(1, np.int64), np.zeros(1), np.zeros(1, bool), "")


def engine_of(layer: Layer, path: Path, threads: int | None, eps: float, delta: float, vectors: Callable[[], Any]) -> Any:
    """The engine in ``path``, or one that is compiled and saved there without the layer; one of other weights is replaced.

    ``vectors()``: hidden vectors of the model, asked for where they are of use.
    """
    if path.exists():
        try:
            return headlong.load(path, layer, threads)
        except StoreError:  # damaged, of another version or of another layer
            path.unlink(missing_ok=True)
    options: dict[str, Any] = {"eps": eps, "delta": delta, "threads": threads}
    if delta > 0 and layer.dim >= LEAST_DIM and layer.vocab * layer.dim >= LEAST_WEIGHTS:
        options |= {"method": "codes", "segments": segments(layer.dim), "calibration": vectors()}
        options["blocks"] = False  # read more than such codes on every head that was tried, and take as long to make
    engine = headlong.compile(layer, **options)
    engine.save(path, layer=False)
    return engine


def segments(dim: int) -> tuple[tuple[int, int, int], ...]:
    """Eight bits of an eighth of the directions, in which hidden vectors vary most, and three of the others.

    A step reads the codes from memory, not from caches: bytes decide. Next to all questions are for ids and draws, which three
    bits settle (on heads of four shapes; two leave nuclei too open); the first directions make normalisers narrow, too.
    """
    lead = max(BLOCK, dim // 8 // BLOCK * BLOCK)
    parts = -(-(dim - lead) // TURNED)
    edges = [lead + (dim - lead) * part // parts // BLOCK * BLOCK for part in range(parts)] + [dim]
    return ((0, lead, 8), *((start, stop, 3) for start, stop in pairwise(edges)))


class Head:
    """Answers about rows of hidden vectors ``[n, dim]``; ``cost``: what the last one took."""

    def __init__(self, layer: Layer, compiled: Callable[[], Any]) -> None:
        self.layer, self._compiled, self.cost = layer, compiled, NOTHING
        self.vocab = int(layer.vocab)
        self._link = layer.link

    @once
    def engine(self) -> Any:
        """Made, or read from its file, when it is first asked."""
        return self._compiled()

    def likeliest(self, hidden: Singles) -> Ids:
        """The best class of each row."""
        return self.best(hidden, 1)[:, 0]

    def best(self, hidden: Singles, k: int) -> Ids:
        """The ``k`` best classes of each row, likeliest first."""
        top = self.engine.topk(hidden, k=min(k, self.vocab), eps=math.inf)
        self.cost = top.cost
        return np.asarray(top.ids)

    def moments(self, hidden: Singles) -> tuple[float, float]:
        """Sum and sum of squares of the exponents of all classes of one row; a class is not asked where the link is a line."""
        if not isinstance(self._link, Affine):
            found = exponents(self.engine, hidden, np.arange(self.vocab))
            return float(found.sum()), float((found * found).sum())
        sums, squares = self._forms
        vector = np.append(np.asarray(hidden, np.float64)[0], 1.0)
        first, second = float(sums @ vector), float(vector @ squares @ vector)
        scale, shift = self._link.scale, self._link.shift
        return scale * first + shift * self.vocab, scale**2 * second + 2 * scale * shift * first + shift**2 * self.vocab

    @once
    def _forms(self) -> tuple[Doubles, Doubles]:
        """The sum of all rows, each with its bias behind it, and the sum of their outer products."""
        sums, squares = np.zeros(self.layer.dim + 1), np.zeros((self.layer.dim + 1,) * 2)
        for start in range(0, self.vocab, ROWS_AT_ONCE):
            rows = np.asarray(self.layer.weight[start : start + ROWS_AT_ONCE], np.float64)
            bias = np.zeros(len(rows)) if self.layer.bias is None else self.layer.bias[start : start + ROWS_AT_ONCE]
            rows = np.column_stack([rows, np.asarray(bias, np.float64)])
            sums += rows.sum(axis=0)
            squares += rows.T @ rows
        return sums, squares

    def log_probs(self, hidden: Singles, ids: Ids) -> tuple[Doubles, Doubles]:
        """``[n, m]`` of given classes ``[n, m]``, and how far each row can be off."""
        found = self.engine.log_prob(hidden, ids)
        return np.asarray(found.log_probs, np.float64), np.asarray(found.error, np.float64)

    def scores(self, hidden: Singles, rows: Ids, ids: Ids) -> tuple[Doubles, Doubles, Any]:
        """The log-probability of class ``ids[i]`` after the vector ``rows[i]``, how far off, whether it is the likeliest."""
        top = self.engine.topk(hidden, k=1)
        given = self.engine.exponents(self.engine.log_prob(hidden[rows], ids[:, None], eps=math.inf).logits)[:, 0]
        return given - np.asarray(top.lse, np.float64)[rows], np.asarray(top.error, np.float64)[rows], top.ids[rows, 0] == ids

    def draw(self, hidden: Singles, seed: int, positions: Any, **filters: Any) -> Ids:
        """One class of each row after top_k, top_p, min_p and then temperature.

        Row ``i`` has the noise of ``(seed, positions[i])``, whatever the other rows are; one row's may be a number.
        """
        drawn = self.engine.sample(hidden, seed=seed, position=positions, eps=math.inf, temperature_last=True, **filters)
        self.cost = drawn.cost
        return np.asarray(drawn.ids)[:, 0]
