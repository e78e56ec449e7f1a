"""The parts of a mixture that are read: contexts of a hidden vector, one engine over the matrix for all of them, exact logits.

::

    h_k = tanh(U_k g + c_k), log pi = log softmax(Q g)               in float64 from float32 parameters, row by row

Every context of a query is asked in one call, so rows are read once. Putting the answers together is the
business of ``engine.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headlong.answers import Answer
from headlong.dtypes import UNIT, Doubles, Ids
from headlong.engines.base import Engine
from headlong.engines.build import reading
from headlong.engines.full import Full
from headlong.engines.method import Running
from headlong.engines.mixture.ranking import Normalisers
from headlong.layers.matrix import Layer
from headlong.layers.mixture import MixtureLayer
from headlong.promise import Promise
from headlong.question import Question


@dataclass
class QueryCost:
    """What one query cost so far."""

    rows: int = 0
    bytes: float = 0.0
    dense: bool = False

    def add(self, found: Answer) -> None:
        """What a reader says of each context."""
        self.rows += int(found.rows.sum())
        self.bytes += float(found.bytes.sum())
        self.dense |= bool(found.full.any())


class MixtureParts:
    """Reads a :class:`MixtureLayer`'s parts."""

    def __init__(self, layer: MixtureLayer, running: Running) -> None:
        self.layer, self.link = layer, layer.matrix.link
        self._prior = np.asarray(layer.prior, np.float64)
        self._projection = reading(Layer(layer.project, layer.offset), Full(), Promise(np.inf, 0.0)).reader
        self._cells = np.arange(len(layer.project)).reshape(layer.components, layer.latent)
        self._row_bytes = layer.latent * layer.matrix.weight.itemsize
        self.part: Engine = reading(layer.matrix, Full(), Promise(0.01, 0.0), running=running)
        self._fixed, self._per_size = self._roundings()

    def contexts(self, row: Doubles) -> tuple[Doubles, Doubles]:
        """``h [components, latent]`` and ``log pi [components]`` of one hidden vector, whatever batch it came in."""
        layer = self.layer
        rows = row[None].repeat(layer.components, axis=0)  # threads share them out
        made = np.tanh(self._projection.ask(rows, Question("given", ids=self._cells)).logits)
        prior = self._prior @ row
        prior -= prior.max()
        prior -= np.log(np.exp(prior).sum())
        if layer.pooled:
            return np.ascontiguousarray((np.exp(prior) @ made)[None]), np.zeros(1)
        return made, prior

    def exponents(self, z: Doubles, prior: Doubles, box: Normalisers) -> Doubles:
        """``f(z) + log pi - L`` at the middle of the box."""
        return np.asarray(self.link(z) + (prior - box.lse)[:, None])

    def rankings(
        self, contexts: Doubles, count: int, eps: float, tally: QueryCost
    ) -> tuple[Ids, Doubles, Normalisers]:
        """The classes in any component's own best ``count``, the last logit of each, and the normalisers."""
        found = self.part.reader.ask(contexts, Question("best", count, eps=eps))
        tally.add(found)
        cut = found.logits[:, -1] if count < self.layer.vocab else np.full(len(contexts), -np.inf)
        ids = np.sort(found.ids, axis=None)
        return ids[np.append(ids[1:] != ids[:-1], True)], cut, Normalisers(found.lse, found.error)

    def normalisers(self, contexts: Doubles, eps: float, tally: QueryCost) -> Normalisers:
        """Within ``eps``."""
        found = self.part.reader.ask(contexts, Question("normaliser", eps=eps))
        tally.add(found)
        return Normalisers(found.lse, found.error)

    def logits(self, contexts: Doubles, ids: Ids, tally: QueryCost) -> Doubles:
        """``[components, m]``, exact."""
        tally.rows += len(ids)
        tally.bytes += len(ids) * self._row_bytes
        return self.part.reader.ask(contexts, Question("given", ids=ids[None].repeat(len(contexts), axis=0))).logits

    def rounding(self, row: Doubles, values: Doubles | None = None) -> float:
        """How far float64 can have carried a log-probability, ``values`` as large as they are: contexts, logits, link, sums."""
        there = 0.0 if values is None else np.abs(values[np.isfinite(values)]).max(initial=0.0)
        return float(self._fixed + self._per_size * max(row.max(initial=0.0), -row.min(initial=0.0)) + 8 * there * UNIT)

    def _roundings(self) -> tuple[float, float]:
        """The part of it that every hidden vector has, and what grows with its largest number."""
        layer, link, longest = self.layer, self.link, float(self.part.norms.max()) * np.sqrt(self.layer.latent)
        stretch = float(np.abs(layer.project.astype(np.float64)).sum(axis=1).max())
        bias = 0.0 if layer.matrix.bias is None else float(np.abs(layer.matrix.bias).max())
        context = (layer.dim + 8) * (link.steepest * longest + layer.components)
        fixed = link.steepest * (longest * layer.latent + 8 * bias) + 8 * link.offset + 16 * layer.components
        return (fixed + context) * UNIT, context * stretch * UNIT
