"""Reads a layer through buckets of neighbouring classes: those that matter exactly, of the rest a few unbiased draws.

::

    ids   open buckets, highest end first, until no closed one reaches the k-th best score: proved
    lse   opened rows exactly; the closed ones by their ends, or by rows drawn with chance q_i = exp(high) / sum exp(high):

          Z = head + total * mean(v),  v = exp(z_i - high_i) in [0, 1]        off by sqrt(2 var L / m) + 3 L / m

Horvitz and Thompson's estimate of the tail is unbiased whatever the buckets are; how wide they are decides what it costs.
This is the screen that a bandit over classes asks for, and that low dimensions and kernel densities are fastest with:
buckets of few dimensions are tight, those of hundreds are not (docs/buckets.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headlong.answers import Promise
from headlong.checks import real, whole
from headlong.engines.adaptive.reader import Answer, keys_of
from headlong.engines.hand_off import EngineParts
from headlong.engines.method import Method, crossover, register, sure
from headlong.engines.reference.query import UNIT
from headlong.layers.matrix import Layer
from headlong.links import lowering_error
from headlong.native import Doubles, Mask
from headlong.plan import Dense, Plan
from headlong.previews.buckets import bucket_arrays, default_buckets

Ids = NDArray[np.int64]
STEP, LOOKS = 1024, 6


@register
@dataclass(frozen=True)
class Buckets(Method):
    """``buckets``  how many; None: about four times the root of the classes
    ``share``    rows beyond this share of the classes: finished densely
    """

    buckets: int | None = None
    share: float = 0.25

    name: ClassVar[str] = "buckets"

    def __post_init__(self) -> None:
        if self.buckets is not None:
            whole(self.buckets, "buckets", 1, 2**31)
        real(self.share, "share", 1e-9, 1.0)

    def promise(self, wanted: Promise, calibrated: bool) -> Promise:
        return sure(wanted)

    def plan(self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        count = default_buckets(layer.vocab) if self.buckets is None else whole(self.buckets, "buckets", 1, layer.vocab)
        dense = Dense(crossover(layer, promise.eps), self.share)
        return Plan(None, None, None, None, (), None, dense, bucket_arrays(layer, count))

    def reader(self, engine: EngineParts) -> BucketReader:
        return BucketReader(engine, self.share)


class BucketReader:
    """The verbs of an executor; masks, samples and expensive queries are the plain executor's, which reads every row."""

    def __init__(self, parts: EngineParts, share: float) -> None:
        assert parts.plan.arrays is not None
        self.arrays, self.layer, self.rows = parts.plan.arrays, parts.layer, parts.rows
        self.isa, self.most, self.seed = parts.rows.isa, share * parts.layer.vocab, parts.seed
        self.norm = float(parts.norms.max(initial=0.0))
        self.sizes = np.diff(self.arrays["starts"])

    def topk(
        self, hidden: Doubles, k: int, eps: float, mask: Mask, dense: bool, threads: int, delta: float = 0.0, seed: int = 0
    ) -> Answer:
        if mask is not None or dense or not len(hidden):
            return self.rows.topk(hidden, k, eps, mask, True, threads, delta, seed)
        return self._each(hidden, delta, k, eps, threads)

    def lse(
        self, hidden: Doubles, eps: float, mask: Mask, dense: bool, threads: int, delta: float = 0.0, seed: int = 0
    ) -> Answer:
        if mask is not None or dense or not len(hidden):
            return self.rows.lse(hidden, eps, mask, True, threads, delta, seed)
        return self._each(hidden, delta, 0, eps, threads)

    def logits(self, hidden: Doubles, ids: Ids, threads: int) -> Doubles:
        return self.rows.logits(hidden, ids, threads)

    def sample(self, *question: Any) -> Answer:
        """Exact draws over all rows."""
        answer: Answer = self.rows.sample(*question)
        return answer

    def _each(self, hidden: Doubles, delta: float, k: int, eps: float, threads: int) -> Answer:
        answers = []
        for row, key in zip(hidden, keys_of(hidden), strict=True):
            query = BucketQuery(self, row, threads)
            found = query.answer(k, eps, delta, int(key))
            spent = query.rows, query.bytes
            if found is None:
                one, rows = row[None], self.rows
                dense = rows.topk(one, k, eps, None, True, threads) if k else rows.lse(one, eps, None, True, threads)
                *values, scored, read, _ = (column[0] for column in dense)
                found, spent = tuple(values), (query.rows + scored, query.bytes + read)
                answers.append((*found, *spent, True))
            else:
                answers.append((*found, *spent, False))
        return tuple(np.array(column) for column in zip(*answers, strict=True))


class BucketQuery:
    """One hidden vector: the ends of every bucket's exponents, and the rows that were scored."""

    def __init__(self, reader: BucketReader, hidden: Doubles, threads: int) -> None:
        self.reader, self.hidden, self.threads = reader, hidden, threads
        arrays, dim = reader.arrays, len(hidden)
        far = np.full(len(arrays["centre"]), float(np.linalg.norm(hidden)))
        if "anchor" in arrays:
            far = np.sqrt(((hidden - arrays["anchor"]) ** 2).sum(axis=1))
        middle = arrays["centre"] @ hidden
        reach = arrays["radius"] * far[:, None]
        size = reach + np.abs(arrays["low"]) + np.abs(arrays["high"])
        loose = 2.0**-48 * (dim + 8) * (reader.norm * float(np.linalg.norm(hidden)) + size.max(axis=1))
        self.low = middle + (arrays["low"] - reach).min(axis=1) - loose
        self.high = middle + (arrays["high"] + reach).max(axis=1) + loose
        self.closed = np.ones(len(middle), bool)
        self.ids, self.logits = np.empty(0, np.int64), np.empty(0)
        self.rows, self.row_bytes = 0, reader.layer.dim * reader.layer.weight.itemsize
        self.bytes = float(arrays["centre"].nbytes * (2 if "anchor" in arrays else 1))

    def score(self, ids: Ids) -> Doubles:
        """Exact logits of any classes."""
        self.rows += len(ids)
        self.bytes += float(len(ids) * self.row_bytes)
        return np.asarray(self.reader.rows.logits(self.hidden[None], np.ascontiguousarray(ids[None]), self.threads)[0])

    def open(self, buckets: Ids) -> None:
        """Score all members of ``buckets``."""
        order, starts = self.reader.arrays["order"], self.reader.arrays["starts"]
        ids = np.concatenate([order[starts[b] : starts[b + 1]] for b in buckets])
        self.ids = np.concatenate([self.ids, ids])
        self.logits = np.concatenate([self.logits, self.score(ids)])
        self.closed[buckets] = False

    def answer(self, k: int, eps: float, delta: float, key: int) -> tuple[Any, ...] | None:
        """What the executor's ``topk`` (k > 0) or ``lse`` (k = 0) says of a row, without its cost; None: too expensive."""
        best = self.best(k) if k else np.empty(0, np.int64)
        found = None if best is None else self.normaliser(eps, delta, key)
        if best is None or found is None:
            return None
        lse, error = found
        if not k:
            return lse, error
        logits = self.logits[best]
        return logits, self.ids[best], self.reader.layer.link(logits) - lse, lse, error, True

    def best(self, k: int) -> Ids | None:
        """Places of the k largest logits, ties by id: buckets are opened while their ends reach the k-th."""
        worst = -math.inf
        while True:
            rivals = np.flatnonzero(self.closed & (self.high >= worst))
            if not len(rivals) and len(self.ids) >= k:
                return np.asarray(np.lexsort((self.ids, -self.logits))[:k])
            rivals = rivals[np.argsort(-self.high[rivals], kind="stable")]
            rows = np.cumsum(self.reader.sizes[rivals])
            # only beside a k-th score do rivals say how expensive the answer is, and a better one may thin them out
            if math.isfinite(worst) and self.rows + rows[-1] > self.reader.most and self.rows >= self.reader.most / 2:
                return None
            self.open(rivals[: int(np.searchsorted(rows, max(STEP, k - len(self.ids)))) + 1])
            if len(self.ids) >= k:
                worst = float(np.partition(self.logits, -k)[-k])

    def normaliser(self, eps: float, delta: float, key: int) -> tuple[float, float] | None:
        """``(lse, error)`` from opened rows and the ends, or draws, of the closed buckets; None: dearer than all rows."""
        reader = self.reader
        link = reader.layer.link
        while True:
            closed = np.flatnonzero(self.closed)
            low, high = link.interval(self.low[closed], self.high[closed])
            scored = link(self.logits)
            shift = float(max(high.max(initial=-math.inf), scored.max(initial=-math.inf)))
            count = reader.sizes[closed]
            with np.errstate(under="ignore"):
                head = float(np.exp(scored - shift).sum())
                least, most = count * np.exp(low - shift), count * np.exp(high - shift)
                likely = head + float((count * np.exp((low + high) / 2 - shift)).sum())
            bottom, peak = head + float(least.sum()), head + float(most.sum())
            rounding = self.rounding(shift)
            goal = max(eps - rounding, rounding)
            if not bottom > 0:
                half, middle = math.inf, math.log(peak) + shift
            else:
                half, middle = math.log(peak / bottom) / 2, (math.log(peak) + math.log(bottom)) / 2 + shift
            if half <= goal or not len(closed):
                return middle, half + rounding
            order = np.argsort(-high, kind="stable")
            rows = np.concatenate([[0], np.cumsum(count[order])])
            left = np.concatenate([np.cumsum(most[order][::-1])[::-1], [0.0]])
            gap = np.concatenate([np.cumsum((most - least)[order][::-1])[::-1], [0.0]])
            sure = int(np.flatnonzero(gap <= bottom * math.expm1(min(2 * goal, 700.0)))[0])
            stop, price = sure, float(rows[sure])
            if delta > 0 and bottom > 0:
                with np.errstate(over="ignore"):
                    prices = rows + 3.5 * math.log(3 * LOOKS / delta) * left / max(likely * goal, 1e-300)
                cheapest = int(prices.argmin())
                if prices[cheapest] < price:
                    stop, price = cheapest, float(prices[cheapest])
            step = int(np.searchsorted(rows, max(STEP, self.rows)))
            if stop <= step and self.rows + price > reader.most:
                return None
            if stop == 0:
                drawn = self.drawn(closed, most / most.sum(), high, (head, float(most.sum()), likely, shift, goal, delta), key)
                return None if drawn is None else (drawn[0], drawn[1] + rounding)
            if self.rows + rows[min(stop, max(1, step))] > reader.most:
                return None
            self.open(closed[order[: min(stop, max(1, step))]])

    def drawn(
        self, closed: Ids, chances: Doubles, high: Doubles, about: tuple[float, ...], key: int
    ) -> tuple[float, float] | None:
        """``(lse, half-width)`` once draws from the closed buckets say the tail well enough."""
        head, total, likely, shift, goal, delta = about
        arrays, odds = self.reader.arrays, math.log(3 * LOOKS / delta)
        rng = np.random.Generator(np.random.Philox(key=[self.reader.seed, key]))
        ladder, values = np.cumsum(chances), np.empty(0)
        count = max(64, math.ceil(3.5 * odds * total / (likely * goal)))
        for _ in range(LOOKS):
            if self.rows + count > self.reader.most:
                return None
            place = np.minimum(np.searchsorted(ladder, rng.random(count) * ladder[-1], side="right"), len(closed) - 1)
            buckets = closed[place]
            member = arrays["starts"][buckets] + (rng.random(count) * self.reader.sizes[buckets]).astype(np.int64)
            exponents = self.reader.layer.link(self.score(arrays["order"][member]))
            values = np.concatenate([values, np.exp(np.minimum(exponents - high[place], 0.0))])
            off = float(values.std()) * math.sqrt(2 * odds / len(values)) + 3 * odds / len(values)
            mean = float(values.mean())
            bottom, peak = head + total * max(0.0, mean - off), head + total * min(1.0, mean + off)
            if bottom > 0 and math.log(peak / bottom) / 2 <= goal:
                return (math.log(bottom) + math.log(peak)) / 2 + shift, math.log(peak / bottom) / 2
            count = len(values)
        return None

    def rounding(self, shift: float) -> float:
        """How far float64 can have carried the normaliser."""
        link, vocab = self.reader.layer.link, self.reader.layer.vocab
        terms = (len(self.hidden) + 4) * self.reader.norm * float(np.linalg.norm(self.hidden))
        terms += 8 * float(np.abs(self.logits).max(initial=0.0))
        size = link.steepest * terms + 8 * link.offset + vocab + 16 + 8 * abs(shift)
        return float(size * UNIT + 2 * lowering_error(link))
