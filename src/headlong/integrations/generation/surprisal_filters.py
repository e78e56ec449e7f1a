"""Filters of ``generate`` that go by surprisals, from as many of the best classes as decide them.

With ``p`` what is left after temperature, top_h, top_k, top_p and min_p, in this order, and ``H`` its entropy::

    top_h           of the 100 best, as many as have at most ``top_h`` of their entropy
    typical_p       the classes with the least ``|-log p - H|``, until their mass is typical_p
    epsilon_cutoff  p >= epsilon                                 both keep the best class in any case
    eta_cutoff      p >= min(epsilon, sqrt(epsilon) exp(-H))

Each is of what the one before has left. Where none of the others is on, ``p`` is the distribution of all classes: its
normaliser and its entropy are asked for as finely as the edge of the first filter needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import Doubles
from headlong.engines.sampling_filters import FINEST, FIRST_CANDIDATES, GROWTH, CandidateSource, Ranked, decided, kept
from headlong.question import Sieve

Places = NDArray[np.int64]
OF_TOP_H = 100
"""Classes that transformers' top_h looks at."""
FIRST_EPS = 1e-3


class Surprisals(NamedTuple):
    """0: off."""

    top_h: float = 0.0
    typical_p: float = 0.0
    epsilon: float = 0.0
    eta: float = 0.0


class Source(CandidateSource, Protocol):
    """One query."""

    def entropy(self, temperature: float, eps: float) -> tuple[float, float]:
        """Both ends of the entropy at ``temperature``."""


def kept_by_surprisal(source: Source, sieve: Sieve, by: Surprisals) -> Ranked:
    """The classes that pass all filters, best first."""
    if by.top_h:
        found = source.best(OF_TOP_H).alone(slice(OF_TOP_H))
        found = found.alone(slice(_within_entropy(found.scores / sieve.temperature, by.top_h)))
        size = decided(source, sieve, found)
        assert size is not None  # nothing else is left
        found = found.alone(slice(size))
    elif not sieve.keeps_all:
        found = kept(source, sieve).alone(slice(None))
    else:
        found, by = _first_of_all(source, sieve.temperature, by)
    for one in _each(by):
        scaled = found.scores / sieve.temperature
        surprisals = _log_sum(scaled) - scaled
        entropy = float((np.exp(-surprisals) * surprisals).sum())
        places = _places(one, surprisals, entropy, math.inf)
        assert places is not None  # they are all there
        found = found.alone(places)
    return found


def _each(by: Surprisals) -> Iterator[Surprisals]:
    """The filters that are on, one by one."""
    for name in ("typical_p", "epsilon", "eta"):
        if getattr(by, name):
            yield Surprisals(**{name: getattr(by, name)})


def _log_sum(scaled: Doubles) -> float:
    return float(scaled[0] + np.log(np.exp(scaled - scaled[0]).sum()))


def _within_entropy(scaled: Doubles, top_h: float) -> int:
    """How many of the best have at most ``top_h`` of the entropy of all, summed from the best; one at least."""
    surprisals = _log_sum(scaled) - scaled
    terms = np.exp(-surprisals) * surprisals
    return max(1, int((np.cumsum(terms) <= top_h * terms.sum()).sum()))


def _first_of_all(source: Source, temperature: float, by: Surprisals) -> tuple[Ranked, Surprisals]:
    """What the first filter keeps of all classes, and the filters that are left."""
    one = next(_each(by))
    count, eps = FIRST_CANDIDATES, FIRST_EPS
    found = source.best(count)
    while True:
        if math.isinf(found.least):  # all classes are there
            return found, by
        if math.isinf(source.lse(temperature, eps)[1]):  # nobody says what the others have
            count *= GROWTH
            found = source.best(count)
            continue
        asks = one.typical_p or one.eta
        entropies = source.entropy(temperature, eps) if asks else (0.0, 0.0)
        corners = [(norm, entropy) for norm in source.lse(temperature, eps) for entropy in entropies]
        scaled, least = found.scores / temperature, found.least / temperature
        places = [_places(one, norm - scaled, entropy, norm - least) for norm, entropy in corners]
        known = [some for some in places if some is not None]
        if not known and math.isfinite(found.least):
            count *= GROWTH
            found = source.best(count)
        elif len(known) == len(places) and all(np.array_equal(some, known[0]) for some in known[1:]):
            break
        elif eps < FINEST:
            if known:
                break  # an edge that is nearer than rounding may be on either side
            count *= GROWTH
            found = source.best(count)
        else:
            eps *= 1e-3
    left = by._replace(**{name: 0.0 for name in by._fields if getattr(one, name)})
    return found.alone(known[0]), left


def _places(one: Surprisals, surprisals: Doubles, entropy: float, behind: float) -> Places | None:
    """Which classes a filter keeps, rising; None where others, whose surprisals are ``behind`` or more, could stay."""
    if one.typical_p:
        off = np.abs(surprisals - entropy)
        order = np.argsort(off, kind="stable")
        last = int((np.cumsum(np.exp(-surprisals[order])) < one.typical_p).sum())
        if math.isfinite(behind) and (last == len(order) or off[order[last]] >= behind - entropy):
            return None
        return np.flatnonzero(off <= off[order[min(last, len(order) - 1)]])
    edge = one.epsilon or min(one.eta, math.sqrt(one.eta) * math.exp(-entropy))
    if math.exp(-behind) >= edge:
        return None
    return np.flatnonzero((np.exp(-surprisals) >= edge) | (surprisals == surprisals[0]))
