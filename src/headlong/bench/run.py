"""One layer, its engines and the rivals: what each answers, against float64, and how long each takes.

::

    record = {environment, layer, settings, answers: one entry per contestant,
              runs: one entry per contestant and batch, calls in a loop;  cold: the same, the caches emptied before each call}

Raw only: ids, their true log-probabilities, each query's own error and proof, bytes, and the time of every single call.
Agreement, worst errors, medians and speed-ups are :mod:`headlong.report`'s, so a new column needs no new run. The truth is
the float64 logits of the stored weights, computed here in blocks of classes and never by an engine under test.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

import headlong
from headlong.arrays import evenly
from headlong.bench import cold, measure, rivals
from headlong.bench.measure import Clock, Contestant, Progress, Schedule
from headlong.bench.oracle import Doubles, Truth, true_log_probs
from headlong.bench.settings import Settings
from headlong.costs.machine_load import Neighbours, load_average
from headlong.engines.arguments import checked_hidden, checked_k
from headlong.errors import OptionError, ShapeError
from headlong.layers.matrix import Layer
from headlong.plan import Plan

Stage = Callable[[str], Progress]
"""``stage(label)`` gives the progress callback of one stage."""

STATED = ("proved", "error", "log_probs")
ROUNDING = 1e-9
"""What the truth itself may be off by, in nats."""


class Entry(NamedTuple):
    """An engine as a contestant: its method, what it is compiled with, and what each ``topk`` is asked for."""

    method: str
    compiled: Mapping[str, Any]
    asked: Mapping[str, Any]


def engines(settings: Settings) -> dict[str, Entry]:
    """Every engine that reads one matrix, under the name the reports use; those named calibrated need such vectors."""
    promise = {"eps": settings.eps, "delta": settings.delta}
    return {
        "full": Entry("full", {}, {}),
        "cascade": Entry("cascade", promise, {}),
        "cascade, ids only": Entry("cascade", promise, {"eps": math.inf}),
        "calibrated, ids only": Entry("cascade", {"eps": math.inf}, {}),
        "calibrated, default promise": Entry("cascade", {}, {}),
        "calibrated, likely normaliser": Entry("cascade", {"over": ("query", "calibration")}, {}),
        "calibrated, proved within 0.05": Entry("cascade", {"eps": 0.05, "delta": 0.0}, {}),
        "calibrated widths, ids but for 0.01": Entry(
            "cascade", {"eps": math.inf, "delta_ids": 0.01}, {"eps": math.inf}
        ),
        "4 bits over the rotation, ids but for 0.01": Entry(
            "cascade", {"eps": math.inf, "delta_ids": 0.01, "over": "rotation", "bits": 4}, {"eps": math.inf}
        ),
        "svd": Entry("svd", {}, {}),
        "auto": Entry("auto", promise, {}),
    }


def calibrated(name: str) -> bool:
    """Whether an engine of that name is compiled with calibration vectors."""
    return name.startswith("calibrated")


def contestants(
    layer: Layer, names: Iterable[str], settings: Settings, progress: Progress, calibration: Any = None,
    left_out: list[dict[str, str]] | None = None,
) -> list[Contestant]:  # fmt: skip
    """The engines and rivals of those names, compiled and built; with a list for them, engines that cannot be made with these
    vectors are left out and say why, where they are refused otherwise."""
    wanted, entries = list(names), engines(settings)
    unknown = next((name for name in wanted if name not in entries and name not in rivals.RIVALS), None)
    if unknown is not None:
        raise OptionError(f"there is no contestant {unknown!r}; expected one of {'; '.join([*entries, *rivals.RIVALS])}")
    compiled: dict[str, Any] = {}
    built = []
    for done, name in enumerate(wanted):
        start = time.perf_counter()
        if name in entries:
            entry = entries[name]
            key = f"{entry.method} {sorted(entry.compiled.items())} {calibrated(name)}"
            if calibrated(name) and calibration is None:
                raise OptionError(f"{name!r} needs calibration vectors, and there are none; name a file of them")
            if key not in compiled:
                options = {**entry.compiled, "threads": settings.threads, "seed": settings.seed}
                options |= {"calibration": calibration} if calibrated(name) else {}
                try:
                    compiled[key] = headlong.compile(layer, method=entry.method, **options), time.perf_counter() - start
                except OptionError as error:
                    if left_out is None:
                        raise
                    left_out.append({"contestant": name, "why": str(error)})
                    continue
            built.append(engine_contestant(name, compiled[key][0], settings.k, entry.asked, compiled[key][1]))
        else:
            one = rivals.contestant(name, layer, settings.k, settings.threads)
            built.append(replace(one, about={**one.about, "build": round(time.perf_counter() - start, 3)}))
        progress(done + 1, len(wanted))
    return built


def kept(plan: Plan) -> int:
    """Bytes that a plan keeps in memory beside the layer."""
    arrays = [getattr(level, part) for level in plan.levels for part in ("codes", "scale", "slack")]
    return sum(array.nbytes for array in [*arrays, plan.rotation, plan.base] if array is not None)


def engine_contestant(name: str, engine: Any, k: int, asked: Mapping[str, Any], build: float = 0.0) -> Contestant:
    """``engine.topk(hidden, k, **asked)``."""
    promise = engine.promise._replace(eps=asked["eps"]) if "eps" in asked else engine.promise
    about = {"engine": repr(engine), "promise": str(promise), "memory": kept(engine.plan), "build": round(build, 3)}
    about["reason"] = f"{engine.name}: {engine.reason}"
    return Contestant(name, lambda hidden: engine.topk(hidden, k=k, **asked), about=about)


def default_names(calibration: bool = False) -> list[str]:
    """All engines, then all rivals that are installed."""
    return [*(name for name in engines(Settings()) if calibration or not calibrated(name)), *rivals.installed()]


def run(
    layer: Layer, hidden: Any, names: Sequence[str] | None, settings: Settings, stage: Stage, calibration: Any = None
) -> dict[str, Any]:
    """Answers and interleaved times of the named contestants on up to ``settings.queries`` of the hidden vectors; None: of all
    that can be made here, and ``left_out`` says who cannot."""
    queries, settings = spread(layer, hidden, settings)
    load, neighbours = load_average(), Neighbours()
    with measure.pinned(settings.threads):
        left_out: list[dict[str, str]] | None = [] if names is None else None
        wanted = default_names(calibration is not None) if names is None else names
        field = contestants(layer, wanted, settings, stage("compile"), calibration, left_out)
        record = answered(field, layer, queries, settings, stage)
        record |= {"left_out": left_out} if left_out else {}
        schedule = Schedule(settings.rounds, calls=settings.calls, seconds=settings.seconds, seed=settings.seed)
        if "cold" in settings.ways:
            work = cold.OtherLayers(cold.megabytes())
            record |= {"emptied_by": work.made, "cold": []}
            for batch in settings.batches:
                record["cold"] += timed_cold(field, queries, batch, settings, work, stage)
        for batch in settings.batches if "loop" in settings.ways else ():
            record["runs"] += timed(field, queries, batch, schedule, stage)
    isa = _isa_used([*record["runs"], *record.get("cold", [])])
    made = measure.environment(settings.threads, isa_used=isa, load=load, others=neighbours.share())
    return {"environment": made, **record}


def spread(layer: Layer, hidden: Any, settings: Settings) -> tuple[Any, Settings]:
    """Up to ``settings.queries`` of the rows, evenly spread, and the settings with what that leaves of its batches."""
    checked_k(settings.k, layer.vocab)
    if not len(hidden):
        raise ShapeError("hidden has no rows; expected one or more vectors")
    queries = evenly(hidden, settings.queries)
    checked_hidden(queries, layer.dim)  # before anyone is compiled
    batches = tuple(batch for batch in settings.batches if batch <= len(queries))
    if not batches:
        least = min(settings.batches, default=1)
        raise OptionError(f"no batch size fits {len(queries)} queries; the smallest is {least}: pass more queries")
    return queries, replace(settings, batches=batches, queries=len(queries))


def answered(
    field: Sequence[Contestant], layer: Layer, queries: Any, settings: Settings, stage: Stage, truth: Truth | None = None
) -> dict[str, Any]:
    """A record with everyone's answers beside the truth, and no runs yet."""
    truth = truth or Truth.of(layer, queries, settings.k)
    answers, progress = [], stage("answer")
    for done, one in enumerate(field):
        answers.append(asked(one, layer, queries, truth))
        progress(done + 1, len(field))
    return {
        "layer": layer_facts(layer),
        "settings": asdict(settings),
        "truth": {"ids": truth.ids.tolist(), "log_probs": _decimals(truth.log_probs)},
        "answers": answers,
        "runs": [],
    }


def layer_facts(layer: Layer) -> dict[str, Any]:
    return {"vocab": layer.vocab, "dim": layer.dim, "dtype": layer.dtype, "checksum": layer.checksum()}


def timed(
    field: Sequence[Contestant], queries: Any, batch: int, schedule: Schedule, stage: Stage, clock: Clock = measure.wall
) -> list[dict[str, Any]]:
    """One entry for each contestant at this batch size: what it costs, and the time of every call of the loop."""
    costs, label = _costs(field, queries, batch), stage(f"time in a loop, batch {batch}")
    return _entries(costs, measure.contest(field, queries, batch, schedule, label, clock))


def timed_cold(
    field: Sequence[Contestant], queries: Any, batch: int, settings: Settings, work: Callable[[], None], stage: Stage
) -> list[dict[str, Any]]:
    """As :func:`timed`, as many calls, one a turn, each after other work."""
    costs, label = _costs(field, queries, batch), stage(f"time cold, batch {batch}")
    rounds = settings.rounds * settings.calls
    return _entries(costs, cold.contest(field, queries, batch, rounds, work, label, settings.seconds, settings.seed))


def _costs(field: Sequence[Contestant], queries: Any, batch: int) -> dict[str, dict[str, Any]]:
    return {one.name: _cost(one, queries, batch) for one in field}


def _entries(costs: Mapping[str, Mapping[str, Any]], timings: Iterable[measure.Timing]) -> list[dict[str, Any]]:
    return [
        {"contestant": name, "batch": batch, **costs[name], "seconds": [_significant(value, 5) for value in seconds]}
        for name, batch, seconds in timings
    ]


def asked(one: Contestant, layer: Layer, queries: Any, truth: Truth, block: int = 64) -> dict[str, Any]:
    """What the contestant says about every query, beside the truth about the ids that it names, where they are others."""
    parts = [one.answer(one.call(one.prepare(queries[i : i + block]))) for i in range(0, len(queries), block)]
    ids = np.concatenate([np.asarray(part.ids) for part in parts])
    true = true_log_probs(layer, queries, ids, truth.lse)
    entry: dict[str, Any] = {"contestant": one.name, "about": dict(one.about)}
    if not np.array_equal(ids, truth.ids):
        entry |= {"ids": ids.tolist(), "true": _decimals(true)}
    if parts[0].log_probs is not None:
        entry["gap"] = _numbers(np.concatenate([np.asarray(part.log_probs) for part in parts]) - true, 2)
    if hasattr(parts[0], "proved"):
        entry["error"] = _numbers(np.concatenate([np.asarray(part.error) for part in parts]), 2)
        entry["outside"] = _outside(parts, true, truth)
        entry["proved"] = [int(value) for part in parts for value in np.asarray(part.proved)]
    return entry


def _outside(parts: Sequence[Any], true: Doubles, truth: Truth) -> int:
    """Queries whose proved ids are not the best ones, or whose log-probabilities are off by more than the error stated."""
    proved, error, said = (np.concatenate([np.asarray(getattr(part, name)) for part in parts]) for name in STATED)
    with np.errstate(invalid="ignore"):  # -inf less -inf: equal
        best = (true == truth.log_probs) | (np.abs(true - truth.log_probs) <= ROUNDING)
        near = (said == true) | (np.abs(said - true) <= error[:, None] + ROUNDING)
    return int(((proved & ~best.all(1)) | ~near.all(1)).sum())


def _cost(one: Contestant, queries: Any, batch: int) -> dict[str, Any]:
    """Mean bytes and rows per query at this batch size, and the path, where the contestant counts them."""
    if "bytes" in one.about:
        return {"bytes": one.about["bytes"] / batch}
    starts = range(0, min(len(queries), max(64, batch)) - batch + 1, batch)
    costs: list[Any] = [getattr(one.answer(one.call(one.prepare(queries[i : i + batch]))), "cost", None) for i in starts]
    if costs[0] is None:
        return {}
    return {
        "bytes": round(float(np.mean([np.mean(cost.bytes) for cost in costs]))),
        "rows": round(float(np.mean([np.mean(cost.rows) for cost in costs])), 1),
        "dense": round(float(np.mean([np.mean(cost.dense) for cost in costs])), 4),
        "path": costs[0].path,
    }


def _isa_used(runs: list[dict[str, Any]]) -> list[str]:
    return sorted({run["path"].rpartition("/")[2] for run in runs if "path" in run})


def _significant(value: float, digits: int) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _decimals(log_probs: Doubles) -> list[list[float | None]]:
    """Six decimals; None for -inf."""
    return [[round(value, 6) if math.isfinite(value) else None for value in row] for row in log_probs.tolist()]


def _numbers(values: Any, digits: int) -> list[Any]:
    """Nested lists of rounded numbers; None for what is not finite, which JSON cannot say."""
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return [_numbers(row, digits) for row in values]
    return [_significant(float(value), digits) for value in values]
