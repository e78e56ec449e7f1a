"""How often an engine's promise fails on vectors of one's own, counted against every logit in float64.

    low, high = Clopper and Pearson's 95 % limits of the rate behind ``failures`` of ``count``
    holds     = low <= promised rate                      what was proved holds where nothing failed
    unjudged    eps lies within ``float64_error`` of the error that was found: float64 cannot tell on which side the true one is

With logits beyond some 1e12, float64 itself is further off than an ``eps`` of 0.01. Such answers are counted apart: ``low``
takes all of them as right, ``high`` and ``holds`` as failures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from headlong.answers import TopK
from headlong.arrays import Array, pieces
from headlong.dtypes import UNIT, Doubles
from headlong.engines.arguments import checked_hidden, checked_k, told
from headlong.errors import ShapeError
from headlong.layers.matrix import Layer
from headlong.native import row_norms
from headlong.number_checks import whole
from headlong.promise import Promise, except_for

CONFIDENCE = 0.95
STEPS = 60
ROUNDING = 1e-9
"""What float64 sums may lose: a share of a logit, and a hundredth of that of the largest; of log-probabilities, in nats."""

Progress = Callable[[int, int], None]
"""Called with how many of how many vectors are done."""
Best = Callable[[Doubles, int], TopK]
"""``topk`` of an engine."""


class FailureCount(NamedTuple):
    """``failures`` of ``asked`` answers where at most ``promised`` of them may fail, and the 95 % limits of their rate.

    ``unjudged`` of them nothing can be said: ``low`` takes them as right, ``high`` as failures.
    """

    what: str
    promised: float
    failures: int
    asked: int
    low: float
    high: float
    unjudged: int = 0

    @property
    def holds(self) -> bool:
        """Whether the count does not contradict the promise, and would not if all that is unjudged had failed."""
        return self._kept(self.failures + self.unjudged)

    def _kept(self, failures: int) -> bool:
        return limits(failures, self.asked)[0] <= self.promised if self.promised > 0 else failures == 0

    def __str__(self) -> str:
        rate = except_for(self.promised) if self.promised else "proved"
        counted = f"{self.failures:,} of {self.asked:,} failed, a rate of {self.low:.2g} to {self.high:.2g}"
        if self.unjudged:
            counted = f"{self.unjudged:,} cannot be judged, float64 is too coarse for their logits; {counted}"
        verdict = "holds" if self.holds else "cannot be told" if self._kept(self.failures) else "does not hold"
        return f"{self.what} {rate}: {counted}: {verdict}"


class Check(NamedTuple):
    """The counts of what was promised: ``ids`` (any of the best k) and ``log_probs``; None where nothing was."""

    ids: FailureCount | None
    log_probs: FailureCount | None
    worst: float
    """The largest error of a log-probability, in nats, of answers that could be judged; NaN where none was asked for."""
    promise: Promise

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts the promise, be it that what cannot be judged has failed."""
        return all(tally.holds for tally in (self.ids, self.log_probs) if tally is not None)

    def __str__(self) -> str:
        said = [str(tally) for tally in (self.ids, self.log_probs) if tally is not None]
        return "; ".join(said) if said else "nothing was promised"


class Checked(Protocol):
    """What knows every logit."""

    promise: Promise

    @property
    def layer(self) -> Any: ...

    def every_class(self, hidden: Doubles) -> tuple[Doubles, Doubles]: ...


def check(engine: Checked, best: Best, hidden: Any, k: int, batch: int, progress: Progress | None) -> Check:
    """The counts of ``engine`` on ``hidden [n, dim]``, whose verb ``best`` is asked ``batch`` at once for the ``k`` best."""
    vectors, k = checked_hidden(hidden, engine.layer.dim, "hidden"), checked_k(k, engine.layer.vocab)
    whole(batch, "batch", 1, 2**31 - 1)
    if not len(vectors):
        raise ShapeError("hidden has no rows; pass vectors [n, dim] like those of your queries")
    eps, delta = engine.promise
    ids, beyond = np.zeros(2, np.int64), np.zeros(2, np.int64)  # that failed, and that cannot be judged
    worst, longest = 0.0, longest_row(engine.layer)
    for piece in pieces(len(vectors), engine.layer.vocab, runs=batch):
        block = vectors[piece]
        logits, log_probs = engine.every_class(block)
        lost = float64_error(engine.layer, longest, block, logits)
        for first in range(0, len(block), batch):
            part = slice(first, first + batch)
            top, off = best(block[part], k), lost[part]
            found = np.asarray(top.ids)
            wrong = _wrong(found, logits[part], off)
            ids += wrong.sum(), (_wrong(found, logits[part]) & ~wrong).sum()
            if not told(None, engine.promise):
                continue
            errors = _errors(found, np.asarray(top.log_probs), log_probs[part])
            failed = np.isfinite(off) & ~(errors - off <= eps + ROUNDING)  # what is no number is none that was promised
            judged = failed | (errors + off <= eps + ROUNDING)
            beyond += failed.sum(), (~judged).sum()
            worst = max(worst, float(np.where(np.isnan(errors), np.inf, errors)[judged].max(initial=0.0)))
        if progress is not None:
            progress(piece.stop, len(vectors))
    count, within = len(vectors), f"log-probabilities within {eps:g}"
    return Check(
        None if delta >= 1 else tally("ids", delta, int(ids[0]), count, int(ids[1])),
        None if math.isinf(eps) or delta >= 1 else tally(within, delta, int(beyond[0]), count, int(beyond[1])),
        worst if told(None, engine.promise) else math.nan,
        engine.promise,
    )


def longest_row(layer: Any) -> float:
    """``max_i ‖w_i‖``; of what is not one matrix 0, and only the logits say how large the terms of their sums are."""
    return float(row_norms(layer.weight, 1).max()) if isinstance(layer, Layer) else 0.0


def float64_error(layer: Any, longest: float, hidden: Doubles, logits: Doubles) -> Doubles:
    """``[n]``: how far float64's sums may have carried log-probabilities: ``2 u (dim + 8) f' max_i ‖w_i‖ ‖x‖``, ``u`` its unit.

    0 where that is within :data:`ROUNDING`: such differences are none.
    """
    link = getattr(layer, "link", None)
    steepest, offset = (1.0, 0.0) if link is None else (link.steepest, link.offset)
    largest = np.abs(np.where(np.isneginf(logits), 0.0, logits)).max(axis=1)
    terms = np.maximum(longest * np.linalg.norm(hidden, axis=1), largest)
    lost = 2 * UNIT * ((layer.dim + 8) * max(steepest, 1.0) * terms + 8 * offset)
    return np.asarray(np.where(lost <= ROUNDING, 0.0, np.where(np.isnan(lost), np.inf, lost)))


def normalised(logits: Doubles, exponents: Doubles) -> tuple[Doubles, Doubles]:
    """``logits`` and ``exponents - log sum exp exponents``."""
    shifted = exponents - exponents.max(axis=1, keepdims=True)
    return logits, np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def tied(best: Array) -> Array:
    """``[n, k]``: by how much the logits ``best [n, k]`` may differ and be taken for equal.

    1e-9 of their own size: beside one huge logit a share of that one would hide what is wrong about all others.
    """
    size = np.where(np.isfinite(best), np.abs(best), 0.0)
    return np.asarray(ROUNDING * (size + 0.01 * size.max(axis=1, keepdims=True)))


def _wrong(ids: Array, logits: Doubles, lost: Doubles | float = 0.0) -> Array:
    """Whether any of the ids is none of the best: their logits are not the largest, ties, roundings and ``lost [n]`` apart."""
    k = ids.shape[1]
    best = -np.sort(-np.partition(logits, logits.shape[1] - k, axis=1)[:, -k:], axis=1)
    given = np.where(ids < 0, -np.inf, np.take_along_axis(logits, np.maximum(ids, 0), axis=1))
    order = np.sort(ids, axis=1)
    twice = ((order[:, 1:] == order[:, :-1]) & (order[:, 1:] >= 0)).any(axis=1)
    with np.errstate(invalid="ignore"):
        near = np.abs(best - given) <= tied(best) + np.reshape(lost, (-1, 1))
    return np.asarray(~(near | (np.isneginf(best) & np.isneginf(given))).all(axis=1) | twice)


def _errors(ids: Array, given: Doubles, exact: Doubles) -> Doubles:
    """The largest error of a row's log-probabilities; classes without any probability have none."""
    truth = np.where(ids < 0, -np.inf, np.take_along_axis(exact, np.maximum(ids, 0), axis=1))
    with np.errstate(invalid="ignore"):
        off = np.abs(given - truth)
    return np.asarray(np.where(given == truth, 0.0, off).max(axis=1))


def tally(what: str, promised: float, failures: int, count: int, unjudged: int = 0) -> FailureCount:
    low, high = limits(failures, count)[0], limits(failures + unjudged, count)[1]
    return FailureCount(what, promised, failures, count, low, high, unjudged)


def limits(failures: int, count: int) -> tuple[float, float]:
    """Clopper and Pearson's limits of a binomial rate."""
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if failures == 0 else _rate(lambda p: at_most(failures - 1, count, p) > 1 - tail)
    high = 1.0 if failures == count else _rate(lambda p: at_most(failures, count, p) > tail)
    return low, high


def _rate(above: Callable[[float], bool]) -> float:
    """The rate at which a tail crosses its level, by halving; ``above``: the rate is larger than this."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return (low + high) / 2


def at_most(failures: int, count: int, rate: float) -> float:
    """``P(Binomial(count, rate) <= failures)``."""
    i = np.arange(failures + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    terms = logs[count] - logs[i] - logs[count - i] + i * math.log(rate) + (count - i) * math.log1p(-rate)
    return float(min(1.0, np.exp(terms).sum()))
