"""Sums over a row's distribution, with a bound on the error of each: a weight for every class, and a bound on what is not read.

    F = sum_i p_i w_i = head + tail      head: the k best, exactly; tail: mass m in all, at most p_k to a class

    entropy           w_i = lse - f_i       m (lse - f_k)  <=  tail  <=  m log((n - k) / m)      at most even
    expected value    w_i = v_i             m min v        <=  tail  <=  m max v

A normaliser that is off by ``e`` moves the head by at most ``e exp(e) sum_i p_i (|w_i + w'| + |w'| e)``, ``w'`` being the slope
of a weight in ``log p``. Rows for which all that is wider than ``eps`` are scanned in full, and their ``cost`` says so. A
reader of rotated codes bets on entropies instead (``csrc/codes/entropy.cpp``).

The variance of ``-log p`` weighs a class by the square of its surprisal, so that its tail is read in full, too: with an error
``e`` of each logit it is off by ``e sum_i p_i |d_i^2 + 2 d_i - V| <= 2 e (V + sqrt V)``, where ``d_i = log p_i + H``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from headlong.answers import Answer, Entropy, Expected
from headlong.arrays import answer_as, as_numpy, pieces, round_up, to_host
from headlong.dtypes import UNIT, Doubles, Ids
from headlong.engines.arguments import Asked, part_of
from headlong.engines.kind import Kind
from headlong.engines.promise_failures import ROUNDING, float64_error, longest_row
from headlong.errors import NonFiniteError, ShapeError
from headlong.question import Mask, Question

HEADS = 64
"""Classes that are scored for a start: of a language model's rows they have a third settled."""
DEFAULT = 0.01
"""What methods are asked for that promise nothing."""


class Tail(NamedTuple):
    """What is not read of each row, ``[batch]``: its least and most mass, the least ``lse - f`` that its classes may have, and
    how many they are."""

    least: Doubles
    most: Doubles
    last: Doubles
    classes: Doubles


class Functional(NamedTuple):
    """``weight(nats, ids)``: ``w`` of classes with ``lse - f = nats``; ``slope``: its own in ``log p``.

    ``tail``  both ends of what a tail adds; ``lost(F)``: how far off a full scan is for an error of one nat in each logit
    """

    weight: Callable[[Doubles, Ids], Doubles]
    slope: float
    tail: Callable[[Tail], tuple[Doubles, Doubles]]
    lost: Callable[[Doubles], Doubles]


def _evenly(tail: Tail) -> tuple[Doubles, Doubles]:
    # m log(n / m) rises up to n / e; the most mass is at most 1.
    return tail.least * np.maximum(tail.last, 0.0), tail.most * np.log(np.maximum(tail.classes, math.e) / tail.most)


ENTROPY = Functional(lambda nats, ids: nats, -1.0, _evenly, lambda found: 1 + found)


def mean_of(values: Doubles) -> Functional:
    """The mean of ``values [vocab]``, which are from -1 to 1."""
    return Functional(
        lambda nats, ids: values[np.maximum(ids, 0)], 0.0, lambda tail: (-tail.most, tail.most),
        lambda found: np.full(len(found), 2.0),
    )  # fmt: skip


def entropy(engine: Kind, call: Asked, aim: float | None, moments: bool) -> Entropy:
    """:meth:`headlong.Engine.entropy`."""
    if not moments:
        a = answer(engine, call, ENTROPY, DEFAULT if aim is None else aim)
        return answer_as(Entropy(a.value, a.error, a.lse, a.cost), call.form)
    a, variance, off = scanned(engine, call.hidden, call.mask, ENTROPY)
    whole = Entropy(a.value, a.error, a.lse, a.cost, variance, off)
    if call.form.single:
        narrow = variance.astype(np.float32)
        whole = replace(whole, variance=narrow, variance_error=round_up(off + np.abs(narrow - variance)))
    return answer_as(whole, call.form)


def expected(engine: Kind, call: Asked, values: Doubles, aim: float | None) -> Expected:
    """:meth:`headlong.Engine.expected`, within ``aim`` times half the range of the values."""
    low, high = float(values.min()), float(values.max())
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    a = answer(engine, call, mean_of((values - middle) / (half or 1.0)), DEFAULT if aim is None else aim)
    value = middle + half * a.value
    return answer_as(Expected(value, half * a.error + 4 * UNIT * (abs(middle) + half), a.cost), call.form)


def class_values(values: object, vocab: int) -> Doubles:
    """``[vocab]`` finite numbers in float64."""
    given = as_numpy(to_host(values), "values")
    if given.shape != (vocab,) or given.dtype.kind not in "fiub":
        raise ShapeError(f"values is {given.dtype} of shape {list(given.shape)}; expected [{vocab}], a number of every class")
    wide = given.astype(np.float64)
    if not np.isfinite(wide).all():
        place = int(np.argmin(np.isfinite(wide)))
        raise NonFiniteError(f"values[{place}] is {wide[place]}; expected finite numbers: leave the class out with exclude=")
    return wide


def answer(engine: Kind, call: Asked, functional: Functional, aim: float) -> Answer:
    """Within ``aim``: from the best classes where these say enough, else from all."""
    # An error of the normaliser counts about F times, and less than ten nats of most layers' rows.
    top = engine.ask(call.hidden, Question("best", min(HEADS, engine.layer.vocab), eps=part_of(aim, 0.1), mask=call.mask))
    left = np.full(len(call.hidden), engine.layer.vocab) if call.mask is None else call.mask.sum(axis=1, dtype=np.int64)
    middle, error = bounds(top, np.broadcast_to(left, len(call.hidden)), functional)
    found = Answer(value=middle, error=error, lse=top.lse.copy(), rows=top.rows.copy(), bytes=top.bytes.copy(), path=top.path)
    found = found._replace(full=top.full.copy())
    open_ = np.flatnonzero(~(error <= aim))
    if len(open_):
        mask = None if call.mask is None else np.ascontiguousarray(call.mask[open_ % len(call.mask)])
        hidden = call.hidden[open_]
        more = engine.scanned_entropy(hidden, mask) if functional is ENTROPY else None
        more = more or scanned(engine, hidden, mask, functional)[0]
        for name in ("value", "error", "lse", "full"):
            getattr(found, name)[open_] = getattr(more, name)
        found.rows[open_] += more.rows
        found.bytes[open_] += more.bytes
    return found


def bounds(top: Answer, left: Ids, functional: Functional) -> tuple[Doubles, Doubles]:
    """The middle of what it may be and how far off that is, ``[batch]`` each; ``left`` classes may be answered."""
    there = top.ids >= 0
    off = np.where(top.error > 300, np.inf, top.error)  # beyond, nothing is known
    nats = np.where(there, -top.log_probs, 0.0)  # lse - f, off by `off`
    p = np.where(there, np.exp(-nats), 0.0)
    w = np.where(there, functional.weight(nats, top.ids), 0.0)
    head = (p * w).sum(axis=1)
    slope = functional.slope
    with np.errstate(invalid="ignore"):  # nothing is known of a row
        moved = off * np.exp(off) * (p * (np.abs(w + slope) + abs(slope) * off[:, None])).sum(axis=1)
    moved = np.where(np.isnan(moved), np.inf, moved)
    head_mass = p.sum(axis=1)
    rounding = (p.shape[1] + 8) * UNIT * (1 + np.abs(np.where(np.isfinite(top.lse), top.lse, 0.0)))
    behind = np.maximum(left - there.sum(axis=1), 0)
    least = np.maximum(1 - head_mass * np.exp(off) - rounding, 0.0)
    most = np.clip(1 - head_mass * np.exp(-off) + rounding, 1e-300, 1.0)
    low, high = functional.tail(Tail(least, most, nats.max(axis=1, initial=0.0) - off, behind))
    low, high = np.where(behind > 0, low, 0.0), np.where(behind > 0, high, 0.0)
    return head + (low + high) / 2, (high - low) / 2 + moved + rounding


def scanned(engine: Kind, hidden: Doubles, mask: Mask, functional: Functional) -> tuple[Answer, Doubles, Doubles]:
    """From every logit in float64, some rows at a time; and the variance of the weights, and how far off an entropy's is."""
    count, vocab = len(hidden), engine.layer.vocab
    parts = pieces(count, vocab)
    masks = [mask if mask is None or len(mask) == 1 else mask[part] for part in parts]
    found = [_scanned(engine, hidden[part], some, functional) for part, some in zip(parts, masks, strict=True)]
    read = np.full(count, vocab * engine.layer.dim * 4.0 / max([1, *(part.stop - part.start for part in parts)]))
    columns = zip(*found, strict=True) if found else [()] * 5
    middle, error, lse, variance, off = (np.concatenate([np.zeros(0), *column]) for column in columns)
    whole = Answer(value=middle, error=error, lse=lse, rows=np.full(count, vocab), bytes=read, full=np.ones(count, bool))
    return whole._replace(path="rows/float64"), variance, off


def _scanned(engine: Kind, hidden: Doubles, mask: Mask, functional: Functional) -> tuple[Doubles, ...]:
    logits, log_probs = engine.every_class(hidden)
    best = np.argmax(logits, axis=1)[:, None]
    lse = (engine.exponents(np.take_along_axis(logits, best, 1)) - np.take_along_axis(log_probs, best, 1))[:, 0]
    if mask is not None:
        log_probs = np.where(mask == 1, log_probs, -np.inf)
        shift = log_probs.max(axis=1, keepdims=True)
        more = shift + np.log(np.exp(log_probs - shift).sum(axis=1, keepdims=True))
        log_probs, lse = log_probs - more, lse + more[:, 0]
    p, own = np.exp(log_probs), np.where(np.isneginf(log_probs), 0.0, log_probs)
    w = functional.weight(-own, np.broadcast_to(np.arange(p.shape[1]), p.shape))
    found = np.sum(p * w, axis=1)
    variance = np.sum(p * (w - found[:, None]) ** 2, axis=1)
    lost = ROUNDING + float64_error(engine.layer, longest_row(engine.layer), hidden, logits)
    return found, functional.lost(found) * lost, lse, variance, 2 * (1 + variance + np.sqrt(variance)) * lost
