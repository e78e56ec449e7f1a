"""Which plan reads this layer fastest here: measured on hidden vectors, not guessed.

    chosen = argmin over plans of   median seconds of one query        among those that kept the promise on held-out vectors

The vectors are split in the order they came, since neighbours are often alike: the first ones calibrate every plan, the last
ones are asked, and no plan has seen them. Plans meet in pairs, interleaved, the best so far against the next one, so that
two engines at most are in memory. What was measured is the engine that comes back, with the reasons in its ``reason``.

Not here: how plans are built (``previews/``, ``encode/``), how clocks are read (``measure.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import headlong
from headlong import native
from headlong.arrays import hidden64
from headlong.bench import measure
from headlong.bench.measure import Contestant, Progress, Schedule, silent
from headlong.bench.oracle import Truth, true_log_probs
from headlong.dtypes import Doubles
from headlong.encode.basis import LEAST_DIM
from headlong.engines.base import Engine
from headlong.errors import InputError, OptionError, ShapeError, named
from headlong.layers.matrix import Layer
from headlong.report.tuning import Report, Trial, reasons

HELD, FEWEST = 128, 16
"""Held-out vectors at most, and vectors at all at least; a quarter of the vectors is held out."""
BITS = (2.6, 3.5, 4.5, 6.0, 8.0)
"""Of a coordinate on average, of the rotated codes that are tried."""
NEAR = 0.97
"""A challenger has to be this much faster: what is alike stays with what was tried first."""
TIE = 1e-9
"""Log-probabilities this near are equal: ids may differ."""
SHORT = Schedule(rounds=5, settle=1, calls=4, pause=0.02, seconds=4.0)


class Task(NamedTuple):
    """What every plan is measured on."""

    layer: Layer
    calibration: Doubles
    held: Doubles
    truth: Truth
    k: int
    compiled: dict[str, Any]


def tune(
    layer: Layer,
    hidden: Any,
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
        raise ShapeError(f"hidden has {len(vectors)} rows; tuning sets some aside and needs {FEWEST} or more: pass more")
    if not 1 <= k <= layer.vocab:
        raise OptionError(f"k is {k}; expected 1 to the layer's {layer.vocab} classes")
    held = vectors[len(vectors) - len(vectors) // 4 :]
    calibration = vectors[: len(vectors) - len(held)]
    held = held[:: -(-len(held) // HELD)]
    task = Task(
        layer, calibration, held, Truth.of(layer, held, k), k,
        {"eps": eps, "delta": delta, "threads": threads, "seed": seed},
    )  # fmt: skip
    count = native.threads(threads)
    with measure.pinned(count):
        contest = _tournament(task, progress or silent)
        assert contest.best is not None
        chosen, engine = contest.best
    report = Report(tuple(contest.trials), chosen.name, len(held), count)
    engine.reason = "\n".join(reasons(report))
    return engine, report


class _Contest:
    """Everyone against the best so far; of two that keep the promise the faster one stays."""

    def __init__(self, task: Task, progress: Progress) -> None:
        self.task, self.progress = task, progress
        self.trials: list[Trial] = []
        self.best: tuple[Trial, Engine] | None = None

    def meet(self, name: str, method: str, **options: Any) -> Trial:
        engine, took = _built(self.task, method, options)
        trial = _judged(self.task, name, options, engine, took)
        if self.best is None:
            trial = trial._replace(seconds=_contest(self.task.held, {"next": engine}, self.task.k)[0])
        else:
            ours, theirs = _contest(self.task.held, {"best": self.best[1], "next": engine}, self.task.k)
            # On the scale of the best one's first contest, so that a machine that got busy since is not held against anyone.
            trial = trial._replace(seconds=theirs * self.best[0].seconds / ours)
        self.trials.append(trial)
        if self.best is None or (trial.kept, -trial.seconds) > (self.best[0].kept, -self.best[0].seconds * NEAR):
            self.best = trial, engine
        self.progress(len(self.trials), len(BITS) + 1)
        return trial


def _tournament(task: Task, progress: Progress) -> _Contest:
    """Rotated codes of fewer and of more bits, no codes."""
    contest = _Contest(task, progress)
    for bits in BITS if task.layer.dim >= LEAST_DIM else ():
        contest.meet(f"rotated codes of {bits:g} bits", "codes", bits=bits)
    contest.meet("full", "full")
    progress(len(contest.trials), len(contest.trials))
    return contest


def _built(task: Task, method: str, options: dict[str, Any]) -> tuple[Engine, float]:
    vectors = None if method == "full" else task.calibration
    start = time.perf_counter()
    engine = headlong.compile(task.layer, method, calibration=vectors, **task.compiled, **options)
    return engine, time.perf_counter() - start


def _judged(task: Task, name: str, options: dict[str, Any], engine: Engine, took: float) -> Trial:
    """Its answers about the held-out vectors against float64, and what one query reads."""
    top = engine.topk(task.held, task.k)
    true = true_log_probs(task.layer, task.held, top.ids, task.truth.lse)
    wrong = int((np.abs(np.sort(true, axis=1)[:, ::-1] - task.truth.log_probs) > TIE).any(axis=1).sum())
    worst = float(np.abs(top.log_probs - true).max()) if math.isfinite(engine.promise.eps) else math.inf
    single = [engine.topk(row[None], task.k).cost for row in task.held[:FEWEST]]
    codes = 0.0 if engine.plan.codes is None else engine.plan.codes.tiles.nbytes / 2**20
    # A rate of failures that a promise of this many queries could hardly show is taken for kept.
    allowed = engine.promise.delta * len(task.held) + 3 * math.sqrt(engine.promise.delta * len(task.held))
    return Trial(
        name, options, math.inf, float(np.mean([cost.bytes[0] for cost in single])),
        float(np.mean([cost.rows[0] for cost in single])), codes, took, worst, wrong, float(np.mean(top.proved)),
        wrong <= allowed,
    )  # fmt: skip


def _contest(queries: Doubles, engines: dict[str, Engine], k: int) -> list[float]:
    """Median seconds of one call of each."""

    def asking(engine: Engine) -> Callable[[Any], Any]:
        return lambda hidden: engine.topk(hidden, k)

    field = [Contestant(name, asking(engine)) for name, engine in engines.items()]
    return [float(np.median(timing.seconds)) for timing in measure.contest(field, queries, 1, SHORT)]


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
