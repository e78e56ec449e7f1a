"""The terms on this machine: a few short trials of the native kernels, a fraction of a second in all.

    terms = terms_of(times),   times the least of several runs, of one measurement or of many

Others can only slow a run down. A term that is the difference of two runs may come out too small for that, so what is kept of
several measurements is the least of each time, not of each term. What is read means nothing: codes are scrambled numbers and
rows are ones, of sizes that stand for a layer in the caches and for one that is not.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.native import Floats, Halves
from headlong.plan import Level, Plan, Term

RUNS, AGAIN, PIECES = 7, 21, 32
LARGE, SMALL, LITTLE = 1 << 27, 1 << 20, 1 << 17
"""Bytes of which caches hold a small part at most, that most caches hold, and that are read before the last thread has
woken."""
CLASSES, DIM, LONGER, TOGETHER, FEW = 8192, 128, 384, 8, 2
"""Of the layer whose codes are multiplied, and of one with longer rows: a class costs a query something beside its products.
Queries at once. Bits of the codes that are unpacked."""
MANY, NARROW_DIM = 1 << 15, 64
"""Classes of the layer whose normaliser is proved, and its columns."""
CLOSE, WIDE, ONE_IN = 0.15, 2.0, 64
"""Radii: those of one class in so many have to be narrowed for the proof."""
GATHERED, SHORT, LONG = 2048, 64, 512
"""Rows that are read alone, and how many numbers they have."""
AIM = 0.2
"""Of the normaliser that is proved, in nats."""
SPREAD, CODE = 1.5, 74.0
"""Of the logits, and of a scrambled code: root mean squares."""
BEST = 4 * SPREAD
"""The exact logit of every row: about that of the best of some thousand estimates, so that few others could be better."""
SCRAMBLE = np.uint32(2654435761)


def trials(threads: int) -> dict[str, float]:
    """What is timed, each in nanoseconds."""
    numbers = np.ones(LARGE // 2, np.float16)
    return {
        "memory": memory(numbers, threads),
        "cache": scan(SMALL, threads),
        **products(threads),
        **unpacked(threads),
        "short row": gather(numbers.reshape(-1, SHORT), threads),
        "long row": gather(numbers.reshape(-1, LONG), threads),
        **narrowed(threads),
        "level": LITTLE / native.bandwidth(LITTLE, threads, 4 * RUNS),
        "call": call(threads),
    }


TIMED = (
    "memory", "cache", "half a batch", "batch", "half a longer batch", "longer batch", "half unpacked", "unpacked", "short row",
    "long row", "ids", "proof", "level", "call",
)  # fmt: skip
"""The names of :func:`trials`."""


def terms_of(times: Mapping[str, float]) -> dict[str, float]:
    """Every term of :class:`~headlong.costs.Costs` in nanoseconds."""
    byte = (times["long row"] - times["short row"]) / (2 * (LONG - SHORT))
    query, longer = (
        (times[whole] - times[f"half a {whole}"]) / (TOGETHER - TOGETHER // 2) for whole in ("batch", "longer batch")
    )
    product = (longer - query) / (CLASSES * (LONGER - DIM))
    return {
        "memory": times["memory"],
        "cache": times["cache"],
        "product": product,
        "bounded": query / CLASSES - product * DIM,
        "unpacked": 2 * (times["unpacked"] - times["half unpacked"]) / (CLASSES * DIM),
        "row": times["short row"] - 2 * SHORT * byte,
        "gathered": byte,
        "narrowed": (times["proof"] - times["ids"]) / MANY,
        "level": times["level"],
        "call": times["call"],
    }


def scan(size: int, threads: int) -> float:
    """A byte of a plain read of ``size`` bytes that were read before."""
    return 1 / max(native.bandwidth(size, threads, 1) for _ in range(AGAIN))


def memory(numbers: Halves, threads: int) -> float:
    """A byte of codes that no cache holds, in a look at all classes: piece after piece, so that one is gone from the caches
    when its turn comes again, and a run is over before something else wants the processor."""
    pieces = [looking(piece, 1) for piece in np.split(numbers.view(np.uint8).reshape(-1, LONG // 4, 64, 4), PIECES)]
    taken = [[looked(*piece, threads) for piece in pieces] for _ in range(RUNS)]
    return float(statistics.median(map(min, zip(*taken, strict=True)))) * PIECES / numbers.nbytes


def looked(reader: native.Executor, query: NDArray[np.float64], threads: int) -> float:
    """One look."""
    return fastest(lambda: reader.lse(query, math.inf, None, False, threads), 1)


def unpacked(threads: int) -> dict[str, float]:
    """Looks for one query at codes of two bits; both layers are in the caches."""
    return {"half unpacked": unpacking(CLASSES // 2, threads), "unpacked": unpacking(CLASSES, threads)}


def unpacking(classes: int, threads: int) -> float:
    reader, query = looking(codes_of(classes, DIM), 1, bits=FEW)
    return fastest(lambda: looked(reader, query, threads))


def products(threads: int) -> dict[str, float]:
    """Looks for a batch and for half of it, at short and at long rows."""
    times = {}
    for dim, name in ((DIM, "batch"), (LONGER, "longer batch")):
        reader, query = looking(codes_of(CLASSES, dim), TOGETHER)
        for some, count in (("half a ", TOGETHER // 2), ("", TOGETHER)):
            asked = partial(reader.topk, query[:count].copy(), 1, math.inf, None, False, threads)
            times[some + name] = fastest(asked)
    return times


def narrowed(threads: int) -> dict[str, float]:
    """A proof of a normaliser, and the look that it begins with."""
    reader, query = looking(codes_of(MANY, NARROW_DIM), 1, CLOSE, WIDE)
    ids = fastest(lambda: reader.topk(query, 1, math.inf, None, False, threads))
    return {"ids": ids, "proof": fastest(lambda: reader.topk(query, 1, AIM, None, False, threads))}


def gather(weight: Halves, threads: int) -> float:
    """A row of ``weight`` at a place of its own, other ones each time."""
    reader, query = of_rows(weight), np.ones((1, weight.shape[1]))
    places = scrambled(RUNS * GATHERED).reshape(RUNS, 1, GATHERED).astype(np.int64) % len(weight)
    left = iter(places)
    return fastest(lambda: reader.logits(query, next(left), threads)) / GATHERED


def call(threads: int) -> float:
    """A call that has nothing to do."""
    reader, query = of_rows(np.ones((64, 16), np.float16)), np.ones((1, 16))
    return fastest(lambda: reader.topk(query, 1, math.inf, None, True, threads), 4 * RUNS)


def codes_of(classes: int, dim: int) -> NDArray[np.uint8]:
    """Scrambled codes, 64 classes side by side."""
    return (scrambled(classes * dim) >> np.uint32(24)).astype(np.uint8).reshape(classes // 64, dim // 4, 64, 4)


def looking(
    codes: NDArray[np.uint8], queries: int, close: float = 1e-3, wide: float = 1e-3, bits: int = 8
) -> tuple[native.Executor, NDArray[np.float64]]:
    """An executor that looks at ``codes [classes / 64, bytes / 4, 64, 4]`` with radii ``close``, some ``wide``, and queries."""
    classes, dim = 64 * len(codes), 4 * codes.shape[1] * (8 // bits)
    slack = np.full((1, classes), close, np.float32)
    slack[0, ::ONE_IN] = wide
    scale = np.full((1, classes), SPREAD / (CODE * math.sqrt(dim / 2)), np.float32)
    level = Level(codes, ((0, dim, bits),), scale, slack, (Term("one", 0, dim),), planes=1)
    hidden = np.cos(np.arange(queries * dim, dtype=np.float64)).reshape(queries, dim)
    return of_rows(np.zeros((classes, dim), np.float16), (level,), np.full(classes, BEST, np.float32)), hidden


def of_rows(weight: Halves, levels: tuple[Level, ...] = (), bias: Floats | None = None) -> native.Executor:
    norms = np.ones(len(weight), np.float32)
    plan = Plan(None, None, None, None, levels)
    return native.executor(weight, bias, norms, ("affine", 1.0, 0.0), plan, native.isa())


def scrambled(count: int) -> NDArray[np.uint32]:
    """Numbers that no prefetcher foresees, and that need no generator."""
    return np.arange(count, dtype=np.uint32) * SCRAMBLE


def fastest(run: Callable[[], Any], runs: int = RUNS) -> float:
    """Nanoseconds of the shortest of some runs."""
    taken = []
    for _ in range(runs):
        start = time.perf_counter_ns()
        run()
        taken.append(time.perf_counter_ns() - start)
    return float(min(taken))
