"""The verbs of ``csrc/structured/experts.cpp`` in NumPy and float64, one query at a time.

::

    k, g = argmax and maximum of softmax(gate x)
    top-k, lse, samples       from every class of expert k
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headlong.dtypes import UNIT, Doubles, Ids
from headlong.engines.few_allowed_classes import lse_of
from headlong.engines.reference.gumbel import gumbels
from headlong.layers.experts import ExpertsLayer
from headlong.native import DrawsOfExpert, FoundOfExpert
from headlong.question import Filters


class Chosen(NamedTuple):
    """One query's expert, ``g x``, and how far its logits may be off."""

    expert: int
    x: Doubles
    error: float
    sure: bool


class ExpertsReference:
    """The same verbs in NumPy and float64, one query at a time: for reading, and for checking the native module."""

    def __init__(self, layer: ExpertsLayer) -> None:
        self.layer = layer

    def best(self, hidden: Doubles, k: int, eps: float, threads: int) -> FoundOfExpert:
        logits, ids = np.full((len(hidden), k), -np.inf), np.full((len(hidden), k), -1, np.int64)
        rest = []
        for b, row in enumerate(hidden):
            chosen = self.choose(row)
            classes, z = self.scores(chosen)
            best = np.argsort(-z, kind="stable")[:k]
            logits[b, : len(best)], ids[b, : len(best)] = z[best], classes[best]
            lse = float(lse_of(z[None])[0])
            error = chosen.error + (self.layer.width + len(z) + 16 + 8 * abs(lse)) * UNIT
            read = float(len(z) * self.layer.width * self.layer.weight.itemsize + self.layer.gate.nbytes)
            rest.append((lse, chosen.error, error, chosen.sure, len(z), read, True, chosen.expert))
        kinds = (float, float, float, bool, np.int64, float, bool, np.int64)
        columns = zip(*rest, strict=True) if rest else [()] * len(kinds)
        return FoundOfExpert(logits, ids, *(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))

    def logits(self, hidden: Doubles, ids: Ids) -> Doubles:
        every = self.everything(hidden, self.layer.vocab, 1)
        return np.asarray(np.take_along_axis(every, ids, 1))

    def everything(self, hidden: Doubles, vocab: int, threads: int) -> Doubles:
        out = np.full((len(hidden), vocab), -np.inf)
        for b, row in enumerate(hidden):
            classes, z = self.scores(self.choose(row))
            out[b, classes] = z
        return out

    def sample(
        self, hidden: Doubles, n: int, temperature: float, seed: int, row0: int, threads: int
    ) -> DrawsOfExpert:
        ids, logits, score = np.empty((len(hidden), n), np.int64), np.empty((len(hidden), n)), np.empty((len(hidden), n))
        chosen = [self.choose(row) for row in hidden]
        for b, one in enumerate(chosen):
            filters = Filters(n, temperature, 0, 1.0, 0.0, seed, (row0 + b) % 2**64)
            ids[b], logits[b], score[b] = self._from_all(one, filters)
        proved = np.array([[one.sure] * n for one in chosen], bool).reshape(len(hidden), n)
        return DrawsOfExpert(ids, logits, score, proved, np.array([one.expert for one in chosen], np.int64))

    def _from_all(self, one: Chosen, filters: Filters) -> tuple[Ids, Doubles, Doubles]:
        """``ids, logits, score [n]`` from every class of the expert."""
        classes, z = self.scores(one)
        noise = [gumbels(filters.seed, filters.row0, draw, classes) for draw in range(filters.n)]
        keys = z / filters.temperature + np.array(noise)
        won = keys.argmax(axis=1)
        return classes[won], z[won], keys.max(axis=1)

    def choose(self, hidden: Doubles) -> Chosen:
        layer = self.layer
        x = np.append(hidden, 1.0) if layer.constant else hidden
        gate = layer.gate.astype(np.float64)
        scores = (gate * x).sum(axis=1)
        expert = int(np.argmax(scores))
        off = (layer.width + 4) * UNIT * float(np.linalg.norm(gate, axis=1).max() * np.linalg.norm(x))
        others = np.delete(scores, expert)
        value = 1 / float(np.exp(scores - scores[expert]).sum()) if layer.scaled else 1.0
        longest = float(np.linalg.norm(layer.weight[layer.part(expert)].astype(np.float64), axis=1).max())
        wrong = 2 * off + (layer.experts + 8) * UNIT if layer.scaled else 0.0
        error = (wrong + 2 * UNIT) * longest * float(np.linalg.norm(value * x)) * (1 + 2**-20)
        return Chosen(expert, value * x, error, bool((scores[expert] - others > 2 * off).all()))

    def scores(self, chosen: Chosen) -> tuple[Ids, Doubles]:
        """The classes of the expert and their logits. Not a matrix product: equal rows have to tie."""
        rows = self.layer.part(chosen.expert)
        return self.layer.ids[rows], (self.layer.weight[rows].astype(np.float64) * chosen.x).sum(axis=1)
