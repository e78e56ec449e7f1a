"""What a plan is expected to read: what it does read for vectors like those that it was made from, in calls of the same kind.

::

    drift        sum of what the watched calls read  >  DRIFT * E + SURE * sigma
    E            what as many calls of the same kinds read for the vectors that were held out
    sigma        the standard error of both sums: a few queries among many that are read densely are no drift

A kind of call is its verb, how many queries come at once, and what is asked for: a proof reads more than ids alone, and a query
of a batch less than one that comes alone. A kind is measured once for each plan, when calls of it were first watched.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from headlong.errors import HeadlongError
from headlong.native import Doubles, Floats

DRIFT, SURE = 2.0, 2.0
"""How many times what is expected is a drift, and how many standard errors beyond."""
HELD, ONE_IN = 64, 8
"""Vectors that a plan is judged by, at most, and of how many one: a basis fits those that it was made of."""
FEWEST = 128
"""Vectors below which none are held out: all of them make the plan, and judge it, too."""
KINDS = 32
"""Of calls that are judged."""
FILTERED = frozenset({"allowed", "exclude"})
NOISE = frozenset({"seed", "position", "class0"})
"""What changes answers, but not what they are expected to read."""


def held_out(vectors: Doubles) -> tuple[Doubles, Floats]:
    """Those that a plan is made of, and copies of those that it is judged by: others, where there are enough."""
    if len(vectors) < FEWEST:
        return vectors, vectors[:: max(1, len(vectors) // HELD)][:HELD].astype(np.float32)
    count = min(HELD, len(vectors) // ONE_IN)
    places = np.arange(count) * len(vectors) // count
    return np.delete(vectors, places, axis=0), vectors[places].astype(np.float32)


class Kind(NamedTuple):
    """How calls were asked; of ``ids`` their number is said."""

    verb: str
    queries: int
    options: tuple[tuple[str, Any], ...]

    def asked_again(self, engine: Any, hidden: Floats) -> Any:
        """The bytes that each query of such a call reads."""
        options = dict(self.options)
        if self.verb == "log_prob":
            options["ids"] = np.zeros((len(hidden), options["ids"]), np.int64)
        if self.verb == "sample":
            options["seed"] = 0
        return getattr(engine, self.verb)(hidden, **options).cost.bytes


class Call(NamedTuple):
    """A watched call as it came, and the bytes that each of its queries read."""

    verb: str
    queries: int
    options: dict[str, Any]
    bytes: Any

    def kind(self) -> Kind | None:
        """None: of a kind of its own."""
        asked = tuple(sorted((name, value) for name, value in self.options.items() if name not in NOISE))
        return Kind(self.verb, self.queries, asked) if all(isinstance(value, Hashable) for _, value in asked) else None


Kinds = dict[Kind, list[Call]]


def watched(verb: str, queries: int, options: dict[str, Any], read: Any) -> Call | None:
    """The call, which is nothing to be kept but for its mask or its ids; None where what it reads is the mask's business."""
    if options.get("allowed") is not None:
        return None
    kept = {name: value for name, value in options.items() if name not in FILTERED}  # to exclude most is to read less
    if verb == "log_prob":
        ids = kept["ids"]
        shape = getattr(ids, "shape", None)
        kept["ids"] = shape[-1] if shape else len(ids[0])
    return Call(verb, queries, kept, read)


def by_kind(calls: Sequence[Call]) -> Kinds:
    """The calls of each kind."""
    kinds: Kinds = {}
    for call in calls:
        kind = call.kind()
        if kind is not None and kind.queries:
            kinds.setdefault(kind, []).append(call)
    return kinds


class Usual(NamedTuple):
    """Of a query in calls of one kind: the mean of its bytes, and the variance of that mean."""

    mean: float
    uncertain: float


class Expected:
    """What calls read by one plan, of the kinds that were measured."""

    def __init__(self, vectors: Floats) -> None:
        self.vectors = vectors
        self._known: dict[Kind, Usual | None] = {}

    def missing(self, kinds: Kinds) -> list[Kind]:
        """Those that are to be measured."""
        return [kind for kind in kinds if kind not in self._known][: KINDS - len(self._known)]

    def measure(self, kind: Kind, engine: Any) -> None:
        """Asks the engine in the same way, for the vectors that were held out, as many at once as there are. Calls that
        cannot be asked again are not judged, nor is it tried again."""
        count = len(self.vectors)
        step = min(kind.queries, count)
        starts = [min(start, count - step) for start in range(0, count, step)]
        try:
            means = [float(np.mean(kind.asked_again(engine, self.vectors[start : start + step]))) for start in starts]
        except (HeadlongError, MemoryError):
            self._known[kind] = None
            return
        self._known[kind] = Usual(float(np.mean(means)), _variance(means) / len(means))

    def drifted(self, kinds: Kinds) -> bool:
        """Whether the calls read more than the vectors would have."""
        read = expected = variance = 0.0
        for kind, calls in kinds.items():
            usual = self._known.get(kind)
            if usual is None:
                continue
            together = np.concatenate([np.asarray(call.bytes, np.float64) for call in calls])
            each = together.reshape(len(calls), kind.queries).sum(axis=1)
            read, expected = read + float(each.sum()), expected + len(together) * usual.mean
            variance += len(each) * _variance(each) + (DRIFT * len(together)) ** 2 * usual.uncertain
        return read > DRIFT * expected + SURE * math.sqrt(variance)


def _variance(values: Sequence[float] | Doubles) -> float:
    return float(np.var(values, ddof=1)) if len(values) > 1 else 0.0
