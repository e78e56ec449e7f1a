"""How often an engine's promise fails on vectors of one's own, counted against every logit in float64.

    low, high = Clopper and Pearson's 95 % limits of the rate behind ``failures`` of ``count``
    holds     = low <= promised rate                      what was proved holds where nothing failed

A promise over "calibration" is about queries like the calibration vectors. Queries drift; this says whether it still holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from headlong.answers import Promise, TopK
from headlong.arrays import Array
from headlong.checks import whole
from headlong.engines.arguments import checked_hidden, checked_k
from headlong.errors import ShapeError
from headlong.native import Doubles

AT_ONCE = 1 << 22
"""Logits that are held at once."""
CONFIDENCE = 0.95
STEPS = 60
ROUNDING = 1e-9
"""Of float64 sums: relative to a logit, and a hundredth of that to the largest; of log-probabilities, in nats."""

Progress = Callable[[int, int], None]
"""Called with how many of how many vectors are done."""


class FailureCount(NamedTuple):
    """``failures`` of ``count`` answers where at most ``promised`` of them may fail, and the 95 % limits of their rate."""

    what: str
    promised: float
    failures: int
    asked: int
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether the count does not contradict the promise."""
        return self.low <= self.promised if self.promised > 0 else self.failures == 0

    def __str__(self) -> str:
        rate = f"but for {self.promised:g}" if self.promised else "proved"
        limits = f"{self.failures:,} of {self.asked:,} failed, a rate of {self.low:.2g} to {self.high:.2g}"
        return f"{self.what} {rate}: {limits}: {'holds' if self.holds else 'does not hold'}"


class Check(NamedTuple):
    """The counts of what was promised: ``ids`` (any of the best k) and ``log_probs``; None where nothing was."""

    ids: FailureCount | None
    log_probs: FailureCount | None
    worst: float
    """The largest error of a log-probability, in nats."""
    promise: Promise

    @property
    def holds(self) -> bool:
        """Whether nothing that was counted contradicts the promise."""
        return all(tally.holds for tally in (self.ids, self.log_probs) if tally is not None)

    def __str__(self) -> str:
        said = [str(tally) for tally in (self.ids, self.log_probs) if tally is not None]
        return "; ".join(said) if said else "nothing was promised"


class Checked(Protocol):
    """What is checked: an engine that also knows every logit."""

    promise: Promise

    @property
    def layer(self) -> Any: ...

    def topk(self, hidden: Any, k: int = 10, *, eps: float | None = None) -> TopK: ...

    def every_class(self, hidden: Doubles) -> tuple[Doubles, Doubles]: ...


def check(engine: Checked, hidden: Any, k: int, batch: int, progress: Progress | None) -> Check:
    """The counts of ``engine`` on ``hidden [n, dim]``, asked ``batch`` at once for the ``k`` best."""
    vectors, k = checked_hidden(hidden, engine.layer.dim, "hidden"), checked_k(k, engine.layer.vocab)
    whole(batch, "batch", 1, 2**31 - 1)
    if not len(vectors):
        raise ShapeError("hidden has no rows; pass vectors [n, dim] like those of your queries")
    step = max(batch, AT_ONCE // engine.layer.vocab // batch * batch)
    eps, delta, delta_ids, _ = engine.promise
    ids = beyond = 0
    worst = 0.0
    for start in range(0, len(vectors), step):
        block = vectors[start : start + step]
        logits, log_probs = engine.every_class(block)
        for first in range(0, len(block), batch):
            part = slice(first, first + batch)
            top = engine.topk(block[part], k)
            ids += int(_wrong(np.asarray(top.ids), logits[part]).sum())
            errors = _errors(np.asarray(top.ids), np.asarray(top.log_probs), log_probs[part])
            worst = max(worst, float(np.where(np.isnan(errors), np.inf, errors).max()))
            beyond += int((~(errors <= eps + ROUNDING)).sum())  # what is no number is none that was promised
        if progress is not None:
            progress(min(start + step, len(vectors)), len(vectors))
    count = len(vectors)
    return Check(
        None if delta_ids >= 1 else tally("ids", delta_ids, ids, count),
        None if math.isinf(eps) or delta >= 1 else tally(f"log-probabilities within {eps:g}", delta, beyond, count),
        worst,
        engine.promise,
    )


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


def _wrong(ids: Array, logits: Doubles) -> Array:
    """Whether any of the ids is none of the best: their logits are not the largest ones, ties and roundings apart."""
    k = ids.shape[1]
    best = -np.sort(-np.partition(logits, logits.shape[1] - k, axis=1)[:, -k:], axis=1)
    given = np.where(ids < 0, -np.inf, np.take_along_axis(logits, np.maximum(ids, 0), axis=1))
    order = np.sort(ids, axis=1)
    twice = ((order[:, 1:] == order[:, :-1]) & (order[:, 1:] >= 0)).any(axis=1)
    with np.errstate(invalid="ignore"):
        near = np.abs(best - given) <= tied(best)
    return np.asarray(~(near | (np.isneginf(best) & np.isneginf(given))).all(axis=1) | twice)


def _errors(ids: Array, given: Doubles, exact: Doubles) -> Doubles:
    """The largest error of a row's log-probabilities; classes without any probability have none."""
    truth = np.where(ids < 0, -np.inf, np.take_along_axis(exact, np.maximum(ids, 0), axis=1))
    with np.errstate(invalid="ignore"):
        apart = np.abs(given - truth)
    return np.asarray(np.where(given == truth, 0.0, apart).max(axis=1))


def tally(what: str, promised: float, failures: int, count: int) -> FailureCount:
    return FailureCount(what, promised, failures, count, *limits(failures, count))


def limits(failures: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Clopper and Pearson's limits of a binomial rate."""
    tail = (1 - confidence) / 2
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
