"""Reads a mixture of softmaxes: its components as one batch over one matrix, then intervals, a threshold and pairs.

::

    p(x) = sum_k pi_k exp(f(z_kx) - L_k)                       L_k within r_k of what the matrix's engine says
    unseen x      p(x) <= sum_k pi_k exp(f(c_k) - L_k)         c_k the last logit of component k's own best (the threshold)
    x before x'   for every L in the box iff  sum_k d_k exp(-r_k sign d_k) > 0,   d_k = pi_k (e^f(z_kx) - e^f(z_kx')) e^-L_k

Unlike one softmax, a mixture's *ranking* depends on its normalisers: ids are proved with proved intervals of them. Where the
box is too wide for a pair, exact normalisers are asked for; where an unseen class may still win, each component's own ranking
is lengthened. So every query is answered. A pooled layer (MoC) is one softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headlong.answers import Answer, Cost, summed
from headlong.arrays import pieces
from headlong.dtypes import UNIT, Doubles, Ids
from headlong.engines.few_allowed_classes import largest_keys
from headlong.engines.method import PLAIN, Running
from headlong.engines.mixture.parts import MixtureParts, QueryCost
from headlong.engines.mixture.ranking import Doubts, Normalisers, Ranking, added, doubts, ranked
from headlong.engines.structured.base import Scored, StructuredEngine, register_engine
from headlong.layers.mixture import MixtureLayer
from headlong.layers.structured import StructuredLayer
from headlong.number_checks import whole
from headlong.promise import Promise
from headlong.question import Filters, Question

WIDE, EXACT = 0.05, 1e-9
"""Half-widths of the normalisers that are asked for with the components' own best, and where these leave a doubt."""


@dataclass(frozen=True)
class MixtureOptions:
    """``extra``: classes of each component's own ranking that are looked at first beyond the ``k`` that are asked for."""

    extra: int = 6

    def __post_init__(self) -> None:
        whole(self.extra, "extra", 0, 2**31 - 1)


@register_engine
class MixtureEngine(StructuredEngine):
    """One engine over the matrix answers for all components; the mixture is put together here."""

    kind: ClassVar[str] = "mixture"
    Options: ClassVar[type[Any]] = MixtureOptions
    exact_at: ClassVar[float] = EXACT

    def __init__(self, layer: StructuredLayer, options: Any, promise: Promise, running: Running = PLAIN) -> None:
        super().__init__(layer, options, promise, running)
        assert isinstance(layer, MixtureLayer)
        self.mixture = layer
        self.parts = MixtureParts(layer, running)
        self.part = self.parts.part

    def _best(self, hidden: Doubles, k: int, eps: float) -> Answer:
        answers = [self._best_of(row, k, eps) for row in hidden]
        logits, ids, error, tallies = zip(*answers, strict=True) if answers else ((), (), (), ())
        shape, none = (len(hidden), k), np.zeros(len(hidden))
        found, classes = np.array(logits, np.float64).reshape(shape), np.array(ids, np.int64).reshape(shape)
        whole = Answer(classes, found, found, none, np.array(error, np.float64), proved=np.ones(len(hidden), bool))
        return whole.at(self._spent(tallies))

    def _best_of(self, row: Doubles, k: int, eps: float) -> tuple[Doubles, Ids, float, QueryCost]:
        contexts, prior = self.parts.contexts(row)
        tally, count, aim = QueryCost(), self._listed(k), self._narrow(row, eps)
        ids, cut, box = self.parts.rankings(contexts, count, aim if len(prior) == 1 else min(aim, WIDE), tally)
        z, exact = self.parts.logits(contexts, ids, tally), False
        while True:
            ranking, left = self._judged(z, prior, box, cut, ids, k)
            if left.unseen and (left.hopeless or exact) and count < self.layer.vocab:
                count = min(self.layer.vocab, 4 * count)
                ids, cut, _ = self.parts.rankings(contexts, count, np.inf, tally)
                z = self.parts.logits(contexts, ids, tally)
            elif (left.pairs or left.unseen) and not exact:
                box, exact = self.parts.normalisers(contexts, min(aim, EXACT), tally), True
            else:
                found = ranking.total[:k]
                return found, ids[ranking.order[:k]], float(box.radius.max()) + self.parts.rounding(row, found), tally

    def _listed(self, k: int) -> int:
        """How long each component's own ranking is at first."""
        long = k if self.mixture.pooled or self.mixture.components == 1 else k + self._options.extra
        return min(self.layer.vocab, long)

    def _judged(
        self, z: Doubles, prior: Doubles, box: Normalisers, cut: Doubles, ids: Ids, k: int
    ) -> tuple[Ranking, Doubts]:
        """The ranking at the middle of the box, and what is open; of one component its logits, which have no normaliser."""
        exponents = self.parts.exponents(z, prior, box)
        if len(prior) == 1:
            order = np.lexsort((ids, -z[0]))
            return Ranking(order, exponents[0, order], np.zeros((1, 0))), doubts(np.zeros((1, 0)), box.radius)
        ranking = ranked(exponents, self.parts.exponents(cut[:, None], prior, box)[:, 0], ids, k)
        return ranking, doubts(ranking.pairs, box.radius)

    def _score(self, hidden: Doubles, ids: Ids, eps: float) -> Scored:
        logits, error, tallies = np.empty(ids.shape), np.zeros(len(hidden)), []
        for b, row in enumerate(hidden):
            tally, (contexts, prior) = QueryCost(), self.parts.contexts(row)
            box = self.parts.normalisers(contexts, self._narrow(row, eps), tally)
            logits[b] = added(self.parts.exponents(self.parts.logits(contexts, ids[b], tally), prior, box))
            error[b] = float(box.radius.max()) + self.parts.rounding(row, logits[b])
            tallies.append(tally)
        return Scored(logits, np.zeros(len(hidden)), error, np.zeros(len(hidden)), self._spent(tallies))

    def _normalise(self, hidden: Doubles, eps: float) -> Scored:
        """Mixtures of distributions are distributions: ``lse`` is 0, and nothing is read."""
        nothing = np.zeros(len(hidden))
        return Scored(np.zeros((len(hidden), 0)), nothing, nothing, nothing, self._spent([QueryCost() for _ in hidden]))

    def _everything(self, hidden: Doubles) -> Scored:
        vocab = self.layer.vocab
        logits, error, tallies = np.empty((len(hidden), vocab)), np.zeros(len(hidden)), []
        for b, row in enumerate(hidden):
            tally, (contexts, prior) = QueryCost(dense=True), self.parts.contexts(row)
            some = pieces(vocab, len(contexts))
            z = [self.parts.logits(contexts, np.arange(part.start, part.stop), tally) for part in some]
            f = self.parts.link(np.concatenate(z, axis=1))
            peak = f.max(axis=1, keepdims=True)
            lse = (peak + np.log(np.exp(f - peak).sum(axis=1, keepdims=True)))[:, 0]
            logits[b] = np.logaddexp.reduce(f + (prior - lse)[:, None], axis=0)
            error[b] = self.parts.rounding(row, lse) + 8 * vocab * UNIT
            tallies.append(tally)
        return Scored(logits, np.zeros(len(hidden)), error, np.zeros(len(hidden)), self._spent(tallies))

    def _draw(self, hidden: Doubles, filters: Filters) -> Answer:
        """A component by its prior, then a class of that component: an exact draw from the mixture."""
        shape = (len(hidden), filters.n)
        ids, score, tallies = np.zeros(shape, np.int64), np.zeros(shape), []
        for b, row in enumerate(hidden):
            tally, (contexts, prior) = QueryCost(), self.parts.contexts(row)
            number = (filters.row0 + b) % 2**64
            owners = self.layer.vocab + np.arange(len(prior))  # noise that no class has
            owner = largest_keys(prior, owners, filters, number)[0]
            for component in np.unique(owner):
                one = np.ascontiguousarray(contexts[component : component + 1])
                plainly = Filters(filters.n, 1.0, 0, 1.0, 0.0, filters.seed, number)
                found = self.part.reader.ask(one, Question("draw", filters=plainly))
                mine = owner == component
                ids[b, mine], score[b, mine] = found.ids[0, mine], found.score[0, mine]
                tally.add(found)
            tallies.append(tally)
        scored = self._score(hidden, ids, self.promise.eps)
        cost = self._spent(tallies)
        found = Answer(ids, scored.logits, score=score, proved=np.ones(shape, bool))
        return found.at(summed([cost, scored.cost], cost.path))

    def _spent(self, tallies: Sequence[QueryCost]) -> Cost:
        rows, read, dense = ([getattr(one, name) for one in tallies] for name in ("rows", "bytes", "dense"))
        return self._cost(np.array(rows, np.int64), np.array(read, np.float64), np.array(dense, bool))

    def _narrow(self, row: Doubles, eps: float) -> float:
        """How narrow normalisers have to be for log-probabilities within ``eps``, rounding included."""
        return max(eps - 2 * self.parts.rounding(row), eps / 2)

    def _storage(self) -> str:
        return f"{self.mixture.components} x {self.mixture.latent}, {self.part.method.name}, {super()._storage()}"
