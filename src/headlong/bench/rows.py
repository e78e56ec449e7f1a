"""One layer, its engines and the rivals: what each takes and what its answers are worth, one row each and batch size.

    us      = median microseconds of a query: a call's time over its queries
    x       = us of the fastest dense product at this batch size, timed the same way / us         below 1: slower
    same    = share of the k ids that float64 puts among the best k, ties counted
    worst   = max |log p^ - log p| in nats, of the ids that were named                           absent: no log p
    read    = bytes read for a query / bytes of the float32 layer                                absent: not counted
    build   = processor time of making it, all threads

``cold``: PyTorch multiplies other weights, more than the caches hold, before each call; ``loop``: nothing but such calls. All
contestants take turns in a fresh order. The truth is the float64 logits of the stored weights, never an engine under test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import headlong
from headlong.arrays import evenly
from headlong.bench import cold, measure, rivals
from headlong.bench.machine_load import Neighbours, load_average
from headlong.bench.measure import Contestant, Progress, Schedule, Timing
from headlong.bench.oracle import Truth, true_log_probs
from headlong.engines.arguments import checked_eps, checked_hidden, checked_k
from headlong.engines.contract import Verbs
from headlong.errors import OptionError, ShapeError
from headlong.layers.matrix import Layer
from headlong.number_checks import real, whole

Row = dict[str, Any]
Record = dict[str, Any]
Stage = Callable[[str], Progress]
"""``stage(label)`` gives the progress callback of one stage."""
ENGINES = (
    "headlong", "headlong, ids only", "headlong, calibrated", "headlong, calibrated, ids only", "headlong, proved within 0.2",
    "full", "svd",
)  # fmt: skip
TIE, ROUNDING = 1e-9, 1e-9
"""In nats: log-probabilities as near count as equal, and what the truth itself may be off by."""
LARGE, LONG = 64, 0.25
"""From so many queries a call on, a turn is one call; seconds of a long call."""
DRAFTED, DRAFTS = 16, 16
"""Batches of this size are those of a drafter of tokens, which asks for so many classes."""
WAYS = ("cold", "loop")
MOST = 1 << 31


@dataclass(frozen=True)
class Settings:
    """What was asked of everyone, how the clock was read, and what speed is over (empty: the fastest dense product).

    ``eps`` and ``delta`` of our engines are those of ``compile`` where they are None. Of the ``queries`` as many as
    ``answered``, and one batch at least, are compared with float64. ``near``: of batches, nobody is timed whose call took
    more than so many times the fastest dense product's, of two calls each, and calls of ``LONG`` seconds are timed cold
    alone: they read more than the caches hold themselves; 0: everybody is, in all ways.
    """

    k: int = 10
    batches: tuple[int, ...] = (1, 8, 64)
    eps: float | None = None
    delta: float | None = None
    threads: int = 1
    queries: int = 256
    answered: int = 256
    rounds: int = 15
    calls: int = 5
    seconds: float = 20.0
    seed: int = 0
    baseline: str = ""
    near: float = 0.0
    ways: tuple[str, ...] = WAYS

    def __post_init__(self) -> None:
        for name in ("queries", "rounds", "calls"):
            whole(getattr(self, name), name, 1, MOST)
        whole(self.seed, "seed", 0, 2**64 - 1)
        if self.delta is not None:
            real(self.delta, "delta", 0.0, 1.0)
        if self.eps is not None:
            checked_eps(self.eps)
        if not self.ways or not set(self.ways) <= set(WAYS):
            raise OptionError(f"way is {', '.join(self.ways) or 'empty'}; expected {' or '.join(WAYS)}, or both")

    def classes(self, batch: int) -> int:
        """How many classes a batch of that size is asked for."""
        return DRAFTS if batch == DRAFTED and self.k == 10 else self.k


def batches(text: str) -> tuple[int, ...]:
    """``"1,8,64" -> (1, 8, 64)``"""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise OptionError(f"batch sizes {text!r}; expected whole numbers from 1 with commas between, such as 1,8,64")
    return found


def available(calibration: NDArray[Any] | None) -> list[str]:
    """Every engine that these vectors allow, then every rival that is installed."""
    return [*(name for name in ENGINES if calibration is not None or "calibrated" not in name), *rivals.installed()]


def compiled(name: str, layer: Layer, settings: Settings, calibration: NDArray[Any] | None) -> Any:
    """The engine of that name."""
    options: dict[str, Any] = {"threads": settings.threads, "seed": settings.seed}
    options |= {key: value for key in ("eps", "delta") if (value := getattr(settings, key)) is not None}
    if "ids only" in name:
        options["log_probs"] = False
    if "proved" in name:
        options |= {"eps": 0.2, "delta": 0.0}
    if "calibrated" in name:
        if calibration is None:
            raise OptionError(f"{name!r} needs calibration vectors, and there are none; name a file of them")
        options["calibration"] = calibration
    return headlong.compile(layer, name if name in ("full", "svd") else "auto", **options)


class Field(NamedTuple):
    """Those who take part; ``made`` gives a contestant that is asked for ``k`` classes."""

    made: dict[str, Callable[[int], Contestant]]
    left_out: list[dict[str, str]]

    def at(self, k: int) -> list[Contestant]:
        return [make(k) for make in self.made.values()]


def field(
    layer: Layer, names: Sequence[str] | None, settings: Settings, calibration: NDArray[Any] | None, progress: Progress
) -> Field:
    """The engines and rivals of those names, compiled and built; None: of all that can be made here."""
    wanted = available(calibration) if names is None else list(names)
    unknown = next((name for name in wanted if name not in (*ENGINES, *rivals.RIVALS)), None)
    if unknown is not None:
        raise OptionError(f"there is no contestant {unknown!r}; expected one of {'; '.join([*ENGINES, *rivals.RIVALS])}")
    made: dict[str, Callable[[int], Contestant]] = {}
    left_out: list[dict[str, str]] = []
    for done, name in enumerate(wanted):
        start = time.process_time()
        if name in ENGINES:
            try:
                engine = compiled(name, layer, settings, calibration)
            except OptionError as error:
                if names is not None:
                    raise
                left_out.append({"contestant": name, "why": str(error)})
                continue
            made[name] = _asker(name, engine, round(time.process_time() - start, 3))
        else:
            made[name] = _rival(name, layer, settings.threads)
        progress(done + 1, len(wanted))
    return Field(made, left_out)


def _asker(name: str, engine: Verbs, build: float) -> Callable[[int], Contestant]:
    about = {"engine": repr(engine), "promise": str(engine.promise), "build": build}
    about["reason"] = f"{engine.name}: {engine.reason}"
    return lambda k: Contestant(name, lambda hidden: engine.topk(hidden, k=k), about=about)


def _rival(name: str, layer: Layer, threads: int) -> Callable[[int], Contestant]:
    built: dict[int, Contestant] = {}

    def make(k: int) -> Contestant:
        if k not in built:
            start = time.process_time()
            one = rivals.contestant(name, layer, k, threads)
            built.clear()  # an index is large, and only one k is asked for at a time
            built[k] = replace(one, about={**one.about, "build": round(time.process_time() - start, 3)})
        return built[k]

    return make


def run(
    layer: Layer,
    hidden: NDArray[Any],
    names: Sequence[str] | None,
    settings: Settings,
    stage: Stage,
    calibration: NDArray[Any] | None = None,
) -> Record:
    """The rows of the named contestants at every batch size, and what a reader needs to judge them."""
    queries, settings = spread(layer, hidden, settings)
    load, neighbours = load_average(), Neighbours()
    with measure.pinned(settings.threads):
        everyone = field(layer, names, settings, calibration, stage("compile"))
        everyone.at(settings.classes(settings.batches[0]))  # whoever needs torch has loaded it before other work is made
        work = cold.OtherLayers(cold.megabytes())
        race = _Race(everyone, layer, queries, settings, work, stage)
        rows = [row for batch in settings.batches for row in race.rows(batch)]
    paths = sorted({row["path"].rpartition("/")[2] for row in rows if "path" in row})
    about = {"isa_used": paths, "load": load, "others": neighbours.share(), "emptied_by": work.made}
    shape = {"vocab": layer.vocab, "dim": layer.dim, "dtype": layer.dtype, "checksum": layer.checksum()}
    record = {"environment": measure.environment(settings.threads, **about), "layer": shape, "settings": asdict(settings)}
    return {**record, "dense": rivals.dense_installed(), "left_out": everyone.left_out, "rows": rows}


def spread(layer: Layer, hidden: NDArray[Any], settings: Settings) -> tuple[Any, Settings]:
    """Up to ``settings.queries`` of the rows, evenly spread, and the settings with what that leaves of its batches."""
    checked_k(settings.k, layer.vocab)
    if not len(hidden):
        raise ShapeError("hidden has no rows; expected one or more vectors")
    queries = np.ascontiguousarray(evenly(hidden, settings.queries))
    checked_hidden(queries, layer.dim)  # before anyone is compiled
    batches = tuple(batch for batch in settings.batches if batch <= len(queries))
    if not batches:
        least = min(settings.batches, default=1)
        raise OptionError(f"no batch size fits {len(queries):,} queries; the smallest is {least}: pass more queries")
    return queries, replace(settings, batches=batches, queries=len(queries))


class _Race(NamedTuple):
    """Who takes part, what is asked, and what is done before each cold call."""

    everyone: Field
    layer: Layer
    queries: NDArray[Any]
    settings: Settings
    work: Callable[[], None]
    stage: Stage

    def rows(self, batch: int) -> Iterator[Row]:
        settings, queries = self.settings, self.queries
        k = settings.classes(batch)
        able, rows = self.everyone.at(k), {}
        count = max(batch, min(settings.answered, len(queries)) // batch * batch)
        truth, progress = Truth.of(self.layer, queries[:count], k), self.stage(f"answer, batch {batch}")
        for done, one in enumerate(able):
            found = compared(one, self.layer, queries[:count], batch, truth)
            rows[one.name] = {"batch": batch, "k": k, "contestant": one.name, **found}
            progress(done + 1, len(able))
        ways = settings.ways
        if settings.near and batch > 1:
            able, fastest = _near(able, queries[:batch], settings.near)
            ways = ("cold",) if fastest > LONG else ways
        for way in ways:
            other, progress = self.work if way == "cold" else None, self.stage(f"time {way}, batch {batch}")
            for name, times in timed(able, queries, batch, settings, other, progress).items():
                rows[name][way] = times
        yield from rows.values()


def _dense(names: Iterable[str]) -> list[str]:
    """The dense products among contestants; the first of them where there is none."""
    return [name for name in names if name in (*rivals.DENSE, *rivals.FEW_BITS)] or list(names)[:1]


def _near(able: Sequence[Contestant], block: Any, times: float) -> tuple[list[Contestant], float]:
    """Those whose call took at most so many times the fastest dense product's, and its seconds."""
    taken = {one.name: min(measure.wall(one.call, one.prepare(block)) for _ in range(2)) for one in able}
    fastest = min(taken[name] for name in _dense(taken))
    return [one for one in able if taken[one.name] <= times * fastest], fastest


def compared(one: Contestant, layer: Layer, queries: NDArray[Any], batch: int, truth: Truth) -> Row:
    """What a contestant's answers are worth, asked ``batch`` at a time."""
    parts = [one.answer(one.call(one.prepare(queries[i : i + batch]))) for i in range(0, len(queries), batch)]
    ids = _joined(part.ids for part in parts)
    true = true_log_probs(layer, queries, ids, truth.lse)
    found: Row = {"answered": len(queries), "same": _digits((true >= truth.log_probs[:, -1:] - TIE).mean(), 6)}
    said = None if parts[0].log_probs is None else _joined(part.log_probs for part in parts)
    if said is not None and not np.isnan(said).all():  # as they are where they were not asked for
        gap = np.abs(said - true)
        found["worst"] = _digits(gap[np.isfinite(true)].max(initial=0.0), 2)
    if hasattr(parts[0], "proved"):
        found["proved"] = _digits(_joined(part.proved for part in parts).mean(), 6)
        found["outside"] = _outside(parts, true, truth)
    found |= _cost(one, parts, layer, batch)
    return found | {"about": dict(one.about)}


def _joined(parts: Iterable[Any]) -> Any:
    return np.concatenate([np.asarray(part) for part in parts])


def _outside(parts: Sequence[Any], true: Any, truth: Truth) -> int:
    """Queries whose proved ids are not the best ones, or whose log-probabilities are off by more than the error stated."""
    proved, error, said = (_joined(getattr(part, name) for part in parts) for name in ("proved", "error", "log_probs"))
    with np.errstate(invalid="ignore"):  # -inf less -inf: equal
        best = (true == truth.log_probs) | (np.abs(true - truth.log_probs) <= ROUNDING)
        near = np.isinf(error)[:, None] | (said == true) | (np.abs(said - true) <= error[:, None] + ROUNDING)
    return int(((proved & ~best.all(1)) | ~near.all(1)).sum())


def _cost(one: Contestant, parts: Sequence[Any], layer: Layer, batch: int) -> Row:
    whole = 4 * layer.vocab * layer.dim
    if "bytes" in one.about:
        return {"read": _digits(one.about["bytes"] / batch / whole, 3)}
    costs = [part.cost for part in parts if getattr(part, "cost", None) is not None]
    if not costs:
        return {}
    bytes_, rows, dense = (_joined(getattr(cost, name) for cost in costs).mean() for name in ("bytes", "rows", "dense"))
    read = {"read": _digits(bytes_ / whole, 3), "rows": _digits(rows, 4), "dense": _digits(dense, 3)}
    return read | {"path": costs[0].path}


def timed(
    able: Sequence[Contestant], queries: Any, batch: int, settings: Settings, work: Callable[[], None] | None,
    progress: Progress | None = None,
) -> dict[str, Row]:  # fmt: skip
    """The times of everyone, after other ``work`` where there is some: quartiles for a query, and how they compare with the
    fastest dense product's."""
    calls = settings.calls if batch < LARGE else 1
    schedule = Schedule(settings.rounds, 2 if batch < LARGE else 1, calls, seconds=settings.seconds, seed=settings.seed)
    if work is None:
        found = measure.contest(able, queries, batch, schedule, progress)
    else:
        found = cold.contest(able, queries, batch, replace(schedule, rounds=settings.rounds * calls), work, progress)
    return summed(found, batch, settings.baseline)


def summed(found: Sequence[Timing], batch: int, baseline: str = "") -> dict[str, Row]:
    medians = {one.contestant: float(np.median(one.seconds)) for one in found}
    over = baseline if baseline in medians else min(_dense(medians), key=medians.__getitem__)
    rows = {}
    for one in found:
        q10, q25, q75, q90 = (_digits(1e6 * value / batch, 4) for value in np.quantile(one.seconds, (0.1, 0.25, 0.75, 0.9)))
        spread = {"us": _digits(1e6 * medians[one.contestant] / batch, 4), "q10": q10, "q25": q25, "q75": q75, "q90": q90}
        x = _digits(medians[over] / medians[one.contestant], 3)
        rows[one.contestant] = {**spread, "x": x, "over": over, "calls": len(one.seconds)}
    return rows


def _digits(value: float | np.floating[Any], digits: int) -> float:
    return float(f"{float(value):.{digits}g}")
