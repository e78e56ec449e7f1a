"""Which method "auto" stands for, and from which sizes on: every threshold of that choice, in weights, bytes and queries.

    full        where reading all rows is no slower than looking first: few weights; for a bet, few bytes of rows
    cascade     otherwise: it proves ids from a fraction of the bytes
    dense       for batches beyond :func:`crossover`, whose queries share one pass over all rows

``headlong.compile`` and the engines of structured layers ask here; :mod:`headlong.engines.build` builds what was chosen.
"""

from __future__ import annotations

import math

from headlong.layers.matrix import Layer
from headlong.promise import Promise

FEW, FEW_TO_BET = 60_000, 2_200_000
"""Weights, and bytes of rows, below which reading all of them is no slower than looking first: for ids and proofs, and where a
bet settles the normaliser, which takes some tens of microseconds whatever the size."""
SMALL = 1_500_000
"""Weights below which batches beyond :data:`APART` read all rows."""
APART: float = 4
"""Queries at once beyond which a dense pass over a small layer is cheaper than looks at it: one tile of products serves all of
them, while candidates and draws are each query's own."""
SHARED = 2_500_000
"""Weights below which queries that come together are read densely sooner than they bet, each for itself."""
NARROW = 64
"""Coordinates up to which a class costs a query of a batch no more in the dense pass, which they share, than in a look and its
part of a normaliser, which each of them pays; with more that is so in batches as many times as large, up to twice."""


def bets(wanted: Promise) -> bool:
    """Whether the normaliser is settled by a bet on sampled rows."""
    return wanted.delta > 0 and math.isfinite(wanted.eps)


def choose(layer: Layer, wanted: Promise) -> tuple[str, str]:
    """The method that "auto" stands for, and why."""
    size, small, unit = layer.vocab * layer.dim, FEW, "weights"
    if bets(wanted):
        size, small, unit = layer.vocab * layer.row_bytes, FEW_TO_BET, "bytes of rows"
    if size < small:
        return "full", f"{size:,} {unit}, fewer than {small:,}: reading all of them is no slower than looking first"
    return "cascade", f"{size:,} {unit}, {small:,} or more: int8 codes prove ids from a fraction of the bytes"


def crossover(layer: Layer, eps: float = math.inf, shares: bool = True) -> float:
    """The batch beyond which all rows are read, whatever was looked at first: :data:`APART` where the layer has few weights,
    where its rows are short and normalisers are asked for within ``eps``, or where queries share nothing that they read.
    """
    if not shares or layer.vocab * layer.dim < SMALL:
        return APART
    longer = max(4, 4 * layer.dim // NARROW) / 4  # in quarters, for APART is four
    return longer * APART if longer <= 2 and math.isfinite(eps) else math.inf
