"""One case of a storm, in this process: every verb against float64, and the same calls in other batches, threads and levels.

What is proved has to hold: a breach is a fault. What may fail with a probability is counted, trials and failures for each
kind of promise; the storm's end compares the rates with what was promised.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from typing import Any

import numpy as np
from cases import Case, build
from numpy.typing import NDArray

import headlong as hl
from headlong import native
from headlong.engines.masks import class_mask
from headlong.engines.reference.gumbel import gumbels
from headlong.errors import HeadlongError
from headlong.links import lowering_error
from oracle import Truth, check_draw, check_topk, kept, truth

Flags = NDArray[np.bool_]


class Found:
    """What came of a case: ``rows`` checked, ``faults``, promises counted, the times of a batch against a dense one."""

    def __init__(self) -> None:
        self.rows, self.faults, self.refused = 0, [], ""
        self.trials: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.chances: list[float] = []
        self.ratio: float | None = None

    def fault(self, where: str, what: object) -> None:
        self.faults.append(f"{where}: {str(what)[:300]}")

    def count(self, kind: str, failed: Flags) -> None:
        self.trials[kind] += len(failed)
        self.failures[kind] += int(failed.sum())


def run(case: Case) -> Found:
    found = Found()
    layer, hidden, vectors = build(case)
    options = dict(case.options) | {"eps": case.eps, "delta": case.delta, "delta_ids": case.delta_ids, "seed": case.number}
    also = {"likely": ["calibration"], "query": []}.get(case.over, [case.over])
    options |= {"over": ["query", *also]}
    if vectors is not None:
        options["calibration"] = vectors
    try:
        engine = hl.compile(layer, case.method, threads=case.threads, **options)
    except HeadlongError as error:
        found.refused = f"{type(error).__name__}: {error}"[:200]
        return found
    masks = _masks(case)
    marks = class_mask(masks.get("allowed"), masks.get("exclude"), len(hidden), layer.vocab)
    live = None if marks is None else np.broadcast_to(marks == 1, (len(hidden), layer.vocab))
    facts = truth(layer, hidden, live), truth(layer, hidden)
    trust = case.calibration in ("good", "none") or "calibration" not in engine.promise.over
    _topk(found, case, engine, hidden, facts[0], masks, trust)
    _given(found, engine, hidden, facts[1])
    _lse(found, engine, hidden, facts[0], masks, trust)
    _sample(found, case, engine, hidden, facts[0], masks)
    _others(found, case, engine, layer, hidden, options, facts[0], masks)
    if case.batch >= 8 and layer.vocab * layer.dim >= 500_000 and engine.name != "svd":
        found.ratio = _ratio(engine, hl.compile(layer, "full", eps=case.eps, threads=case.threads), hidden, case.k)
    return found


def _masks(case: Case) -> dict[str, Any]:
    rng = np.random.default_rng([3, case.number])
    few = rng.integers(0, case.vocab, min(case.vocab, 20))
    made: dict[str, dict[str, Any]] = {
        "none": {},
        "few": {"allowed": few},
        "most": {"allowed": np.flatnonzero(rng.random(case.vocab) < 0.8)},
        "by row": {"allowed": rng.integers(0, case.vocab, (case.batch, 5))},
        "exclude": {"exclude": few[: case.vocab // 2]},
    }
    return made[case.mask] if case.mask != "most" or len(made["most"]["allowed"]) else {}


def _slack(engine: Any, facts: Truth) -> Any:
    """How far the float64 answers may themselves be off."""
    steep = engine.layer.link.steepest
    finite = np.where(np.isfinite(facts.lse), np.abs(facts.lse), 0.0)
    return 4 * facts.rounding * steep + 2.0**-48 * (1 + finite) + engine.layer.vocab * 2.0**-52


def _stated(found: Found, where: str, engine: Any, off: Any, error: Any, slack: Any, trust: bool) -> None:
    """``off`` is within ``error`` but for the promise's delta."""
    if np.isnan(off).any() or np.isnan(error).any():
        found.fault(where, f"NaN: off {off}, error {error}")
        return
    broken = off > error + slack
    promise = engine.promise
    if promise.delta == 0 or math.isinf(promise.eps):
        if broken.any():
            row = int(np.argmax(off - error))
            found.fault(where, f"row {row} off by {off[row]:.6g}, stated {error[row]:.6g}, delta 0")
    elif trust:
        found.count(f"normaliser, delta {promise.delta:g} over {' and '.join(sorted(promise.over)) or 'nothing'}", broken)
    if not math.isinf(promise.eps) and engine.name != "svd" and (error > promise.eps * (1 + 1e-9) + slack).any():
        found.fault(where, f"error {error.max():.6g} beyond eps {promise.eps:g}")


def _topk(found: Found, case: Case, engine: Any, hidden: Any, facts: Truth, masks: Any, trust: bool) -> None:
    top = engine.topk(hidden, case.k, **masks)
    found.rows += len(hidden)
    wrong = np.zeros(len(hidden), bool)
    for row in range(len(hidden)):
        try:
            check_topk(facts.logits[row], top.ids[row], top.logits[row], 2 * float(facts.rounding[row]))
        except AssertionError as error:
            wrong[row] = True
            if top.proved[row]:
                found.fault("topk", f"row {row} proved and wrong: {error}")
    promise = engine.promise
    if promise.delta_ids == 0 and not top.proved.all():
        found.fault("topk", "delta_ids is 0 and a row is not proved")
    if 0 < promise.delta_ids < 1 and trust:
        found.count(f"ids, delta_ids {promise.delta_ids:g} over {' and '.join(sorted(promise.over))}", wrong & ~top.proved)
    there = (top.ids >= 0) & (wrong == 0)[:, None]
    expected = np.take_along_axis(facts.log_probs, np.maximum(top.ids, 0), 1)
    with np.errstate(invalid="ignore"):
        off = np.max(np.where(there, np.abs(top.log_probs - expected), 0.0), axis=1, initial=0.0)
    if engine.name != "svd" and not math.isinf(engine.promise.eps):
        _stated(found, "topk", engine, off, top.error, _slack(engine, facts), trust)


def _given(found: Found, engine: Any, hidden: Any, facts: Truth) -> None:
    ids = np.random.default_rng(len(hidden)).integers(0, engine.layer.vocab, (len(hidden), 3))
    answer = engine.log_prob(hidden, ids)
    found.rows += len(hidden)
    off = np.abs(answer.logits - np.take_along_axis(facts.logits, ids, 1)).max(axis=1)
    if (off > 2 * facts.rounding).any():
        found.fault("log_prob", f"logits off by {off.max():.6g}")


def _lse(found: Found, engine: Any, hidden: Any, facts: Truth, masks: Any, trust: bool) -> None:
    if engine.name == "svd" or math.isinf(engine.promise.eps):
        return
    answer = engine.lse(hidden, **masks)
    found.rows += len(hidden)
    with np.errstate(invalid="ignore"):
        off = np.where(answer.lse == facts.lse, 0.0, np.abs(answer.lse - facts.lse))
    _stated(found, "lse", engine, off, answer.error, _slack(engine, facts), trust)


def _sample(found: Found, case: Case, engine: Any, hidden: Any, facts: Truth, masks: Any) -> None:
    rng = np.random.default_rng([11, case.number])
    cut = (int(rng.choice([0, 0, min(7, case.vocab)])), float(rng.choice([1.0, 0.9, 0.5])), float(rng.choice([0.0, 0.0, 0.05])))
    named = {"top_k": cut[0] or None, "top_p": None if cut[1] == 1 else cut[1], "min_p": cut[2] or None}
    drawn = engine.sample(hidden, 2, seed=case.number, **named, **masks)
    found.rows += len(hidden)
    if engine.name == "svd":
        return
    for row in range(min(len(hidden), max(1, 60_000 // case.vocab))):
        noise = gumbels(case.number, row, 0, np.arange(case.vocab))
        try:
            winner, score = int(drawn.ids[row, 0]), float(drawn.score[row, 0])
            check_draw(facts.logits[row], facts.exponents[row], noise, cut, winner, score, lowering_error(engine.layer.link))
        except AssertionError as error:
            if drawn.proved[row, 0]:
                found.fault("sample", f"row {row}, {cut}: proved and wrong: {error}")
            found.count(f"draws, delta {engine.promise.delta:g}", np.array([True]))
        else:
            found.count(f"draws, delta {engine.promise.delta:g}", np.array([False]))
    if case.vocab <= 65 and case.batch <= 8:
        _chi_square(found, engine, hidden[:1], facts, cut, named, masks)


def _chi_square(found: Found, engine: Any, hidden: Any, facts: Truth, cut: Any, named: Any, masks: Any) -> None:
    from scipy.stats import chisquare

    if masks and np.ndim(next(iter(masks.values()))) == 2:
        masks = {name: ids[:1] for name, ids in masks.items()}
    draws = np.concatenate([engine.sample(hidden, 500, seed=seed, **named, **masks).ids[0] for seed in range(6)])
    ids = kept(facts.logits[0], facts.exponents[0], *cut)
    mass = np.exp(facts.exponents[0][ids] - facts.exponents[0][ids].max())
    expected = len(draws) * mass / mass.sum()
    counts = np.array([(draws == one).sum() for one in ids])
    often = expected >= 8
    if often.sum() < 2:
        return
    rare = ~often & (expected[~often].sum() >= 8)  # together they are often enough, or not looked at
    came, awaited = (np.append(part[often], part[rare].sum() if rare.any() else []) for part in (counts, expected))
    chance = float(chisquare(came, awaited * came.sum() / awaited.sum()).pvalue)
    found.chances.append(chance)
    if chance < 1e-9:
        found.fault("sample", f"frequencies have the chance {chance:.2g}")


def _others(
    found: Found, case: Case, engine: Any, layer: Any, hidden: Any, options: Any, facts: Truth, masks: Any
) -> None:
    """The same rows in other batches and threads are the same answers; those of other levels are right, too."""
    if engine.promise.delta_ids > 0:
        return
    shared = masks if not masks or np.ndim(next(iter(masks.values()))) == 1 else {}
    whole = engine.topk(hidden, case.k, **shared)
    for row in sorted({0, len(hidden) // 2, len(hidden) - 1}):
        alone = engine.topk(hidden[row : row + 1], case.k, **shared)
        if (alone.ids[0] != whole.ids[row]).any() or (alone.logits[0] != whole.logits[row]).any():
            found.fault("batch", f"row {row} alone is {alone.ids[0]}, in the batch {whole.ids[row]}")
    if case.number % 4:
        return
    for threads in {1, 2, 3} - {case.threads}:
        other = hl.compile(layer, case.method, threads=threads, **options).topk(hidden, case.k, **shared)
        if (other.ids != whole.ids).any() or (other.logits != whole.logits).any():
            found.fault("threads", f"{threads} threads give another answer than {case.threads}")
    before = os.environ.get("HEADLONG_ISA")
    for level in native.levels()[1:-1]:
        os.environ["HEADLONG_ISA"] = level
        other = hl.compile(layer, case.method, threads=case.threads, **options).topk(hidden, case.k, **masks)
        for row in range(len(hidden)):
            try:
                check_topk(facts.logits[row], other.ids[row], other.logits[row], 2 * float(facts.rounding[row]))
            except AssertionError as error:
                if other.proved[row]:
                    found.fault(f"level {level}", f"row {row} proved and wrong: {error}")
        found.rows += len(hidden)
    os.environ.pop("HEADLONG_ISA", None)
    if before is not None:
        os.environ["HEADLONG_ISA"] = before


def _ratio(engine: Any, dense: Any, hidden: Any, k: int) -> float:
    """Processor time of a batch over that of a dense pass, the better of two each."""
    spent = []
    for one in (engine, dense):
        took = []
        for _ in range(2):
            start = time.process_time()
            one.topk(hidden, k)
            took.append(time.process_time() - start)
        spent.append(min(took))
    return spent[0] / max(spent[1], 1e-3)
