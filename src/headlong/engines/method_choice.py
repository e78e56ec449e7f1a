"""Which method "auto" stands for, and from which sizes on: every threshold of that choice, in weights, bytes and queries.

    full        where reading all rows is no slower than looking first: few weights; for a bet, few bytes of rows
    cascade     otherwise: it proves ids from a fraction of the bytes
    dense       for batches beyond :func:`crossover`, whose queries share one pass over all rows

``headlong.compile`` and the engines of structured layers ask here; :mod:`headlong.engines.build` builds what was chosen.
"""

from __future__ import annotations

import math

from headlong.costs import BUILT_IN, Costs, here
from headlong.layers.matrix import Layer
from headlong.plan import Plan
from headlong.promise import Promise

FEW, FEW_TO_BET = 60_000, 2_200_000
"""Weights, and bytes of rows, below which reading all of them is no slower than looking first: for ids and proofs, and where a
bet settles the normaliser, which takes some tens of microseconds whatever the size (``results/choice.json``). At built-in
costs, that is: a machine whose passes are dearer, or whose bytes are cheaper, reads larger layers whole."""
SMALL = 1_500_000
"""Weights below which batches beyond :data:`APART` read all rows."""
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


def bets(wanted: Promise) -> bool:
    """Whether the normaliser is settled by a bet on sampled rows."""
    return wanted.delta > 0 and math.isfinite(wanted.eps)


def choose(layer: Layer, wanted: Promise, calibrated: bool = False) -> tuple[str, str]:
    """The method that "auto" stands for, and why."""
    size, small, unit = layer.vocab * layer.dim, FEW, "weights"
    if bets(wanted):
        size, small, unit = size * layer.weight.itemsize, FEW_TO_BET, "bytes of rows"
    small = round(small * math.sqrt(passes_in_bytes(here()) / passes_in_bytes(BUILT_IN)))  # half of it is arithmetic
    if size < small:
        return "full", f"{size:,} {unit}, fewer than {small:,}: reading all of them is no slower than looking first"
    looks = "calibration vectors choose the first look" if calibrated else "codes prove ids from a fraction of the bytes"
    return "cascade", f"{size:,} {unit}, {small:,} or more: {looks}"


def passes_in_bytes(costs: Costs) -> float:
    """How many bytes of a layer in the caches are read in the time that a pass of all threads takes to begin and end."""
    return costs.level / costs.cache


def crossover(layer: Layer, eps: float = math.inf, shares: bool = True) -> float:
    """The batch beyond which all rows are read, whatever was looked at first: :data:`APART` where the layer has few weights,
    where its rows are short and normalisers are asked for within ``eps``, or where queries share nothing that they read.
    """
    if not shares or layer.vocab * layer.dim < SMALL:
        return APART
    longer = max(4, 4 * layer.dim // NARROW) / 4  # in quarters, for APART is four
    return longer * APART if longer <= 2 and math.isfinite(eps) else math.inf


INT8 = "int8 codes of all coordinates"


def first_look(plan: Plan) -> str:
    """What level 0 reads, in words."""
    layout = plan.levels[0].layout
    if all(bits == 8 for *_, bits in layout):
        width = max(stop for _, stop, _ in layout)
        return INT8 if plan.rotation is None else f"a whitened prefix of {width} coordinates"
    taken: dict[tuple[int, int], int] = {}
    for start, stop, bits in layout:  # a coordinate may have several codes
        taken[start, stop] = taken.get((start, stop), 0) + bits
    coordinates = {each: sum(stop - start for (start, stop), bits in taken.items() if bits == each) for each in taken.values()}
    shares = ", ".join(f"{bits} bits of {count}" for bits, count in sorted(coordinates.items(), reverse=True))
    return f"few bits of all coordinates ({shares})"
