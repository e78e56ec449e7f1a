"""Whether blocks read less than a look at all classes, and how narrow their bounds may be made by what queries teach.

    learned    <B_i[tail], x[tail]> <= q sum_s ‖B_i[s]‖ ‖x[s]‖      for all classes i at once, behind boxes and closer looks,
               but for a rate: q is a split-conformal quantile over queries that chose nothing else (``calibrated_radii.py``)
"""

from __future__ import annotations

import itertools

import numpy as np

from headlong import native
from headlong.arrays import Array
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.plan import Blocks, Plan
from headlong.previews.blocks import shape_of
from headlong.previews.calibrated_radii import conformal, largest_shares
from headlong.previews.whitening import Basis

JUDGES = 16
"""Calibration vectors that are searched for."""
ASKED = (1, 16, 64, 256, 1024, 4096)
"""How many classes: more of them open more blocks."""
LESS = 0.5
"""Of the bytes of a look at all classes: what blocks may read to be worth their while."""
STAND_INS = 4096
"""Rows of the layer that stand in for hidden vectors: one that predicts a class leans towards its row."""


def most_asked(layer: Layer, plan: Plan, blocks: Blocks, vectors: Doubles, share: float) -> int:
    """The largest of :data:`ASKED` for which a search reads less than a look at all classes, on some vectors; 0: none."""
    if native.isa() == native.REFERENCE:
        return min(ASKED[1], layer.vocab)  # it is asked for to be read, not to be fast
    some = np.ascontiguousarray(vectors[:: -(-len(vectors) // JUDGES)], np.float64)
    search = native.blocks(layer.weight, layer.bias, blocks, share, native.isa())
    most = 0
    for k in ASKED:
        if k > layer.vocab:
            break
        *_, read, _, done = search.topk(some, k, None, 1)
        if not done.all() or float(read.mean()) > LESS * look_bytes(plan):
            break
        most = k
    return most


def look_bytes(plan: Plan) -> float:
    """What a query reads of every class, whatever it asks, and of the rotation."""
    if not plan.levels:
        return 0.0
    level = plan.levels[0]
    arrays = (level.codes, level.scale, level.slack, plan.base, plan.rotation)
    return float(sum(array.nbytes for array in arrays if array is not None))


def learned_share(layer: Layer, basis: Basis, queries: Doubles | None, delta: float) -> float:
    """``q``; 1 where there are no queries to learn from, or nothing behind the boxes."""
    _, width, edges = shape_of(layer.dim)
    segments = tuple(itertools.pairwise(edges))
    if queries is None or not segments:
        return 1.0
    scores = largest_shares(layer.weight, basis, segments, queries)
    behind = tuple(segment for segment in segments if segment[0] >= width)
    if behind:
        scores = np.maximum(scores, largest_shares(layer.weight, basis, behind, queries))
    return float(min(1.0, conformal(scores, delta) + (2 * layer.dim + 16) * 2.0**-23))


def stand_ins(layer: Layer) -> Array:
    """Rows of the layer, evenly spread."""
    return np.asarray(layer.weight[:: -(-layer.vocab // STAND_INS)].astype(np.float64))
