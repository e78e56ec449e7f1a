"""The clock: contestants are asked the same vectors in turns, and the fastest is kept.

::

    chosen = argmin over contestants of  exp(mean over batches of  log seconds)        among those that may be kept

Nothing is predicted: what is timed is what a caller would wait for on this machine. Contestants meet in pairs, the best so far
against the next one, so that two engines at most are in memory. ``headlong.compile`` holds a contest between all rows and the
plausible lists of codes (:mod:`headlong.engines.methods.codes`), then between what won and blocks before it
(:mod:`headlong.engines.methods.blocks`); ``headlong.tune`` between codes of more and of fewer bits.

``HEADLONG_PLAN=first`` asks no clock: the first list of codes is kept, and there are blocks only where they were asked for. It
is for tests that have to be the same every time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from headlong import native
from headlong.dtypes import Doubles
from headlong.engines.base import Engine

VARIABLE = "HEADLONG_PLAN"
BATCHES = (1, 8, 64)
"""How many vectors are asked at once."""
WEIGHTS = (2, 1, 1)
"""What each batch counts: a decoder asks one query at a time."""
HELD = 256
"""Held-out vectors at most; a quarter of the vectors is held out."""
SECONDS = 0.3
"""What the timing of a pair takes, about."""
TURNS = 9
"""How often each is asked at most."""
SOONER = 0.95
"""The share of the other's time that a challenger may take at most: what is hardly sooner is not worth a second copy."""

Ask = Callable[[Doubles], Any]


def decides() -> bool:
    """Whether the clock is asked."""
    return os.environ.get(VARIABLE) != "first"


class Contest(NamedTuple):
    """Median seconds of a call, ``[contestant][batch]``, in the order of their names, on the scale of the first one's turns;
    the name that won."""

    names: tuple[str, ...]
    seconds: Doubles
    batches: tuple[int, ...]
    fastest: str

    def __str__(self) -> str:
        each = (
            f"{name} " + ", ".join(f"{seconds / batch * 1e6:.0f}" for seconds, batch in zip(row, self.batches, strict=True))
            for name, row in zip(self.names, self.seconds, strict=True)
        )
        return f"us a query, {', '.join(map(str, self.batches))} at once: " + "; ".join(each)


def fastest(
    contestants: Iterable[tuple[str, Engine]],
    vectors: Doubles,
    k: int = 10,
    batches: Sequence[int] = BATCHES,
    may_be_kept: Callable[[str, Engine], bool] = lambda *_: True,
) -> tuple[Contest, Engine]:
    """The first contestant, or one that is clearly sooner over all batches; one that may not be kept loses to all others."""
    others = iter(contestants)
    first, engine = next(others)
    names, seconds, best, kept = [first], [timed([_asking(engine, k)], vectors, batches)[0]], 0, may_be_kept(first, engine)
    for name, other in others:
        ours, theirs = timed([_asking(engine, k), _asking(other, k)], vectors, batches)
        names.append(name)
        seconds.append(theirs * seconds[best] / ours)  # a machine that got busy since is not held against anyone
        fair = may_be_kept(name, other)
        sooner = np.average(np.log(theirs / ours), weights=WEIGHTS[: len(batches)]) < np.log(SOONER)
        if (fair, sooner) > (kept, False):
            engine, best, kept = other, len(names) - 1, fair
    if native.isa() != native.REFERENCE:
        native.loaded().forget_ways()  # NumPy's threads looked out for work between these calls
    return Contest(tuple(names), np.array(seconds), tuple(batches), names[best]), engine


def _asking(engine: Engine, k: int) -> Ask:
    return lambda rows: engine.topk(rows, min(k, engine.layer.vocab))


def held_out(vectors: Doubles) -> tuple[Doubles, Doubles]:
    """Vectors that plans are made of, and those that the clock asks: on its own vectors a plan of few bits reads few rows.
    Those that came last are held out, since neighbours are often alike; all are both where there are fewer than four."""
    count = min(len(vectors) // 4, HELD)
    return (vectors[:-count], vectors[-count:]) if count else (vectors, vectors)


def some_of(vectors: Doubles, count: int = BATCHES[-1]) -> Doubles:
    """``count`` vectors, evenly spread."""
    return np.ascontiguousarray(vectors[np.linspace(0, len(vectors) - 1, count).astype(int)])


def timed(asks: Sequence[Ask], vectors: Doubles, batches: Sequence[int] = BATCHES) -> Doubles:
    """Median seconds ``[ask, batch]`` of calls in turns, each after the others' arrays went through the caches."""
    spent: list[list[list[float]]] = [[[] for _ in batches] for _ in asks]
    for turn in range(TURNS):
        for place, batch in enumerate(batches):
            if turn > 2 and sum(sum(times[place]) for times in spent) > SECONDS / len(batches):
                continue  # the shorter calls of fewer vectors have more turns
            first = turn * 7 % (len(vectors) - batch + 1)
            for ask, times in zip(asks, spent, strict=True):
                begun = time.perf_counter()
                ask(vectors[first : first + batch])
                times[place].append(time.perf_counter() - begun)
    # The first call of each wakes what sleeps.
    return np.array([[np.median(times[1:] or times) for times in each] for each in spent])
