"""The classes that pass a sampler's filters, from as many of the best as decide it.

    top_k   the k best        top_p   those with less than top_p of the mass before them        min_p   p >= min_p * p_best

in this order. Where the k best are known, everything is; a nucleus also needs the normaliser at the sampling temperature,
as finely as its edge asks. Used where scores come from several places: edited by processors, or from shards.
An engine's own filters are in ``csrc/sampling/filters.cpp``, and in NumPy in ``engines/reference/nucleus.py``.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np

from headlong.dtypes import Doubles, Ids
from headlong.engines.reference.nucleus import nucleus_size
from headlong.question import Filters, Sieve

FIRST_CANDIDATES, GROWTH = 64, 8
"""Candidates that a nucleus is looked for in first, and how many times more where they do not decide it."""
FINEST = 1e-9
"""A nucleus whose edge is nearer than this to a class's mass, in nats, may fall on either side."""


class Ranked(NamedTuple):
    """Classes in falling order of ``f(z)`` (equal ones by id); all classes from ``least`` up are among them."""

    ids: Ids
    scores: Doubles
    least: float

    def alone(self, places: slice | Ids) -> Ranked:
        """Some of these, which are all that is left."""
        return Ranked(self.ids[places], self.scores[places], -math.inf)


class Normaliser(Protocol):
    """What knows the normaliser of one query."""

    def lse(self, temperature: float, eps: float) -> tuple[float, float]:
        """Both ends of ``log sum exp(f(z) / temperature)``, apart by about ``2 eps`` or as near as they get."""


class CandidateSource(Normaliser, Protocol):
    """Where candidates come from, for one query."""

    def best(self, count: int) -> Ranked:
        """At least the ``count`` best, or all there are (``least`` is -inf then)."""


def kept(source: CandidateSource, sieve: Sieve) -> Ranked:
    """Exactly the classes that pass, best first."""
    count = sieve.top_k + sieve.all_ties if sieve.top_k else FIRST_CANDIDATES
    while True:
        found = source.best(count)
        size = decided(source, sieve, found)
        if size is not None:
            return Ranked(found.ids[:size], found.scores[:size], found.least)
        count *= GROWTH


def decided(source: Normaliser, sieve: Sieve, found: Ranked) -> int | None:
    """How many of the best pass, or None where classes that have not been seen could."""
    scaled = found.scores / sieve.temperature
    weights = np.exp(scaled - scaled[0])
    whole = sieve.top_k > 0 or math.isinf(found.least)
    size = min(sieve.top_k or len(scaled), len(scaled))
    if sieve.all_ties and size < len(scaled):
        last = found.scores[size - 1]
        if last <= found.least:  # others, which have not been seen, may tie
            return None
        size = int((found.scores >= last).sum())
    seen = int((found.scores >= found.least).sum())
    if sieve.top_p < 1:
        mass = weights[:size]
        size = nucleus_size(mass, sieve.top_p) if whole else _nucleus(source, sieve, mass, float(scaled[0]))
        if not whole and size >= seen:  # it may end anywhere among these, so min_p alone decides nothing
            return None
    if sieve.min_p > 0:
        size = min(size, int((weights >= sieve.min_p).sum()))
    return size if whole or size < seen else None


def _nucleus(source: Normaliser, sieve: Sieve, mass: Doubles, shift: float) -> int:
    """How many classes have less than ``top_p`` of all mass before them; finer normalisers until that is clear."""
    eps = 1e-2
    while True:
        with np.errstate(over="ignore"):
            totals = [float(np.exp(end - shift)) for end in source.lse(sieve.temperature, eps)]
        sizes = [nucleus_size(mass, sieve.top_p, total) for total in totals]
        if sizes[0] == sizes[1] or eps < FINEST:
            return sizes[1]
        eps *= 1e-2


def kept_count(exponents: Doubles, filters: Filters | Sieve) -> int:
    """How many of ``exponents``, in descending order, pass top_k, then top_p among those, then min_p."""
    count = min(filters.top_k or len(exponents), len(exponents))
    mass = np.exp(exponents[:count] - exponents[0])
    if filters.top_p < 1:
        count = nucleus_size(mass, filters.top_p)
    if filters.min_p > 0:
        count = min(count, int((exponents >= exponents[0] + math.log(filters.min_p)).sum()))
    return count
