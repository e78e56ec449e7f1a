"""Reads a mixture of softmaxes: its components as one batch over one matrix, then intervals, a threshold and pairs.

::

    p(x) = sum_k pi_k exp(f(z_kx) - L_k)                       L_k within r_k of what the matrix's engine says
    unseen x      p(x) <= sum_k pi_k exp(f(c_k) - L_k)         c_k the last logit of component k's own best (the threshold)
    x before x'   for every L in the box iff  sum_k d_k exp(-r_k sign d_k) > 0,   d_k = pi_k (e^f(z_kx) - e^f(z_kx')) e^-L_k

Unlike one softmax, a mixture's *ranking* depends on its normalisers: ids are proved with proved intervals of them
(``delta_ids`` 0), or hold but for ``delta_ids`` with sampled ones. Where the box is too wide for a pair, normalisers are
narrowed; where an unseen class may still win, each component's own ranking is lengthened. Both end in exact sums, so
every query is answered; ``cost.dense`` says where the whole matrix was read. A pooled layer (MoC) is one softmax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.answers import Promise
from headlong.engines.base import MOST_DELTA
from headlong.engines.few import Filters
from headlong.engines.gumbel import gumbels
from headlong.engines.options import whole
from headlong.engines.parts import part
from headlong.engines.query import UNIT
from headlong.engines.structured import Best, Drawn, Ids, Scored, Spent, StructuredEngine, register_engine
from headlong.errors import OptionError
from headlong.kernels import Doubles
from headlong.layers.mixture import MixtureLayer
from headlong.layers.structured import StructuredLayer

NARROWER = (0.05, 0.01, 1e-3, 1e-5, 1e-9)
"""Half-widths of the normalisers that are asked for, one after the other; the last is an exact sum."""
PIECE = 1 << 16


@dataclass(frozen=True)
class MixtureOptions:
    """``parts``: how the matrix is read, "auto", "full" or "cascade". ``extra``: classes of each component's own ranking
    that are looked at first beyond the ``k`` that are asked for.
    """

    parts: str = "auto"
    extra: int = 6

    def __post_init__(self) -> None:
        whole(self.extra, "extra", 0, 2**31 - 1)


class Normalisers(NamedTuple):
    """``lse [components]`` within ``radius``."""

    lse: Doubles
    radius: Doubles


@dataclass
class Tally:
    """What one query cost so far."""

    rows: int = 0
    bytes: float = 0.0
    dense: bool = False

    def add(self, rows: Any, read: Any, dense: Any) -> None:
        self.rows += int(np.sum(rows))
        self.bytes += float(np.sum(read))
        self.dense |= bool(np.any(dense))


@register_engine
class MixtureEngine(StructuredEngine):
    """One engine over the matrix answers for all components; the mixture is put together here."""

    kind: ClassVar[str] = "mixture"
    Options: ClassVar[type[Any]] = MixtureOptions
    exact_at: ClassVar[float] = NARROWER[-1]

    def __init__(self, layer: StructuredLayer, options: Any, promise: Promise, **about: Any) -> None:
        super().__init__(layer, options, promise, **about)
        if not isinstance(layer, MixtureLayer):
            raise OptionError(f"layer is a {type(layer).__name__}; the mixture engine reads a MixtureLayer")
        self.mixture = layer
        self.part = part(layer.matrix, options.parts, Promise(0.01, 0.0, 0.0), threads=self._threads, seed=self.seed)
        self.promise = promise._replace(over=frozenset({"query"} if promise.delta > 0 or promise.delta_ids > 0 else ()))
        self._project, self._prior = (np.asarray(part, np.float64) for part in (layer.project, layer.prior))
        self._row_bytes = layer.latent * layer.matrix.weight.itemsize
        self._stretch = float(np.abs(self._project).sum(axis=1).max())
        self._longest = float(self.part.norms.max())

    def _contexts(self, row: Doubles) -> tuple[Doubles, Doubles]:
        """``h [components, latent]`` and ``log pi [components]`` of one hidden vector, whatever batch it came in."""
        layer = self.mixture
        made = np.tanh(self._project @ row + layer.offset).reshape(layer.components, layer.latent)
        prior = self._prior @ row
        prior -= prior.max()
        prior -= np.log(np.exp(prior).sum())
        if layer.pooled:
            return np.ascontiguousarray((np.exp(prior) @ made)[None]), np.zeros(1)
        return made, prior

    def _best(self, hidden: Doubles, k: int, eps: float) -> Best:
        answers = [self._best_of(row, k, eps) for row in hidden]
        logits, ids, proved, error, tallies = zip(*answers, strict=True) if answers else ((), (), (), (), ())
        shape = (len(hidden), k)
        errors = np.array(error, np.float64)
        return Best(
            np.array(logits, np.float64).reshape(shape), np.array(ids, np.int64).reshape(shape), np.array(proved, bool),
            np.zeros(len(hidden)), errors, np.zeros(len(hidden)), _spent(tallies),
        )  # fmt: skip

    def _best_of(self, row: Doubles, k: int, eps: float) -> tuple[Doubles, Ids, bool, float, Tally]:
        contexts, prior = self._contexts(row)
        tally, chance, step = Tally(), self.promise.delta_ids, 0
        count = min(self.layer.vocab, k + self.options.extra) if len(prior) > 1 else k
        first = np.inf if chance == 0 else NARROWER[0]
        ids, cut, box = self._rankings(contexts, count, first, self._share(chance, len(prior), 0), tally)
        while True:
            z = self._logits(contexts, ids, tally)
            order = _order(z, prior, box, self.mixture.matrix.link, ids)
            unsure, open_ends = self._doubts(z[:, order], prior, box, cut, k)
            hopeless = open_ends and (step == len(NARROWER) or not self._shrinks(z[:, order], prior, box, cut, k))
            if hopeless and count < self.layer.vocab:
                count = min(self.layer.vocab, 4 * count)
                ids, cut, _ = self._rankings(contexts, count, np.inf, 0.0, tally)
            elif (unsure or open_ends) and step < len(NARROWER):
                box = self._narrower(contexts, box, NARROWER[step], self._share(chance, len(prior), step + 1), tally)
                step += 1
            else:
                break
        chosen = order[:k]
        values, aim = box, self._aim(row, eps)
        if aim < float(box.radius.max()):
            values = self._narrower(contexts, box, aim, self._share(self.promise.delta, len(prior), 0), tally)
        found = self._mix(z[:, chosen], prior, values)
        proved = chance == 0 or len(prior) == 1 or bool((box.radius <= 2 * NARROWER[-1]).all())
        return found, ids[chosen], proved, float(values.radius.max()) + self._rounding(row, found), tally

    def _rankings(
        self, contexts: Doubles, count: int, eps: float, chance: float, tally: Tally
    ) -> tuple[Ids, Doubles, Normalisers]:
        """The classes in any component's own best ``count``, the last logit of each, and the normalisers."""
        logits, found, _, lse, error, _, *cost = self.part.executor.topk(
            contexts, count, eps, None, False, self._count, chance, self.seed
        )
        tally.add(*cost)
        cut = logits[:, -1] if count < self.layer.vocab else np.full(len(contexts), -np.inf)
        return np.unique(found), cut, Normalisers(lse, error)

    def _narrower(self, contexts: Doubles, box: Normalisers, eps: float, chance: float, tally: Tally) -> Normalisers:
        """The same normalisers within ``eps``; what is that narrow already stays."""
        wide = np.flatnonzero(box.radius > eps)
        if not len(wide):
            return box
        lse, error, *cost = self.part.executor.lse(
            np.ascontiguousarray(contexts[wide]), eps, None, False, self._count, chance, self.seed
        )
        tally.add(*cost)
        values, radius = box.lse.copy(), box.radius.copy()
        values[wide], radius[wide] = lse, error
        return Normalisers(values, radius)

    def _logits(self, contexts: Doubles, ids: Ids, tally: Tally) -> Doubles:
        """``[components, m]``, exact."""
        tally.add(len(ids), len(ids) * self._row_bytes, False)
        every = np.ascontiguousarray(np.broadcast_to(ids, (len(contexts), len(ids))))
        return self.part.executor.logits(contexts, every, self._count)

    def _terms(self, z: Doubles, prior: Doubles, box: Normalisers) -> Doubles:
        """``pi_k exp(f(z_kx) - L_k)`` at the middle of the box."""
        return np.asarray(np.exp(self.mixture.matrix.link(z) + (prior - box.lse)[:, None]))

    def _doubts(self, z: Doubles, prior: Doubles, box: Normalisers, cut: Doubles, k: int) -> tuple[bool, bool]:
        """Whether a pair of the ``k`` first classes, or of their last and a later one, may stand the other way round; and
        whether a class that is not in ``z`` may come before the last.
        """
        if len(prior) == 1:
            return False, False
        terms = self._terms(z, prior, box)
        last = min(k, z.shape[1]) - 1
        before = np.concatenate([np.arange(last), np.full(z.shape[1] - last - 1, last)])
        after = np.arange(1, z.shape[1])
        pairs = _ahead(terms[:, before], terms[:, after], box.radius)
        edge = self._terms(cut[:, None], prior, box)
        return not bool(pairs.all()), not bool(_ahead(terms[:, [last]], edge, box.radius).all())

    def _shrinks(self, z: Doubles, prior: Doubles, box: Normalisers, cut: Doubles, k: int) -> bool:
        """Whether exact normalisers (at the middle of the box) would keep the unseen classes out."""
        exact = Normalisers(box.lse, np.zeros(len(prior)))
        return not self._doubts(z, prior, exact, cut, k)[1]

    def _mix(self, z: Doubles, prior: Doubles, box: Normalisers) -> Doubles:
        """``log p`` of each column of ``z [components, m]``."""
        return np.asarray(np.logaddexp.reduce(self.mixture.matrix.link(z) + (prior - box.lse)[:, None], axis=0))

    def _score(self, hidden: Doubles, ids: Ids, eps: float) -> Scored:
        logits, error, tallies = np.empty(ids.shape), np.zeros(len(hidden)), []
        for b, row in enumerate(hidden):
            tally, (contexts, prior) = Tally(), self._contexts(row)
            chance = self._share(self.promise.delta, len(prior), 0)
            nothing = Normalisers(np.zeros(len(prior)), np.full(len(prior), np.inf))
            wanted = self._aim(row, eps)
            if np.isinf(wanted):
                lse, radius, *cost = self.part.executor.lse(contexts, wanted, None, False, self._count, chance, self.seed)
                tally.add(*cost)
                box = Normalisers(lse, radius)
            else:
                box = self._narrower(contexts, nothing, wanted, chance, tally)
            logits[b] = self._mix(self._logits(contexts, ids[b], tally), prior, box)
            error[b] = float(box.radius.max()) + self._rounding(row, logits[b])
            tallies.append(tally)
        return Scored(logits, np.zeros(len(hidden)), error, np.zeros(len(hidden)), _spent(tallies))

    def _normalise(self, hidden: Doubles, eps: float) -> Scored:
        """Mixtures of distributions are distributions: ``lse`` is 0, and nothing is read."""
        nothing = np.zeros(len(hidden))
        return Scored(np.zeros((len(hidden), 0)), nothing, nothing, nothing, _spent([Tally() for _ in hidden]))

    def _everything(self, hidden: Doubles) -> Scored:
        vocab = self.layer.vocab
        logits, error, tallies = np.empty((len(hidden), vocab)), np.zeros(len(hidden)), []
        for b, row in enumerate(hidden):
            tally, (contexts, prior) = Tally(dense=True), self._contexts(row)
            z = [self._logits(contexts, np.arange(first, min(first + PIECE, vocab)), tally) for first in range(0, vocab, PIECE)]
            f = self.mixture.matrix.link(np.concatenate(z, axis=1))
            most = f.max(axis=1, keepdims=True)
            lse = (most + np.log(np.exp(f - most).sum(axis=1, keepdims=True)))[:, 0]
            logits[b] = np.logaddexp.reduce(f + (prior - lse)[:, None], axis=0)
            error[b] = self._rounding(row, lse) + 8 * vocab * UNIT
            tallies.append(tally)
        return Scored(logits, np.zeros(len(hidden)), error, np.zeros(len(hidden)), _spent(tallies))

    def _draw(self, hidden: Doubles, filters: Filters) -> Drawn:
        """A component by its prior, then a class of that component: an exact draw from the mixture."""
        shape = (len(hidden), filters.n)
        ids, score, tallies = np.zeros(shape, np.int64), np.zeros(shape), []
        for b, row in enumerate(hidden):
            tally, (contexts, prior) = Tally(), self._contexts(row)
            number = (filters.row0 + b) % 2**64
            owners = self.layer.vocab + np.arange(len(prior))  # noise that no class has
            keys = [prior + gumbels(filters.seed, number, draw, owners) for draw in range(filters.n)]
            owner = np.argmax(keys, axis=1)
            for component in np.unique(owner):
                one = np.ascontiguousarray(contexts[component : component + 1])
                found = self.part.executor.sample(
                    one, filters.n, 1.0, 0, 1.0, 0.0, filters.seed, number, None, False, self._count
                )
                mine = owner == component
                ids[b, mine], score[b, mine] = found[0][0, mine], found[2][0, mine]
                tally.add(*found[4:])
            tallies.append(tally)
        scored = self._score(hidden, ids, self.promise.eps)
        spent = _spent(tallies)
        spent = Spent(spent.rows + scored.spent.rows, spent.bytes + scored.spent.bytes, spent.dense | scored.spent.dense)
        return Drawn(ids, scored.logits, score, np.ones(shape, bool), spent)

    def _share(self, chance: float, components: int, step: int) -> float:
        """One component's part of ``chance`` at one of the looks that may follow each other."""
        return min(chance, MOST_DELTA) / (components * 2.0 ** (step + 1))

    def _aim(self, row: Doubles, eps: float) -> float:
        """How narrow normalisers have to be for log-probabilities within ``eps``, rounding included."""
        return max(eps - 2 * self._rounding(row, np.zeros(1)), eps / 2)

    def _rounding(self, row: Doubles, values: NDArray[np.float64]) -> float:
        """How far float64 can have carried a log-probability: contexts, logits, link, sums."""
        layer, link = self.mixture, self.mixture.matrix.link
        context = (layer.dim + 8) * (1 + self._stretch * float(np.abs(row).max(initial=0.0)))
        logit = self._longest * np.sqrt(layer.latent) * (layer.latent + context)
        bias = 0.0 if layer.matrix.bias is None else float(np.abs(layer.matrix.bias).max())
        size = link.steepest * (logit + 8 * bias) + 8 * link.offset + 16 * layer.components
        there = np.abs(values[np.isfinite(values)]).max(initial=0.0)
        return float((size + 8 * there + context * layer.components) * UNIT)

    def _storage(self) -> str:
        return f"{self.mixture.components} x {self.mixture.latent}, {self.part.method.name}, {super()._storage()}"


def _ahead(x: Doubles, y: Doubles, radius: Doubles) -> NDArray[np.bool_]:
    """Column by column: ``sum_k x_k >= sum_k y_k`` wherever in the box the normalisers lie; equal columns are."""
    gap = x - y
    with np.errstate(over="ignore", invalid="ignore"):
        worst = np.where(gap > 0, np.exp(-radius)[:, None], np.exp(radius)[:, None]) * gap
    worst = np.where(gap == 0, 0.0, worst)
    return np.asarray(worst.sum(axis=0) >= 0)


def _order(z: Doubles, prior: Doubles, box: Normalisers, link: Any, ids: Ids) -> NDArray[np.int64]:
    """Columns of ``z`` by their probability at the middle of the box, equals by id."""
    if len(prior) == 1:
        return np.asarray(np.lexsort((ids, -z[0])))
    mixed = np.logaddexp.reduce(link(z) + (prior - box.lse)[:, None], axis=0)
    return np.asarray(np.lexsort((ids, -mixed)))


def _spent(tallies: Any) -> Spent:
    rows, read, dense = ([getattr(one, name) for one in tallies] for name in ("rows", "bytes", "dense"))
    return Spent(np.array(rows, np.int64), np.array(read, np.float64), np.array(dense, bool))
