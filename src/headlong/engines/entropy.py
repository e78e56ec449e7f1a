"""The entropy of each row, with a bound on its error.

    H = sum_i p_i (lse - f_i) = head + tail      head: the k best, whose f_i are exact; f_k: the least of them

    m (lse - f_k)  <=  tail  <=  m log((n - k) / m)      m: the tail's mass, at most p_k to a class, at most even

and a normaliser that is off by ``e`` moves the head by at most ``e`` times ``sum_i p_i |1 - (lse - f_i)|``. Rows for which
that is wider than ``eps`` are scanned in full, and their ``cost`` says so. This is what engines do that have no rotated codes;
``csrc/codes/entropy.cpp`` has what those do.

The variance of ``-log p`` weighs a class by the square of its surprisal, so that its tail is read in full, too: with an error
``e`` of each logit it is off by ``e sum_i p_i |d_i^2 + 2 d_i - V| <= 2 e (V + sqrt V)``, where ``d_i = log p_i + H``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from headlong.answers import Answer, Cost, Entropy
from headlong.arrays import answer_as, round_up
from headlong.dtypes import UNIT, Doubles, Ids
from headlong.engines.arguments import aimed, asked, check_told, part_of
from headlong.engines.kind import Kind
from headlong.engines.promise_failures import ROUNDING, float64_error, longest_row
from headlong.question import Mask, Question

HEADS = 64
"""Classes that are scored for a start: of a language model's rows they have a third settled."""
DEFAULT = 0.01
"""Of methods that promise nothing."""
AT_ONCE = 1 << 22
"""Logits that a full scan holds."""


def entropy(engine: Kind, hidden: Any, eps: float | None, allowed: Any, exclude: Any, moments: bool) -> Entropy:
    """:meth:`headlong.Engine.entropy`."""
    check_told("entropy", eps, engine.promise)
    call = asked(hidden, allowed, exclude, engine.layer.dim, engine.layer.vocab)
    aim = aimed(DEFAULT if eps is None and math.isinf(engine.promise.eps) else eps, engine.promise, call.form)
    if moments:
        found, variance, off = scanned(engine, call.hidden, call.mask)
        whole = Entropy(found.value, found.error, found.lse, found.cost, variance, off)
        if call.form.single:
            narrow = variance.astype(np.float32)
            whole = replace(whole, variance=narrow, variance_error=round_up(off + np.abs(narrow - variance)))
        return answer_as(whole, call.form)
    k = min(HEADS, engine.layer.vocab)
    # An error of the normaliser counts about H times, and less than ten nats of most layers' rows.
    top = engine.ask(call.hidden, Question("best", k, eps=part_of(aim, 0.1), mask=call.mask))
    left = np.full(len(call.hidden), engine.layer.vocab) if call.mask is None else call.mask.sum(axis=1, dtype=np.int64)
    middle, error = bounds(top, np.broadcast_to(left, len(call.hidden)))
    lse, rows, read, dense = top.lse.copy(), top.rows.copy(), top.bytes.copy(), top.full.copy()
    open_ = np.flatnonzero(~(error <= aim))
    if len(open_):
        mask = None if call.mask is None else np.ascontiguousarray(call.mask[open_ % len(call.mask)])
        found = engine.scanned_entropy(call.hidden[open_], mask) or scanned(engine, call.hidden[open_], mask)[0]
        middle[open_], error[open_], lse[open_], dense[open_] = found.value, found.error, found.lse, found.full
        rows[open_] += found.rows
        read[open_] += found.bytes
    cost = Cost(rows, read, dense, top.path)
    return answer_as(Entropy(middle, error, lse, cost), call.form)


def bounds(top: Answer, left: Ids) -> tuple[Doubles, Doubles]:
    """The middle of what the entropy may be and how far off that is, ``[batch]`` each; ``left`` classes may be answered."""
    there = top.ids >= 0
    off = np.where(top.error > 300, np.inf, top.error)  # beyond, nothing is known of an entropy
    nats = np.where(there, -top.log_probs, 0.0)  # lse - f, off by `off`
    p = np.where(there, np.exp(-nats), 0.0)
    head = (p * nats).sum(axis=1)
    moved = off * np.exp(off) * (p * (np.abs(1 - nats) + off[:, None])).sum(axis=1)
    head_mass = p.sum(axis=1)
    rounding = (p.shape[1] + 8) * UNIT * (1 + np.abs(np.where(np.isfinite(top.lse), top.lse, 0.0)))
    behind = np.maximum(left - there.sum(axis=1), 0)
    smallest = np.maximum(1 - head_mass * np.exp(off) - rounding, 0.0)
    largest = np.clip(1 - head_mass * np.exp(-off) + rounding, 1e-300, 1.0)
    last = nats.max(axis=1, initial=0.0)
    low = smallest * np.maximum(last - off, 0.0)
    # m log(n / m) rises up to n / e; largest is at most 1.
    high = np.where(behind > 0, largest * np.log(np.maximum(behind, math.e) / largest), 0.0)
    low = np.where(behind > 0, low, 0.0)
    return head + (low + high) / 2, (high - low) / 2 + moved + rounding


def scanned(engine: Kind, hidden: Doubles, mask: Mask) -> tuple[Answer, Doubles, Doubles]:
    """From every logit in float64, some rows at a time; and the variance of ``-log p``, and how far off that is."""
    count, vocab = len(hidden), engine.layer.vocab
    step = max(1, AT_ONCE // vocab)
    parts = [slice(start, start + step) for start in range(0, count, step)]
    masks = [None if mask is None else mask[part] for part in parts]
    found = [_scanned(engine, hidden[part], some) for part, some in zip(parts, masks, strict=True)]
    read = np.full(count, vocab * engine.layer.dim * 4.0 / max(1, min(step, count)))
    columns = zip(*found, strict=True) if found else [()] * 5
    middle, error, lse, variance, off = (np.concatenate([np.zeros(0), *column]) for column in columns)
    whole = Answer(value=middle, error=error, lse=lse, rows=np.full(count, vocab), bytes=read, full=np.ones(count, bool))
    return whole._replace(path="rows/float64"), variance, off


def _scanned(engine: Kind, hidden: Doubles, mask: Mask) -> tuple[Doubles, ...]:
    logits, log_probs = engine.every_class(hidden)
    best = np.argmax(logits, axis=1)[:, None]
    lse = (engine.exponents(np.take_along_axis(logits, best, 1)) - np.take_along_axis(log_probs, best, 1))[:, 0]
    if mask is not None:
        log_probs = np.where(mask == 1, log_probs, -np.inf)
        shift = log_probs.max(axis=1, keepdims=True)
        more = shift + np.log(np.exp(log_probs - shift).sum(axis=1, keepdims=True))
        log_probs, lse = log_probs - more, lse + more[:, 0]
    p, own = np.exp(log_probs), np.where(np.isneginf(log_probs), 0.0, log_probs)
    found = -np.sum(p * own, axis=1)
    variance = np.sum(p * (own + found[:, None]) ** 2, axis=1)
    lost = ROUNDING + float64_error(engine.layer, longest_row(engine.layer), hidden, logits)
    return found, (1 + found) * lost, lse, variance, 2 * (1 + variance + np.sqrt(variance)) * lost
