"""The calls of a case elsewhere: alone, on other threads and levels, from a file, at another temperature, and their cost."""

from __future__ import annotations

import math
import os
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, Thrown, compiled
from checks import WITHOUT_PROMISE, Found, ranked
from structured import MAKERS

import headlong as hl
from headlong import Affine, native
from headlong.errors import UnsupportedError
from oracle import Truth

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
