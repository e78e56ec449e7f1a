"""Plans chosen by the clock: the plausible ones are made, asked some queries in turns, and the fastest is kept.

What the engine promises, ids alone or normalisers within ``eps``, for one query, for eight and for sixty-four at once: which of
all rows and of two lists of segments answers soonest, over these batches, one query counted twice. Nothing is predicted: what
is timed is what a caller would wait for on this machine.

``HEADLONG_PLAN=first`` keeps the first list, without a clock: for tests that have to be the same every time.
"""

from __future__ import annotations

import math
import os
import time
from typing import NamedTuple

import numpy as np

from headlong import native
from headlong.dtypes import Doubles
from headlong.encode.basis import basis_for, energy
from headlong.encode.segments import plausible
from headlong.encode.tiles import codes_of
from headlong.engines.base import Engine
from headlong.engines.full import Full
from headlong.plan import Codes, Plan
from headlong.promise import Promise

VARIABLE = "HEADLONG_PLAN"
BATCHES, WEIGHTS = (1, 8, 64), (2, 1, 1)
"""How many at once, and what each counts: a decoder asks one query at a time."""
SECONDS, TURNS = 0.3, 9
"""Of all timing, about, and how often each is asked at most."""
SOONER = 0.95
"""Of the other's time: what is no sooner than that is not worth a second copy."""


class Contest(NamedTuple):
    """Median seconds of a call, ``[plan][batch]``, of each plan in the order of their names."""

    names: tuple[str, ...]
    seconds: Doubles

    def __str__(self) -> str:
        each = (
            f"{name} " + ", ".join(f"{seconds / batch * 1e6:.0f}" for seconds, batch in zip(row, BATCHES, strict=True))
            for name, row in zip(self.names, self.seconds, strict=True)
        )
        return f"us a query, {', '.join(map(str, BATCHES))} at once: " + "; ".join(each)

    @property
    def fastest(self) -> int:
        """The first, or one that is clearly sooner, over all batches."""
        ratios = np.average(np.log(self.seconds / self.seconds[0]), axis=1, weights=WEIGHTS)
        ratios[0] = math.log(SOONER)
        return int(ratios.argmin())


def by_the_clock(engine: Engine, calibration: Doubles, wanted: Promise, seed: int) -> Engine:
    """The engine by the fastest of: all rows, and the plausible lists of segments; its blocks stay."""
    layer = engine.layer
    if os.environ.get(VARIABLE) == "first":
        return engine
    basis = basis_for(layer, calibration)
    made: list[Codes] = []
    for segments in plausible(layer, energy(layer, basis, calibration), wanted):
        own = engine.plan.codes
        again = own is not None and own.segments == segments
        codes = own if again else codes_of(layer, basis, segments, seed)
        if codes is not None:
            made.append(codes)
    if not made:
        return engine
    engines = [engine.with_plan(engine.plan._replace(codes=codes), wanted, "") for codes in (None, *made)]
    names = ("all rows", *(named(codes) for codes in made))
    contest = Contest(names, timed(engines, np.ascontiguousarray(some_of(calibration))))
    native.loaded().forget_ways()  # NumPy's threads looked out for work between these calls
    plan = engines[contest.fastest].plan
    method = Full() if plan == Plan() else engine.method
    return engine.with_plan(plan, wanted, f"{engine.reason}; {contest}", method)


def named(codes: Codes) -> str:
    """The segments in words: "64x8 512x4"."""
    return " ".join(f"{stop - start}x{bits}" for start, stop, bits, _ in codes.segments)


def some_of(vectors: Doubles) -> Doubles:
    """As many vectors as the largest batch takes."""
    return np.asarray(vectors[np.linspace(0, len(vectors) - 1, BATCHES[-1]).astype(int)])


def timed(engines: list[Engine], vectors: Doubles) -> Doubles:
    """Median seconds ``[engine, batch]`` of calls in turns, each engine after the others' arrays went through the caches."""
    spent: list[list[list[float]]] = [[[] for _ in BATCHES] for _ in engines]
    started = time.perf_counter()
    for turn in range(TURNS):
        for place, batch in enumerate(BATCHES):
            first = turn * 7 % (len(vectors) - batch + 1)
            for engine, times in zip(engines, spent, strict=True):
                begun = time.perf_counter()
                engine.topk(vectors[first : first + batch], min(10, engine.layer.vocab))
                times[place].append(time.perf_counter() - begun)
        if turn >= 2 and time.perf_counter() - started > SECONDS:
            break
    # The first call of each wakes what sleeps.
    return np.array([[np.median(times[1:] or times) for times in each] for each in spent])
