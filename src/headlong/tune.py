"""Which plan reads this layer fastest here: measured on hidden vectors, not guessed.

    chosen = argmin over plans of   median seconds of one query        among those that kept the promise on held-out vectors

The vectors are split in the order they came, since neighbours are often alike: the first ones calibrate every plan, the last
ones are asked, and no plan has seen them. Who meets whom, and whose time counts, is :mod:`headlong.engines.contest`'s business.
What was measured is the engine that comes back, with the reasons in its ``reason``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import headlong
from headlong import native
from headlong.arrays import hidden64
from headlong.bench import measure
from headlong.bench.measure import Progress, silent
from headlong.bench.oracle import Truth, true_log_probs
from headlong.dtypes import Doubles
from headlong.encode.basis import LEAST_DIM
from headlong.engines import contest
from headlong.engines.base import Engine
from headlong.errors import InputError, OptionError, ShapeError, named
from headlong.layers.matrix import Layer
from headlong.report.tuning import Report, Trial, reasons

FEWEST = 16
"""Vectors at all at least."""
BITS = (2.6, 3.5, 4.5, 6.0, 8.0)
"""Bits of a coordinate, on average, of the rotated codes that are tried."""
TIE = 1e-9
"""Log-probabilities this near are equal: ids may differ."""


def tune(
    layer: Layer,
    hidden: ArrayLike,
    *,
    k: int = 10,
    eps: float = 0.01,
    delta: float = 1e-6,
    threads: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Engine, Report]:
    """The fastest engine for ``layer`` on vectors like ``hidden [n, dim]`` that keeps the promise, and why it is that one."""
    if not isinstance(layer, Layer):
        raise InputError(f"layer is {named(layer)}; expected headlong.Layer(weight, bias)")
    vectors = hidden64(hidden, layer.dim, "hidden")
    if len(vectors) < FEWEST:
        raise ShapeError(f"hidden has {len(vectors):,} rows; tuning sets some aside and needs {FEWEST} or more: pass more")
    if not 1 <= k <= layer.vocab:
        raise OptionError(f"k is {k}; expected 1 to the layer's {layer.vocab:,} classes")
    calibration, held = contest.held_out(vectors)
    truth, count, tell = Truth.of(layer, held, k), native.threads(threads), progress or silent
    plans: list[tuple[str, str, dict[str, Any]]] = [
        *((f"rotated codes of {bits:g} bits", "codes", {"bits": bits}) for bits in BITS if layer.dim >= LEAST_DIM),
        ("full", "full", {}),
    ]
    trials: dict[str, Trial] = {}

    def contestants() -> Iterator[tuple[str, Engine]]:
        for number, (name, method, options) in enumerate(plans):
            vectors, start = None if method == "full" else calibration, time.perf_counter()
            how: dict[str, Any] = {"eps": eps, "delta": delta, "threads": threads, "seed": seed, **options}
            engine = headlong.compile(layer, method, calibration=vectors, **how)
            took = time.perf_counter() - start
            trials[name] = judged(engine, held, truth, k)._replace(name=name, options=options, build=took)
            yield name, engine
            tell(number + 1, len(plans))

    with measure.pinned(count):
        found, engine = contest.fastest(contestants(), held, k, (1,), lambda name, _: trials[name].kept)
    timed = zip(trials.values(), found.seconds[:, 0], strict=True)
    report = Report(tuple(one._replace(seconds=float(seconds)) for one, seconds in timed), found.fastest, len(held), count)
    engine.reason = "\n".join(reasons(report))
    return engine, report


def judged(engine: Engine, held: Doubles, truth: Truth, k: int) -> Trial:
    """Its answers about the held-out vectors against float64, and what one query reads."""
    top = engine.topk(held, k)
    true = true_log_probs(engine.layer, held, top.ids, truth.lse)
    wrong = int((np.abs(np.sort(true, axis=1)[:, ::-1] - truth.log_probs) > TIE).any(axis=1).sum())
    worst = float(np.abs(top.log_probs - true).max()) if math.isfinite(engine.promise.eps) else math.inf
    single = [engine.topk(row[None], k).cost for row in held[:FEWEST]]
    codes = 0.0 if engine.plan.codes is None else engine.plan.codes.tiles.nbytes / 2**20
    # A rate of failures that a promise of this many queries could hardly show is taken for kept.
    allowed = engine.promise.delta * len(held) + 3 * math.sqrt(engine.promise.delta * len(held))
    return Trial(
        "", {}, math.inf, float(np.mean([cost.bytes[0] for cost in single])),
        float(np.mean([cost.rows[0] for cost in single])), codes, 0.0, worst, wrong, float(np.mean(top.proved)),
        wrong <= allowed,
    )  # fmt: skip


def as_record(report: Report, engine: Engine) -> dict[str, Any]:
    """JSON for programs; infinite numbers are null."""

    def plain(entry: Any) -> dict[str, Any]:
        return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in entry._asdict().items()}

    return {
        "environment": measure.environment(report.threads, isa_used=[native.isa()]),
        "layer": {"vocab": engine.layer.vocab, "dim": engine.layer.dim, "dtype": engine.layer.dtype},
        "engine": repr(engine),
        "promise": str(engine.promise),
        "chosen": report.chosen,
        "held": report.held,
        "trials": [plain(trial) for trial in report.trials],
        "runs": [],
    }
