"""Plans chosen by the clock: the plausible ones are made, asked some queries in turns, and the fastest is kept.

What the engine promises, ids alone or normalisers within ``eps``, for one query, for eight and for sixty-four at once: which of
the plan at hand and of two lists of segments answers soonest, over these batches. Codes take the place of int8 levels, and
blocks stay. Nothing is predicted: what is timed is what a caller would wait for on this machine.

``HEADLONG_PLAN=first`` keeps the plan at hand, without a clock: for tests that have to be the same every time.
"""

from __future__ import annotations

import math
import os
import time
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from headlong import native
from headlong.encode.basis import LEAST_DIM, basis_for, energy
from headlong.encode.segments import by_water_filling, led_by_eight
from headlong.encode.tiles import codes_of
from headlong.engines.base import Engine
from headlong.native import Doubles
from headlong.plan import Codes, Plan, Segment
from headlong.previews.int8 import six_bits

VARIABLE = "HEADLONG_PLAN"
BITS, REST = (2.6, 4.5), 5
"""Of the lists that are tried: bits a coordinate for ids alone, and of most coordinates where normalisers are promised: that or
eight. Few, where a scan is bound by memory, and more, where scoring rows is dear."""
BATCHES = (1, 8, 64)
SECONDS, TURNS = 0.3, 9
"""Of all timing, about, and how often each is asked at most."""
LEAST_VOCAB, LEAST_NUMBERS = 2048, 1 << 18
"""Layers below are read in some microseconds in any way."""
UNTIMED, UNTIMED_DIM, WIDE, TURNED = 1 << 22, 4096, 16, 512
"""Weights from which on codes are made without a contest; coordinates up to which; classes a coordinate, for a query's rotation
to be a small part of what it reads; and coordinates of a rotation: larger ones take long to make."""
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
        ratios = np.log(self.seconds / self.seconds[0]).mean(axis=1)
        ratios[0] = math.log(SOONER)
        return int(ratios.argmin())


def with_codes(engine: Engine, calibration: Doubles | None, delta: float, seed: int) -> Engine:
    """The engine, and rotated codes that may fail with ``delta`` where they are faster than what it has.

    Without vectors there is nothing to time: large layers have codes of eight bits.
    """
    layer = engine.layer
    if (
        os.environ.get(VARIABLE) == "first"
        or layer.vocab < LEAST_VOCAB
        or layer.vocab * layer.dim < LEAST_NUMBERS
        or layer.dim < LEAST_DIM
    ):
        return engine
    basis, most = basis_for(layer, calibration), 6 if six_bits(layer) else 8
    plan: Plan = engine.plan._replace(rotation=None, base=None, centre=None, levels=())
    if calibration is None:
        proofs = delta == 0 and math.isfinite(engine.promise.eps)  # two planes prove normalisers, eight bits seldom do
        small = layer.vocab * layer.dim < UNTIMED or layer.vocab < WIDE * layer.dim or layer.dim > UNTIMED_DIM
        if proofs or small or plan.blocks is not None:
            return engine
        edges = [*range(0, layer.dim - TURNED // 2, TURNED), layer.dim] if layer.dim > TURNED else [0, layer.dim]
        runs = tuple(Segment(start, stop, most) for start, stop in pairwise(edges))
        codes = codes_of(layer, basis, runs, seed, native.threads(engine.threads))
        reason = f"{engine.reason}; rotated codes of {most} bits, without calibration vectors"
        return engine if codes is None else engine.with_plan(plan._replace(codes=codes), delta, reason)
    weights = energy(layer, basis, calibration)
    vectors = np.ascontiguousarray(some_of(calibration))
    made: list[Codes] = []
    if math.isfinite(engine.promise.eps):
        lists = [led_by_eight(weights, bits) for bits in (REST, most)]
    else:
        lists = [by_water_filling(weights, bits) for bits in BITS]
    for segments in lists:
        known = any(segments == one.segments for one in made)
        codes = None if known else codes_of(layer, basis, segments, seed, native.threads(engine.threads))
        if codes is not None:
            made.append(codes)
    if not made:
        return engine
    plans = [engine.plan, *(plan._replace(codes=codes) for codes in made)]
    names = ("without rotated codes", *(named(codes) for codes in made))
    contest = Contest(names, timed([engine.with_plan(plan, delta, "") for plan in plans], vectors))
    return engine.with_plan(plans[contest.fastest], delta, f"{engine.reason}; {contest}")


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
