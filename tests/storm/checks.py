"""One case of a storm, in this process: every verb against float64; then the calls elsewhere.

What is proved has to hold: a breach is a fault. What may fail with a probability is counted, trials and failures for each
kind of promise; the storm's end compares the rates with what was promised. The calls come again alone, on other threads and
levels, from a file, at another temperature, and their cost is measured.
"""

from __future__ import annotations

import math
import os
import pickle
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from cases import MAKERS, Case, Thrown, build, compiled, facts_of
from numpy.typing import NDArray

import headlong as hl
from headlong import Affine, native
from headlong.engines.class_masks import class_mask
from headlong.engines.reference.gumbel import gumbels
from headlong.errors import HeadlongError, InputError, UnsupportedError
from headlong.links import lowering_error
from oracle import Truth, check_draw, check_topk, kept, logsumexp

Flags = NDArray[np.bool_]
WITHOUT_PROMISE = ("svd",)
"""What promises nothing: its answers are still what they say they are."""
OWN_NOISE = ("tree", "bands", "blocks", "mixture")
"""Kinds whose samples do not take one Gumbel for each class of the layer."""


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
    thrown = build(case)
    options = dict(case.options) | {"eps": case.eps, "delta": case.delta, "seed": case.number}
    if thrown.vectors is not None:
        options["calibration"] = thrown.vectors
    try:
        engine = compiled(case, thrown.layer, options)
    except HeadlongError as error:
        found.refused = f"{type(error).__name__}: {error}"[:200]
        return found
    hidden, masks = thrown.hidden, _masks(case)
    marks = class_mask(masks.get("allowed"), masks.get("exclude"), len(hidden), case.vocab)
    live = None if marks is None else np.broadcast_to(marks == 1, (len(hidden), case.vocab))
    facts, whole = facts_of(thrown, live), facts_of(thrown, None)
    _topk(found, case, engine, hidden, facts, masks)
    _ids_alone(found, case, engine, hidden, facts, masks)
    _given(found, engine, hidden, whole)
    _lse(found, engine, hidden, facts, masks)
    _sample(found, case, engine, hidden, facts, masks)
    repeated(found, case, engine, thrown, options, facts, masks)
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
    link = getattr(engine.layer, "link", None)  # that of a structured layer's parts is in its rounding
    steep = 1.0 if link is None else link.steepest
    finite = np.where(np.isfinite(facts.lse), np.abs(facts.lse), 0.0)
    return 4 * facts.rounding * steep + 2.0**-48 * (1 + finite) + engine.layer.vocab * 2.0**-52


def _stated(found: Found, where: str, engine: Any, off: Any, error: Any, slack: Any) -> None:
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
    else:
        found.count(f"normaliser, delta {promise.delta:g}", broken)
    if not math.isinf(promise.eps) and engine.name not in WITHOUT_PROMISE and (error > promise.eps * (1 + 1e-9) + slack).any():
        found.fault(where, f"error {error.max():.6g} beyond eps {promise.eps:g}")


def _topk(found: Found, case: Case, engine: Any, hidden: Any, facts: Truth, masks: Any) -> None:
    top = engine.topk(hidden, case.k, **masks)
    right = ranked(found, "topk", top, facts, engine.name)
    promise = engine.promise
    _proved(found, "topk", case, engine, top, right, masks)
    there = (top.ids >= 0) & right[:, None]
    expected = np.take_along_axis(facts.log_probs, np.maximum(top.ids, 0), 1)
    with np.errstate(invalid="ignore"):
        off = np.max(np.where(there, np.abs(top.log_probs - expected), 0.0), axis=1, initial=0.0)
    if engine.name not in WITHOUT_PROMISE and not math.isinf(promise.eps):
        _stated(found, "topk", engine, off, top.error, _slack(engine, facts))


def ranked(found: Found, where: str, top: Any, facts: Truth, name: str = "") -> Flags:
    """Which rows have the right ids and logits; a fault where one is proved and wrong.

    The logits of a mixture are sums over its parts' normalisers, each of which is known within the promise: its ids go by
    float64's sums, and ``error`` says how far its own are off.
    """
    found.rows += len(top.ids)
    right = np.ones(len(top.ids), bool)
    for row in range(len(top.ids)):
        try:
            slack = 2 * float(facts.rounding[row])
            if name == "mixture":
                check_order(facts.logits[row], top.ids[row], slack)
            else:
                check_topk(facts.logits[row], top.ids[row], top.logits[row], slack)
        except AssertionError as error:
            right[row] = False
            if top.proved[row]:
                found.fault(where, f"row {row} proved and wrong: {error}")
    return right


def check_order(reference: Any, ids: Any, slack: float) -> None:
    """``ids`` are the best of ``reference [vocab]``, in their order, but for ties within ``slack``."""
    some = ids[ids >= 0]
    assert len(some) == min(len(ids), np.isfinite(reference).sum()) == len(set(some.tolist())), f"ids {ids}"
    assert (np.diff(reference[some]) <= slack).all(), f"ids {ids} are out of order: {reference[some]}"
    left = reference.copy()
    left[some] = -np.inf
    assert left.max() <= reference[some].min(initial=np.inf) + slack, f"class {int(np.argmax(left))} is better than {some[-1]}"


def _proved(found: Found, where: str, case: Case, engine: Any, top: Any, right: Flags, masks: Any) -> None:
    """Ids are proved where that is promised, and fail as seldom as is promised elsewhere."""
    promise = engine.promise
    if engine.name in WITHOUT_PROMISE:
        return
    if promise.delta == 0 and not top.proved.all() and case.method != "experts":  # where gates tie, rounding decides
        found.fault(where, "delta is 0 and a row is not proved")
    if 0 < promise.delta < 1:
        found.count(f"ids, delta {promise.delta:g}", ~right & ~top.proved)


def _ids_alone(found: Found, case: Case, engine: Any, hidden: Any, facts: Truth, masks: Any) -> None:
    """The same ranking without a normaliser, which other code answers: blocks of classes, a look without a bet."""
    top = engine.topk(hidden, case.k, eps=math.inf, **masks)
    _proved(found, "ids alone", case, engine, top, ranked(found, "ids alone", top, facts, engine.name), masks)
    told = ~np.isnan(np.concatenate([top.log_probs, top.lse[:, None]], axis=1))
    if not told.all() if engine.promise.delta >= 1 else told.any():
        found.fault("ids alone", "NaN" if engine.promise.delta >= 1 else "log-probabilities that nobody asked for")


def _given(found: Found, engine: Any, hidden: Any, facts: Truth) -> None:
    ids = np.random.default_rng(len(hidden)).integers(0, engine.layer.vocab, (len(hidden), 3))
    answer = engine.log_prob(hidden, ids, eps=math.inf if math.isinf(engine.promise.eps) else None)
    found.rows += len(hidden)
    expected, likely = (np.take_along_axis(part, ids, 1) for part in (facts.logits, facts.log_probs))
    sums = answer.error if engine.name == "mixture" else 0.0  # whose logits are sums over parts
    with np.errstate(invalid="ignore"):
        off = np.where(answer.logits == expected, 0.0, np.abs(answer.logits - expected)).max(axis=1)
        far = np.where(answer.log_probs == likely, 0.0, np.abs(answer.log_probs - likely))
    if (off > 2 * facts.rounding + sums).any():
        found.fault("log_prob", f"logits off by {off.max():.6g}")
    if engine.name not in WITHOUT_PROMISE and not math.isinf(engine.promise.eps):
        _stated(found, "log_prob", engine, far.max(axis=1), answer.error, _slack(engine, facts))


def _lse(found: Found, engine: Any, hidden: Any, facts: Truth, masks: Any) -> None:
    if engine.name in WITHOUT_PROMISE or math.isinf(engine.promise.eps):
        return
    answer = engine.lse(hidden, **masks)
    found.rows += len(hidden)
    with np.errstate(invalid="ignore"):
        off = np.where(answer.lse == facts.lse, 0.0, np.abs(answer.lse - facts.lse))
    _stated(found, "lse", engine, off, answer.error, _slack(engine, facts))


def _sample(found: Found, case: Case, engine: Any, hidden: Any, facts: Truth, masks: Any) -> None:
    rng = np.random.default_rng([11, case.number])
    cut = (int(rng.choice([0, 0, min(7, case.vocab)])), float(rng.choice([1.0, 0.9, 0.5])), float(rng.choice([0.0, 0.0, 0.05])))
    warmth = float(rng.choice([1.0, 1.0, 0.6, 1.7, 10.0 ** rng.uniform(-6, 3)]))
    named = {"top_k": cut[0] or None, "top_p": None if cut[1] == 1 else cut[1], "min_p": cut[2] or None, "temperature": warmth}
    if not np.isfinite(facts.lse).all():  # an expert that lacks every class that a mask leaves
        try:
            engine.sample(hidden, 2, seed=case.number, **named, **masks)
            found.fault("sample", "a row has no class left, and something was drawn")
        except InputError:
            pass
        return
    drawn = engine.sample(hidden, 2, seed=case.number, **named, **masks)
    found.rows += len(hidden)
    if (drawn.ids < 0).any() or not np.isfinite(np.take_along_axis(facts.logits, np.maximum(drawn.ids, 0), 1)).all():
        found.fault("sample", "a class came that is not there")
    if engine.name in WITHOUT_PROMISE:
        return
    facts = facts._replace(exponents=facts.exponents / warmth, rounding=_bent(engine, facts) / warmth)
    if drawn.log_probs is not None:
        there = np.take_along_axis(facts.exponents, drawn.ids, 1)
        off = np.abs(drawn.log_probs - (there - logsumexp(facts.exponents)[:, None])).max(axis=1)
        size = np.abs(np.where(np.isfinite(facts.exponents), facts.exponents, 0.0)).max(axis=1)
        _stated(found, f"log_probs of draws at {warmth:.3g}", engine, off, drawn.error, _slack(engine, facts) + size * 2.0**-48)
    if engine.name not in OWN_NOISE:
        _draws(found, case, engine, facts, cut, drawn)
    # A few facts of what was drawn suffice where its noise is its own: frequencies.
    if case.vocab <= 1000 and case.number % (12 if engine.name in OWN_NOISE else 3) == 0:
        _chi_square(found, engine, hidden[:1], facts, cut, named, masks)


def _bent(engine: Any, facts: Truth) -> Any:
    """How far exponents may be off: rounding of the logits, and the table that stands for a link."""
    link = getattr(engine.layer, "link", None)
    return 1e-9 + facts.rounding if link is None else lowering_error(link) + max(1.0, link.steepest) * facts.rounding


def _draws(found: Found, case: Case, engine: Any, facts: Truth, cut: Any, drawn: Any) -> None:
    """Each draw is the best of exponents and noise among the classes that the filters keep."""
    for row in range(min(len(drawn.ids), max(1, 20_000 // case.vocab))):
        noise, failed = gumbels(case.number, row, 0, np.arange(case.vocab)), False
        try:
            winner, score = int(drawn.ids[row, 0]), float(drawn.score[row, 0])
            check_draw(facts.logits[row], facts.exponents[row], noise, cut, winner, score, float(facts.rounding[row]))
        except AssertionError as error:
            failed = True
            if drawn.proved[row, 0]:
                found.fault("sample", f"row {row}, {cut}: proved and wrong: {error}")
        found.count(f"draws, delta {engine.promise.delta:g}", np.array([failed]))


def _chi_square(found: Found, engine: Any, hidden: Any, facts: Truth, cut: Any, named: Any, masks: Any) -> None:
    from scipy.stats import chisquare

    if masks and np.ndim(next(iter(masks.values()))) == 2:
        masks = {name: ids[:1] for name, ids in masks.items()}
    draws = np.concatenate([engine.sample(hidden, 500, seed=seed, **named, **masks).ids[0] for seed in range(6)])
    ids = kept(facts.logits[0], facts.exponents[0], *cut)
    top_k, top_p, min_p = cut
    falling = -np.sort(-facts.logits[0])
    if 0 < top_k < len(falling) and falling[top_k] >= falling[top_k - 1] - 2 * facts.rounding[0]:
        return  # which classes are among the k best is a matter of rounding
    for part in (1 - 1e-9, 1 + 1e-9):  # where the boundary is a matter of rounding, either set of classes is right
        beside = kept(facts.logits[0], facts.exponents[0], top_k, top_p * part if top_p < 1 else top_p, min_p * part)
        if len(beside) != len(ids):
            return
    mass = np.exp(facts.exponents[0][ids] - facts.exponents[0][ids].max())
    expected = len(draws) * mass / mass.sum()
    counts = np.array([(draws == one).sum() for one in ids])
    often = expected >= 8
    if often.sum() < 2:
        return
    rare = ~often & (expected[~often].sum() >= 8)  # together they are often enough, or not looked at
    came, awaited = (np.append(part[often], part[rare].sum() if rare.any() else []) for part in (counts, expected))
    if not came.sum():
        found.fault("sample", "no draw is among the classes that are kept")
        return
    chance = float(chisquare(came, awaited * came.sum() / awaited.sum()).pvalue)
    found.chances.append(chance)
    if chance < 1e-9:
        found.fault("sample", f"frequencies have the chance {chance:.2g}")


LONG = 0.016
"""Seconds of a turn that a clock tells from others."""


def repeated(found: Found, case: Case, engine: Any, thrown: Thrown, options: Any, facts: Truth, masks: Any) -> None:
    """The same rows in other batches, threads and files are the same answers; those of other levels are right, too."""
    layer, hidden = thrown.layer, thrown.hidden
    if case.batch >= 8 and case.vocab * case.dim >= 500_000 and _matrix(engine):
        found.ratio = ratio(engine, hl.compile(layer, "full", eps=case.eps, threads=case.threads), hidden, case.k)
    if engine.name in WITHOUT_PROMISE:
        return
    shared = masks if not masks or np.ndim(next(iter(masks.values()))) == 1 else {}
    if not shared and masks:
        return
    whole = engine.topk(hidden, case.k, **shared)
    for row in sorted({0, len(hidden) // 2, len(hidden) - 1}):
        same(found, f"row {row} alone", case, facts, engine.topk(hidden[row : row + 1], case.k, **shared), whole, row)
    if case.number % 4 == 1:
        _kept(found, case, engine, thrown, facts, whole, shared)
    elif case.number % 4 == 2 and engine.promise.delta == 0:
        _warmer(found, case, engine, thrown, facts, masks)
    elif case.number % 4 == 0:
        for threads in {1, 2, 3} - {case.threads}:
            other = compiled(case, layer, options, threads).topk(hidden, case.k, **shared)
            same(found, f"{threads} threads", case, facts, other, whole)
        if engine.promise.delta == 0:
            _levels(found, case, layer, hidden, options, facts, masks)


def _matrix(engine: Any) -> bool:
    return isinstance(engine, hl.Engine) and engine.name not in WITHOUT_PROMISE


def same(found: Found, where: str, case: Case, facts: Truth, other: Any, whole: Any, row: int | None = None) -> None:
    """The same ids and logits to the bit; of a structured layer, whose products are NumPy's, to rounding."""
    rows = slice(None) if row is None else slice(row, row + 1)
    if case.method in MAKERS:
        ranked(found, where, other, Truth(*(part[rows] for part in facts)), case.method)
        return
    found.rows += len(other.ids)
    if (other.ids != whole.ids[rows]).any() or (other.logits != whole.logits[rows]).any():
        found.fault(where, f"gives {other.ids[:2]}, expected {whole.ids[rows][:2]}")


def _kept(found: Found, case: Case, engine: Any, thrown: Thrown, facts: Truth, whole: Any, shared: Any) -> None:
    """From a file and from a pickle."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            engine.save(Path(folder) / "engine.safetensors")
        except UnsupportedError:
            return
        loaded = hl.load(Path(folder) / "engine.safetensors", threads=case.threads)
        same(found, "a file", case, facts, loaded.topk(thrown.hidden, case.k, **shared), whole)
    copied = pickle.loads(pickle.dumps(engine))  # noqa: S301
    same(found, "a pickle", case, facts, copied.topk(thrown.hidden, case.k, **shared), whole)


def _warmer(found: Found, case: Case, engine: Any, thrown: Thrown, facts: Truth, masks: Any) -> None:
    """The same plan at another temperature."""
    if thrown.oracle is not None or case.method == "shards" or not isinstance(engine.layer.link, Affine):
        return
    top = engine.at_temperature(2.0).topk(thrown.hidden, case.k, **masks)
    ranked(found, "at temperature 2", top, facts)
    exponents = facts.exponents / 2
    shift = exponents.max(axis=1)
    finite = np.where(np.isfinite(shift), shift, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = finite + np.log(np.exp(exponents - finite[:, None]).sum(axis=1))
        off = np.where(lse == top.lse, 0.0, np.abs(lse - top.lse))
    slack = 4 * facts.rounding * engine.layer.link.steepest + 2.0**-47 * (1 + np.abs(finite)) + case.vocab * 2.0**-52
    if not math.isinf(engine.promise.eps) and (off > top.error + slack).any():
        found.fault("at temperature 2", f"lse off by {off.max():.6g}, stated {top.error.max():.6g}")


def _levels(found: Found, case: Case, layer: Any, hidden: Any, options: Any, facts: Truth, masks: Any) -> None:
    """Every other instruction set of this machine; the plainest and NumPy are slow, and tests have them."""
    before = os.environ.get("HEADLONG_ISA")
    for level in native.levels()[1:-1]:
        os.environ["HEADLONG_ISA"] = level
        ranked(found, f"level {level}", compiled(case, layer, options).topk(hidden, case.k, **masks), facts, case.method)
    os.environ.pop("HEADLONG_ISA", None)
    if before is not None:
        os.environ["HEADLONG_ISA"] = before


def ratio(engine: Any, dense: Any, hidden: Any, k: int, turns: int = 2) -> float:
    """Processor time of a batch over that of a dense pass, the least of some turns; a turn is as many calls as take long."""

    def timed(one: Any, calls: int) -> float:
        start = time.process_time()
        for _ in range(calls):
            one.topk(hidden, k)
        return time.process_time() - start

    found, calls = [math.inf, math.inf], [1, 1]
    for which, one in enumerate((engine, dense)):  # a coarse clock may stand still for a short call
        while timed(one, calls[which]) < LONG and calls[which] < 1024:
            calls[which] *= 2
    for _ in range(turns):
        for which, one in enumerate((engine, dense)):
            found[which] = min(found[which], timed(one, calls[which]) / calls[which])
    return found[0] / found[1]
