"""An executor whose ids come from bounds on blocks of classes, and all else from a scan of every class.

    topk(eps=inf), sample(top_k=...), sample(min_p=...)      need no normaliser: blocks first
    topk, lse within eps      where few classes have all the mass: those that reach ``lse - log V + log(e^(2 eps) - 1)`` are
                              scored, and the others together are within eps: proved
    sample()                  few classes have noise that lets them win whatever their logits are; of the others only large
                              logits can, and those are found as in a top-k
    sample(top_p=...)         there, too: where that little mass leaves no doubt of the nucleus
    everything else, large batches, and queries that would open nearly everything      the inner executor

The normaliser of a top-k at eps=inf is that of the scored classes alone: a lower bound, with an ``error`` of infinity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.engines.by_codes import CodesReader
from headlong.engines.few_allowed_classes import listed_classes, lse_of, sample_of
from headlong.engines.reference.nucleus import nucleus_reached
from headlong.engines.sampling_filters import Filters, Sieve
from headlong.layers.matrix import Layer
from headlong.links import Link, evaluated
from headlong.native import Doubles, FoundDraws, FoundLse, FoundTopK, FoundWithin, Mask
from headlong.plan import MOST_SCORED, Plan

Ids = NDArray[np.int64]
Spent = tuple[Ids, Doubles]

EDGE = 0.01
"""From which eps normalisers have to go by blocks so that samples under top_p do, too."""
FIRST_ASKED = 16
"""Classes that a min-p filter asks for first; four times as many each time that they are not enough."""


def _asked_first(rule: Filters | Sieve) -> int:
    """The best classes that filters are decided among at first; 0: that takes the mass of all."""
    return rule.top_k or FIRST_ASKED * (rule.min_p > 0 and rule.top_p == 1)


class BlockReader:
    """The verbs of an executor, ``inner`` answering what blocks do not."""

    def __init__(self, layer: Layer, plan: Plan, inner: native.Executor, most_norm: float) -> None:
        assert plan.blocks is not None
        blocks = plan.blocks
        self.batch, self.most, self.together = blocks.batch, blocks.most, blocks.together
        self.inner, self.vocab = inner, layer.vocab
        self.rows: Any = inner.inner if isinstance(inner, CodesReader) else inner
        self.link: Link = evaluated(layer.link)
        self.search: Any = native.blocks(layer.weight, layer.bias, blocks, MOST_SCORED, native.isa(), most_norm)
        kind, *numbers = self.link.lowered()
        self.affine: tuple[Any, ...] | None = tuple(numbers) if kind == "affine" else None
        plain = native.is_native(self.rows) and self.affine is not None
        self.least = blocks.least if plain else math.inf
        self.samples = blocks.samples and plain
        self.isa, self.logits = inner.isa, inner.logits

    @property
    def capsule(self) -> Any:
        """For engines that read several matrices in one native call."""
        return self.rows.capsule

    def topk(
        self, hidden: Doubles, k: int, eps: float, mask: Mask, threads: int, delta: float = 0.0, seed: int = 0
    ) -> FoundTopK:
        if eps < self.least or not self.takes(len(hidden), k):
            return self.inner.topk(hidden, k, eps, mask, threads, delta, seed)
        if not math.isinf(eps):
            found = self.within(hidden, k, mask, threads, eps)
            return found if found.proved.all() else self._finished(found, hidden, k, eps, mask, threads, delta, seed)
        if self.affine is not None:  # one call from the vectors to the answer
            answer, all_done = self.search.answer(hidden, k, mask, threads, *self.affine)
        else:
            best = self.search.topk(hidden, k, mask, threads)
            exponents = self.link(best.logits) if k else best.logits
            lse, count, all_done = lse_of(exponents), len(hidden), bool(best.done.all())
            log_probs = exponents - np.where(np.isfinite(lse), lse, 0.0)[:, None]
            error, dense = np.full(count, np.inf), np.zeros(count, bool)
            answer = FoundTopK(best.logits, best.ids, log_probs, lse, error, best.done, best.rows, best.bytes, dense)
        return answer if all_done else self._finished(answer, hidden, k, eps, mask, threads, delta, seed)

    def lse(
        self, hidden: Doubles, eps: float, mask: Mask, threads: int, delta: float = 0.0, seed: int = 0
    ) -> FoundLse:
        if self.least <= eps < math.inf and self.takes(len(hidden), 1):
            found = self.topk(hidden, 1, eps, mask, threads, delta, seed)
            return FoundLse(found.lse, found.error, found.rows, found.bytes, found.dense)
        return self.inner.lse(hidden, eps, mask, threads, delta, seed)

    def within(self, hidden: Doubles, k: int, mask: Mask, threads: int, eps: float) -> FoundTopK:
        """As :meth:`topk`, the normaliser from the classes that a search reached; "proved" says which queries it answered."""
        assert self.affine is not None
        found: FoundTopK = self.search.within(self.capsule, hidden, k, mask, threads, *self.affine, eps)
        return found

    def _finished(
        self, answer: FoundTopK, hidden: Doubles, k: int, eps: float, mask: Mask, threads: int, delta: float,
        seed: int,
    ) -> FoundTopK:  # fmt: skip
        """The queries that the search gave up, by the inner executor; what the search read is counted, too."""
        left = np.flatnonzero(~answer.proved)
        own = mask if mask is None or len(mask) == 1 else np.ascontiguousarray(mask[left])
        rest = np.ascontiguousarray(hidden[left])
        spent = answer.rows[left], answer.bytes[left]
        for whole, part in zip(answer, self.inner.topk(rest, k, eps, own, threads, delta, seed), strict=True):
            whole[left] = part
        answer.rows[left] += spent[0]
        answer.bytes[left] += spent[1]
        return answer

    def sample(
        self, hidden: Doubles, n: int, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, row0: int,
        mask: Mask, threads: int, class0: int = 0, delta: float = 0.0, chance: int = 0,
    ) -> FoundDraws:  # fmt: skip
        filters = Filters(n, temperature, top_k, top_p, min_p, seed, row0, class0)
        spent = np.zeros(len(hidden), np.int64), np.zeros(len(hidden))  # by a search that decides nothing
        found = self._draw(hidden, filters, mask, threads, spent) if self.draws(len(hidden), filters) else None
        if found is not None:
            return found
        drawn = self.inner.sample(
            hidden, n, temperature, top_k, top_p, min_p, seed, row0, mask, threads, class0, delta, chance
        )
        return drawn._replace(rows=drawn.rows + spent[0], bytes=drawn.bytes + spent[1])

    def draws(self, batch: int, rule: Filters | Sieve) -> bool:
        """Whether draws by this rule begin with a search by blocks."""
        first = _asked_first(rule)
        by_blocks = first > 0 or (self.samples if rule.top_p == 1 else self.least <= EDGE)
        return by_blocks and self.takes(batch, first or 1)

    def _draw(self, hidden: Doubles, filters: Filters, mask: Mask, threads: int, spent: Spent) -> FoundDraws | None:
        """Draws by blocks alone; None where these do not decide them, with what was read in ``spent``."""
        count = _asked_first(filters)
        if not count:
            if filters.top_p < 1:
                return self._nucleus(hidden, filters, mask, threads, spent)
            return self._plain(hidden, filters, mask, threads)
        ids, logits, rows, read = self._kept(hidden, filters, count, mask, threads)
        spent[0][:], spent[1][:] = rows, read
        if ids is None:
            return None
        order = np.argsort(np.where(ids < 0, self.vocab, ids), axis=1)
        ids, logits = np.take_along_axis(ids, order, axis=1), np.take_along_axis(logits, order, axis=1)
        kept = sample_of(listed_classes(ids, logits, self.link), filters)
        return FoundDraws(*kept, np.ones(kept[0].shape, bool), rows, read, np.zeros(len(hidden), bool))

    def _plain(self, hidden: Doubles, filters: Filters, mask: Mask, threads: int) -> FoundDraws:
        """Draws from all classes."""
        n, temperature, seed, row0, class0 = filters.n, filters.temperature, filters.seed, filters.row0, filters.class0
        assert self.affine is not None
        one, two = self.capsule, self.search.capsule
        return native.sample_by_blocks(one, two, hidden, n, temperature, seed, row0, mask, threads, class0, self.affine)

    def _nucleus(
        self, hidden: Doubles, filters: Filters, mask: Mask, threads: int, spent: Spent
    ) -> FoundDraws | None:
        """Draws under top_p: from the classes that are in the nucleus whatever mass the others have that were not scored; None
        where that is in doubt. What was read joins ``spent``."""
        assert self.affine is not None
        scale, vocab = self.affine[0] / filters.temperature, self.vocab
        depth = math.log(vocab) - math.log(math.expm1(self.least))
        parts: list[FoundDraws] = []
        for row, vector in enumerate(hidden):
            own = None if mask is None else mask[row % len(mask)][None]
            found: FoundWithin = self.search.reached(vector[None], own, threads, scale, depth)
            spent[0][row] += found.rows
            spent[1][row] += found.bytes
            size = nucleus_reached(found.logits, found.floor, scale, filters.top_p, vocab) if found.done else 0
            if not size:
                return None
            kept = np.argsort(found.ids[:size])
            own_filters = filters._replace(top_p=1.0, row0=(filters.row0 + row) % 2**64)
            drawn = sample_of(listed_classes(found.ids[kept][None], found.logits[kept][None], self.link), own_filters)
            cost = np.array([found.rows]), np.array([found.bytes]), np.zeros(1, bool)
            parts.append(FoundDraws(*drawn, np.ones(drawn[0].shape, bool), *cost))
        return FoundDraws(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def takes(self, batch: int, k: int) -> bool:
        """Whether blocks are worth their while."""
        return 0 < k <= (self.most if batch <= self.batch else self.together)

    def _kept(
        self, hidden: Doubles, filters: Filters, count: int, mask: Mask, threads: int
    ) -> tuple[Ids | None, Doubles, NDArray[Any], NDArray[Any]]:
        """The classes that top_k and min_p keep, and some more, and what that took; None where blocks do not find them."""
        logits = np.empty((len(hidden), 0))
        rows, read = np.zeros(len(hidden), np.int64), np.zeros(len(hidden))
        while self.takes(len(hidden), count):
            found = self.search.topk(hidden, count, mask, threads)
            rows, read = rows + found.rows, read + found.bytes
            if not found.done.all():
                break
            if filters.top_k:
                return found.ids, found.logits, rows, read
            exponents = np.where(found.ids < 0, -np.inf, self.link(found.logits)) / filters.temperature
            if (exponents[:, -1] < exponents[:, 0] + math.log(filters.min_p)).all():
                return found.ids, found.logits, rows, read
            count *= 4
        return None, logits, rows, read
