"""How a plan is built: what every method of reading one matrix has in common.

::

    promise = method.promise(wanted, calibrated)            what it keeps of what was asked for
    plan    = method.plan(layer, calibration, threads, promise)

A method is a frozen dataclass of options with their defaults. It says what it promises and builds the plan; the rest has
defaults here. Methods are registered by name, and the contract's tests run over all of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from headlong import native
from headlong.answers import Promise
from headlong.engines.hand_off import EngineParts
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.plan import Plan

SMALL = 1_500_000
"""Weights below which reading all of them is no slower than looking first."""
APART: float = 4
"""Queries at once beyond which a dense pass over a small layer is cheaper than looks at it: one tile of products serves all of
them, while candidates and draws are each query's own (``results/storm-costs.json``)."""


SHARED = 2_500_000
"""Weights below which queries that come together are read densely sooner than they bet, each for itself, and int8 codes of all
coordinates are read as fast as anything shorter."""


NARROW = 64
"""Coordinates up to which a class costs a query of a batch no more in the dense pass, which they share, than in a look and its
part of a normaliser, which each of them pays; with more that is so in batches as many times as large, up to twice
(``results/storm-costs.json``, ``results/storm-costs-60000.json``)."""


def crossover(layer: Layer, eps: float = math.inf, shares: bool = True) -> float:
    """The batch beyond which all rows are read, whatever was looked at first: :data:`APART` where the layer has few weights,
    where its rows are short and normalisers are asked for within ``eps``, or where queries share nothing that they read.
    """
    if not shares or layer.vocab * layer.dim < SMALL:
        return APART
    longer = max(4, 4 * layer.dim // NARROW) / 4  # in quarters, for APART is four
    return longer * APART if longer <= 2 and math.isfinite(eps) else math.inf


@dataclass(frozen=True)
class Method(ABC):
    """``retired``: options of files that were saved before, which the plan in the file makes needless."""

    name: ClassVar[str]
    retired: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def plan(self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        """What the engine reads, in which order, to keep ``promise``; ``calibration`` [n, dim] hidden vectors, or None."""

    @abstractmethod
    def promise(self, wanted: Promise, calibrated: bool) -> Promise:
        """What is kept where ``wanted`` was asked for and ``wanted.over`` is the randomness that may be used."""

    def again(self, plan: Plan, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        """The plan of a layer some of whose classes are others now; ``plan`` is the one before."""
        return self.plan(layer, calibration, threads, promise)

    def aimed(self, wanted: Promise) -> Method:
        """The method with the promise that was asked for, which it has to keep where it promises less."""
        return self

    def placed(self) -> Method:
        """The method as a device reads it."""
        return self

    def reader(self, engine: EngineParts) -> native.Executor | None:
        """What answers instead of the plain executor; None: that one does."""
        return None


def sure(wanted: Promise) -> Promise:
    """Ids proved; the normaliser estimated where that was asked for and fresh randomness may be used."""
    delta = 0.0 if math.isinf(wanted.eps) or "query" not in wanted.over else wanted.delta
    return Promise(wanted.eps, delta, 0.0, frozenset({"query"} if delta > 0 else ()))


METHODS: dict[str, type[Any]] = {}
"""Every method by name."""

Registered = TypeVar("Registered", bound=type[Method])


def register(method: Registered) -> Registered:
    METHODS[method.name] = method
    return method
