"""The rows' halves of radii: what codes, float32 and float64 lose of a class's estimate, as rows of a level's slack.

    |z_i - estimate| <= sum_p h_p(query) part_p[i] <= max_p (part_p[i] / typical_p) sum_p h_p(query) typical_p

So all summands that are small share one row, whose entries are rounded up. No probability enters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import UNIT, Doubles, Floats
from headlong.encode.blocks.coding import Encoded
from headlong.encode.whitening import Basis
from headlong.layers.matrix import Layer
from headlong.native import round_up

ROUNDING = 2.0**-19
"""How far a float32 bound of several segments is from its formula at most, as a share of (‖w^‖·‖x‖ + |base|)."""
UNDERFLOW = 2.0**-100
"""Covers every product that float32 flushes towards zero, for any dim; far below any logit that matters."""
AT_ONCE = 1 << 15
"""Classes that tell what is typical, and whose slack is put together while it is in the cache."""



class Term(NamedTuple):
    """The query's half of one summand of a radius: ``norm``, ‖x[start:stop]‖; ``one``, 1; ``hidden``, the hidden vector's
    length, less the mean."""

    kind: str
    start: int
    stop: int
    factor: float = 1.0


Summands = Callable[[slice], list[tuple[Term, Doubles]]]
"""The summands of a radius: the query's half, and that of the classes of a slice."""


def roundings(layer: Layer, basis: Basis, found: Encoded) -> Summands:
    """What the rotation, the base in float32 and products with the means lose."""
    unit = (layer.dim + 8) * UNIT
    mean, centre = (float(np.linalg.norm(vector)) for vector in (basis.mean, basis.centre))

    def summands(some: slice) -> list[tuple[Term, Doubles]]:
        base, length = np.abs(found.base[some].astype(np.float64)), found.length[some].astype(np.float64)
        fixed = (ROUNDING + 2.0**-24) * base + 2 * unit * mean * (length + centre) + UNDERFLOW
        return [(Term("one", 0, 0), fixed), (Term("hidden", 0, 0), basis.lost * length + unit * (length + centre))]

    return summands


def joined(
    summands: Summands, uncoded: NDArray[np.bool_], typical: Sequence[float]
) -> tuple[Floats, tuple[Term, ...]]:
    """One slack for many summands: ``max_p part_p / typical_p``, and the terms times ``typical_p``."""
    count = len(uncoded)
    slack = np.empty(count, np.float32)
    for start in range(0, count, AT_ONCE):
        here = slice(start, start + AT_ONCE)
        worst = np.max([part / usual for (_, part), usual in zip(summands(here), typical, strict=True)], axis=0)
        slack[here] = round_up(worst * (1 + 1e-9))
    slack[uncoded] = np.inf
    return slack, tuple(term._replace(factor=usual) for (term, _), usual in zip(summands(slice(0, 0)), typical, strict=True))


def typical_of(part: Doubles) -> float:
    """A factor of the size of most entries, never 0."""
    some = part[part > 0]
    return max(float(np.median(some)), 1e-30) if len(some) else 1e-30
