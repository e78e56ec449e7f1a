"""Plans chosen by the clock: the plausible ones are made, asked some queries in turns, and the fastest is kept.

For ids alone and for normalisers within ``eps``, for one query, for eight and for sixty-four at once: which of the plan at
hand and of two lists of segments answers soonest. The list that is kept is the best one for what the engine promises, over
these batches;
``Codes.takes`` says where it is faster than the plan at hand. Nothing is predicted: what is timed is what a caller would
wait for on this machine.

``HEADLONG_PLAN=first`` keeps the plan at hand, without a clock: for tests that have to be the same every time.
"""

from __future__ import annotations

import math
import os
import time
from typing import NamedTuple

import numpy as np

from headlong import native
from headlong.encode.basis import LEAST_DIM, basis_for, energy
from headlong.encode.segments import by_water_filling, led_by_eight
from headlong.encode.tiles import codes_of
from headlong.engines.base import Engine
from headlong.native import Doubles
from headlong.plan import Codes, Plan

VARIABLE = "HEADLONG_PLAN"
BITS, REST = (2.6, 4.5), (5, 8)
"""Of the lists that are tried: bits a coordinate for ids alone, and of most coordinates where normalisers are promised. Few,
where a scan is bound by memory, and more, where scoring rows is dear."""
BATCHES = (1, 8, 64)
SECONDS, TURNS = 0.3, 9
"""Of all timing, about, and how often each is asked at most."""
LEAST_VOCAB, LEAST_NUMBERS = 2048, 1 << 18
"""Layers below are read in some microseconds in any way."""
SOONER = 0.95
"""Of the other's time: what is no sooner than that is not worth a second copy."""


class Contest(NamedTuple):
    """Median seconds of a call, ``[kind][batch]``: ids alone, then normalisers; of each plan in the order of their names."""

    names: tuple[str, ...]
    seconds: Doubles

    def __str__(self) -> str:
        best = self.seconds.argmin(axis=0)
        said = []
        for kind, what in enumerate(("ids", "normaliser")):
            each = []
            for b, batch in enumerate(BATCHES):
                first = best[kind, b]
                each.append(f"{self.names[first]} {self.seconds[first, kind, b] / batch * 1e6:.0f} us")
            said.append(f"{what}: " + ", ".join(each))
        return f"timed at {', '.join(map(str, BATCHES))}: " + "; ".join(said)


def with_codes(engine: Engine, calibration: Doubles, delta: float, seed: int) -> Engine:
    """The engine, and rotated codes that may fail with ``delta`` where they are faster than what it has."""
    layer = engine.layer
    if (
        os.environ.get(VARIABLE) == "first"
        or layer.vocab < LEAST_VOCAB
        or layer.vocab * layer.dim < LEAST_NUMBERS
        or layer.dim < LEAST_DIM
    ):
        return engine
    basis = basis_for(layer, calibration)
    weights = energy(layer, basis, calibration)
    vectors = np.ascontiguousarray(some_of(calibration))
    made: list[Codes] = []
    if math.isfinite(engine.promise.eps):
        lists = [led_by_eight(weights, bits) for bits in REST]
    else:
        lists = [by_water_filling(weights, bits) for bits in BITS]
    for segments in lists:
        known = any(segments == one.segments for one in made)
        codes = None if known else codes_of(layer, basis, segments, seed, native.threads(engine.threads))
        if codes is not None:
            made.append(codes)
    if not made:
        return engine
    plans = [engine.plan, *(engine.plan._replace(codes=codes) for codes in made)]
    names = ("the plan without codes", *(named(codes) for codes in made))
    contest = Contest(names, timed([engine.with_plan(plan, delta, "") for plan in plans], vectors))
    kind = int(math.isfinite(engine.promise.eps))
    chosen = 1 + int(np.log(contest.seconds[1:, kind]).mean(axis=1).argmin())
    faster = contest.seconds[chosen] < SOONER * contest.seconds[0]
    # A normaliser is the same number in every batch: all are found by one plan.
    faster[1] = np.log(contest.seconds[chosen, 1] / contest.seconds[0, 1]).mean() < math.log(SOONER)
    if not faster[kind].any():
        return engine.with_plan(engine.plan, delta, f"{engine.reason}; {contest}")
    takes = tuple(tuple(map(bool, row)) for row in faster)
    plan: Plan = engine.plan._replace(codes=made[chosen - 1]._replace(takes=takes))  # type: ignore[arg-type]
    return engine.with_plan(plan, delta, f"{engine.reason}; {contest}")


def named(codes: Codes) -> str:
    """The segments in words: "64x8 512x4"."""
    return " ".join(f"{stop - start}x{bits}" for start, stop, bits, _ in codes.segments)


def some_of(vectors: Doubles) -> Doubles:
    """As many vectors as the largest batch takes."""
    return np.asarray(vectors[np.linspace(0, len(vectors) - 1, BATCHES[-1]).astype(int)])


def timed(engines: list[Engine], vectors: Doubles) -> Doubles:
    """Median seconds ``[engine, kind, batch]`` of calls in turns, each engine after the others' arrays went through the
    caches.
    """
    spent: list[list[list[float]]] = [[[] for _ in range(2 * len(BATCHES))] for _ in engines]
    started = time.perf_counter()
    for turn in range(TURNS):
        for place, (eps, batch) in enumerate((eps, batch) for eps in (math.inf, None) for batch in BATCHES):
            first = turn * 7 % (len(vectors) - batch + 1)
            for engine, times in zip(engines, spent, strict=True):
                aim = 0.01 if eps is None and math.isinf(engine.promise.eps) else eps
                begun = time.perf_counter()
                engine.topk(vectors[first : first + batch], min(10, engine.layer.vocab), eps=aim)
                times[place].append(time.perf_counter() - begun)
        if turn >= 2 and time.perf_counter() - started > SECONDS:
            break
    # The first call of each wakes what sleeps.
    return np.array([[np.median(times[1:] or times) for times in each] for each in spent]).reshape(
        len(engines), 2, len(BATCHES)
    )
