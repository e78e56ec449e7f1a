"""The verbs of an executor over columns: the race's and the published search's, native or NumPy.

    answer = race(x = T^-1 hidden, ...)          rows that a race cannot decide from a few rows are finished densely

Both orders of reading are the query's own, drawn from the engine's seed and the query's content: the same query has the
same answer. What they do not do themselves (exact logits of ids, samples) is the plain executor's business; the
reference at ``HEADLONG_ISA=numpy`` races for samples as well.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.engines.adaptive import published
from headlong.engines.adaptive.columns import Arrays, by_coordinate, check_arrays, coordinates, hadamard_rotated
from headlong.engines.adaptive.race import RaceQuery, Widths, odds_of
from headlong.engines.few_allowed_classes import ListedClasses, sample_of
from headlong.engines.method import EngineParts
from headlong.engines.methods.learned_answers import Learned, factor_for
from headlong.engines.reference.executor import Executor as Reference
from headlong.engines.reference.query import Doubles, Ids, Matrix, Query
from headlong.engines.sampling_filters import Filters
from headlong.native import Mask

Answer = tuple[NDArray[Any], ...]

RACE = {"column_weight": 0, "base": 0, "size": 0, "peak": 0, "lost": 1}
PUBLISHED = {"column_weight": 0, "base": 0, "spread": 1, "multipliers": 2}
"""Arrays of numbers that bounds and loops are made of, and how many; columns and squares stay unread until they are used."""


def keys_of(hidden: Doubles) -> NDArray[np.uint64]:
    """A number for each query's content, which names its noise."""
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in np.ascontiguousarray(hidden)]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


class RaceReference(Reference):
    """The NumPy executor over races instead of levels of a plan."""

    def __init__(self, matrix: Matrix, arrays: Arrays, widths: Widths, seed: int) -> None:
        super().__init__(matrix)
        self.arrays, self.widths, self.seed = arrays, widths, seed

    def _queries(self, hidden: Doubles, mask: Mask, dense: bool, k: int) -> Iterator[Query]:
        keys = keys_of(hidden) if len(hidden) else ()
        for b, row in enumerate(hidden):
            live = np.ones(len(self.matrix.weight), bool) if mask is None else mask[b % len(mask)] != 0
            query = RaceQuery(self.matrix, row, live, self.arrays, self.widths, self.seed, int(keys[b]))
            if query.last > 1 and not dense:
                query.look(np.arange(len(live)))
                query.proves = query.proves or query.dense
            else:
                query.score_all()
            yield query


class RaceReader:
    """Native races, or the reference's."""

    def __init__(self, parts: EngineParts, kind: str, share: float) -> None:
        assert parts.plan.arrays is not None
        self.rows, self.seed, self.arrays = parts.rows, parts.seed, dict(parts.plan.arrays)
        layer, promise = parts.layer, parts.promise
        turn = {"back": layer.dim**2} if "back" in self.arrays else {}
        check_arrays(self.arrays, RACE | turn | {"centre": layer.dim} | ({"factor": 1} if kind == "calibrated" else {}))
        odds = odds_of(layer.vocab, len(self.arrays["column_weight"]), promise.ids_rate) if kind == "bernstein" else 0.0
        factor = float(self.arrays["factor"][0]) if "factor" in self.arrays else 1.0
        self.widths, self.share = Widths(kind, factor, odds), share
        self.answers = learned_in(self.arrays, layer.vocab) if kind == "calibrated" else ()
        self.isa = parts.rows.isa
        self._reference = self._native = None
        if self.isa == native.REFERENCE:
            matrix = Matrix(layer.weight, layer.bias, parts.norms, layer.link, parts.plan)
            self._reference = RaceReference(matrix, self.arrays, self.widths, self.seed)
        else:
            link = layer.link.lowered()
            self._native = native.columns(layer.weight, layer.bias, parts.norms, link, self.arrays, self.isa)

    def topk(
        self, hidden: Doubles, k: int, eps: float, mask: Mask, dense: bool, threads: int, delta: float = 0.0, seed: int = 0
    ) -> Answer:
        factor = factor_for(self.answers, k) if math.isinf(eps) and mask is None and not dense else None
        if factor is not None:
            return self.narrowed(hidden, k, factor, threads)
        if self._reference is not None:
            return self._reference.topk(hidden, k, eps, mask, dense, threads, delta, seed)
        if dense:
            return self.rows.topk(hidden, k, eps, mask, True, threads, delta, seed)
        return self._raced(hidden, k, eps, mask, threads, delta, self.widths)

    def narrowed(self, hidden: Doubles, k: int, factor: float, threads: int) -> Answer:
        """Ids by radii of another factor, as learned for the answer: they bound no normaliser."""
        narrow = self.widths._replace(factor=factor)
        if self._reference is not None:
            executor = RaceReference(self._reference.matrix, self.arrays, narrow, self.seed)
            answer = executor.topk(hidden, k, math.inf, None, False, threads)
        else:
            answer = self._raced(hidden, k, math.inf, None, threads, 0.0, narrow)
        answer[4][~answer[8]] = np.inf
        return answer

    def _raced(
        self, hidden: Doubles, k: int, eps: float, mask: Mask, threads: int, delta: float, widths: Widths
    ) -> Answer:
        logits, ids, log_probs, lse, error, rows, read, _, late = self._race(hidden, k, eps, mask, threads, delta, widths)
        proved = np.full(len(hidden), widths.kind == "sure")
        columns = [logits, ids, log_probs, lse, error, proved, rows, read, late]
        return self._finish(columns, late, lambda some, part: self.rows.topk(some, k, eps, part, True, threads), hidden, mask)

    def lse(
        self, hidden: Doubles, eps: float, mask: Mask, dense: bool, threads: int, delta: float = 0.0, seed: int = 0
    ) -> Answer:
        if self._reference is not None:
            return self._reference.lse(hidden, eps, mask, dense, threads, delta, seed)
        if dense:
            return self.rows.lse(hidden, eps, mask, True, threads, delta, seed)
        _, _, _, lse, error, rows, read, _, late = self._race(hidden, 0, eps, mask, threads, delta, self.widths)
        return self._finish(
            [lse, error, rows, read, late], late, lambda some, part: self.rows.lse(some, eps, part, True, threads), hidden, mask
        )

    def logits(self, hidden: Doubles, ids: Ids, threads: int) -> Doubles:
        return self.rows.logits(hidden, ids, threads)

    def sample(self, *question: Any) -> Answer:
        """Exact draws: one Gumbel for each class leaves nothing to save here, so all rows are read (natively)."""
        found = self.rows if self._reference is None else self._reference
        answer: Answer = found.sample(*question)
        return answer

    def entries(self, hidden: Doubles, k: int, eps: float, delta: float, threads: int = 1) -> tuple[NDArray[np.int64], Any]:
        """Weights touched per query by a native race, and which queries had to be finished densely (all weights more)."""
        *_, entries, late = self._race(np.ascontiguousarray(hidden), k, eps, None, threads, delta, self.widths)
        return entries, late

    def _race(
        self, hidden: Doubles, k: int, eps: float, mask: Mask, threads: int, delta: float, widths: Widths
    ) -> Answer:
        """``delta`` is the engine's chance for the normaliser: a radius that may fail has taken its half already."""
        kind = {"sure": 0, "calibrated": 1, "bernstein": 2}[widths.kind]
        half = delta / 2 if widths.kind == "bernstein" else delta
        x = coordinates(hidden, self.arrays)
        shared = np.asarray(hidden @ self.arrays["centre"])
        rules = (eps, half, kind, widths.factor, widths.odds, self.share)
        assert self._native is not None
        answer: Answer = self._native.race(x, hidden, shared, keys_of(hidden), mask, self.seed, rules, k, threads)
        return answer

    def _finish(
        self, columns: list[Any], unfinished: Any, finish: Callable[[Doubles, Mask], Answer], hidden: Doubles, mask: Mask
    ) -> Answer:
        """The answers, with those rows that the race gave up replaced by dense ones; what it read stays in the cost."""
        late = np.flatnonzero(unfinished)
        if len(late):
            part = mask if mask is None or len(mask) == 1 else mask[late]
            finished = finish(np.ascontiguousarray(hidden[late]), part)
            for place, (column, found) in enumerate(zip(columns, finished, strict=True)):
                if place in (len(columns) - 3, len(columns) - 2):
                    column[late] += found
                else:
                    column[late] = found
        return tuple(columns)


def learned_in(arrays: Arrays, vocab: int) -> Learned:
    """The factors that were learned for answers; files of before have none."""
    pairs = arrays.get("answers", np.zeros((0, 2)))
    rising = pairs.ndim == 2 and pairs.shape[1:] == (2,) and bool((np.diff(pairs[:, 0]) > 0).all())
    if not (rising and ((pairs[:, 0] >= 1) & (pairs[:, 0] <= vocab) & (pairs[:, 1] > 0) & (pairs[:, 1] <= 1)).all()):
        raise ValueError(f"the array answers holds {pairs.tolist()}; expected numbers of classes, rising, and factors up to 1")
    return tuple((int(k), float(factor)) for k, factor in pairs)


class PublishedReader:
    """The paper's search, native or NumPy: its top-k, its normaliser, samples of its distribution."""

    def __init__(self, parts: EngineParts, rules: published.Rules) -> None:
        assert parts.plan.arrays is not None
        self.rows, self.seed, self.arrays, self.layer = parts.rows, parts.seed, dict(parts.plan.arrays), parts.layer
        check_arrays(self.arrays, PUBLISHED)
        arm, total = (float(value) for value in self.arrays["multipliers"])
        if not (arm > 0 and total > 0):
            raise ValueError(f"the multipliers are {arm:g} and {total:g}; expected numbers above 0")
        self.rules = rules._replace(arm=arm, sum=total)
        self.isa = parts.rows.isa
        self._native = None
        if self.isa != native.REFERENCE:
            link = parts.layer.link.lowered()
            self._native = native.columns(parts.layer.weight, parts.layer.bias, parts.norms, link, self.arrays, self.isa)

    def search(
        self, hidden: Doubles, k: int, mask: Mask, threads: int, rules: published.Rules | None = None, estimates: bool = False
    ) -> Answer:
        """``values, ids [batch, k], lse, pulls, full, rows, bytes [batch], estimates [batch or 0, vocab]``."""
        rules = self.rules if rules is None else rules
        x = hadamard_rotated(hidden, self.arrays["signs"]) if "signs" in self.arrays else hidden
        x = np.ascontiguousarray(x)
        widths = float(self.arrays["spread"][0]) * np.abs(x).sum(axis=1) ** 2 * self._affine()[0] ** 2
        if self._native is None:
            return self._slow(hidden, x, k, mask, rules, widths, estimates)
        given = (rules.eps, rules.delta, rules.warm, rules.exact, rules.arm, rules.sum, np.ascontiguousarray(widths))
        answer: Answer = self._native.published(x, hidden, keys_of(hidden), mask, self.seed, given, k, threads, estimates)
        return answer

    def topk(
        self, hidden: Doubles, k: int, eps: float, mask: Mask, dense: bool, threads: int, delta: float = 0.0, seed: int = 0
    ) -> Answer:
        values, ids, lse, _, _, rows, read, _ = self.search(hidden, k, mask, threads)
        slope, shift = self._affine()
        batch, flags = len(hidden), np.zeros(len(hidden), bool)
        logits = np.where(ids < 0, -np.inf, (values - shift) / slope)
        log_probs = np.where(ids < 0, -np.inf, values - np.where(lse == -np.inf, 0.0, lse)[:, None])
        return logits, ids, log_probs, lse, np.full(batch, np.inf), flags, rows, read, flags

    def lse(
        self, hidden: Doubles, eps: float, mask: Mask, dense: bool, threads: int, delta: float = 0.0, seed: int = 0
    ) -> Answer:
        _, _, lse, _, _, rows, read, _ = self.search(hidden, 1, mask, threads)
        return lse, np.full(len(hidden), np.inf), rows, read, np.zeros(len(hidden), bool)

    def logits(self, hidden: Doubles, ids: Ids, threads: int) -> Doubles:
        return self.rows.logits(hidden, ids, threads)

    def sample(
        self, hidden: Doubles, n: int, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, row0: int,
        mask: Mask, dense: bool, threads: int, class0: int = 0, delta: float = 0.0, chance: int = 0,
    ) -> Answer:  # fmt: skip
        """Draws from the estimated distribution; the paper has no sampling."""
        found = self.search(hidden, min(max(top_k, 1), self.layer.vocab), mask, threads, estimates=True)
        batch, vocab = len(hidden), self.layer.vocab
        ids = np.broadcast_to(np.arange(vocab), (batch, vocab))
        if mask is not None:
            ids = np.where(np.broadcast_to(mask, (batch, vocab)) != 0, ids, -1)
        exponents = np.where(ids < 0, -np.inf, found[7].astype(np.float64))
        filters = Filters(n, temperature, top_k, top_p, min_p, seed, row0, class0)
        won, logits, score = sample_of(ListedClasses(np.ascontiguousarray(ids), exponents, exponents), filters)
        flags = np.zeros(batch, bool)
        return won, logits, score, np.zeros(won.shape, bool), found[5], found[6], flags

    def _affine(self) -> tuple[float, float]:
        """``(scale, shift)`` of the link; the method refuses other links."""
        _, slope, shift, *_ = self.layer.link.lowered()
        return slope, shift

    def _slow(
        self, hidden: Doubles, x: Doubles, k: int, mask: Mask, rules: published.Rules, widths: Doubles, estimates: bool
    ) -> Answer:
        layer, arrays = self.layer, self.arrays
        slope, shift = self._affine()
        base = arrays["base"][: layer.vocab].astype(np.float64) * slope + shift
        out = []
        kept = np.empty((len(hidden) if estimates else 0, layer.vocab))
        everything, matrix = np.arange(layer.vocab)[None], by_coordinate(arrays["columns"], layer.vocab)
        for b, key in enumerate(keys_of(hidden)):
            order = published.order_of(x[b] * slope, arrays["column_weight"], self.seed, int(key))
            search = published.PublishedSearch(matrix, base, x[b] * slope, order)
            live = np.arange(layer.vocab) if mask is None else np.flatnonzero(mask[b % len(mask)])
            exact = slope * self.rows.logits(hidden[b : b + 1], everything, 1)[0] + shift
            found = published.answer(search, rules, k, exact, live, float(widths[b]))
            pad = k - len(found.ids)
            out.append((
                np.pad(found.values, (0, pad), constant_values=-np.inf), np.pad(found.ids, (0, pad), constant_values=-1),
                found.lse, found.pulls, found.full, len(found.ids) if rules.exact else 0, float(found.pulls * 4),
            ))  # fmt: skip
            if estimates:
                kept[b] = found.estimates
        kinds = (np.float64, np.int64, np.float64, np.int64, np.int64, np.int64, np.float64)
        shapes = ((len(hidden), k), (len(hidden), k), *(((len(hidden),),) * 5))
        columns = zip(*out, strict=True) if out else ([] for _ in kinds)
        arrays_out = [np.array(c, t).reshape(s) for c, t, s in zip(columns, kinds, shapes, strict=True)]
        return (*arrays_out, kept)
