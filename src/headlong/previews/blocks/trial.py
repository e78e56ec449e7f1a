"""Blocks of a layer that nobody brought vectors for: whether they are worth building, and whether searches are worth making.

Rows of the layer stand in for queries. They say well where blocks are of no use: where not even rows have near neighbours. They
do not say that queries will be as easy. Hidden vectors of a language model are unlike its rows, and open nearly everything. So
what rows recommend is on trial: searches are counted, and where most of them found nothing, all classes are scanned, except in
one call of many. What calibration vectors recommend is on trial, too, since other queries may come. Ids are proved either way.
"""

from __future__ import annotations

import numpy as np

from headlong.arrays import Array
from headlong.layers.matrix import Layer
from headlong.plan import MOST_SCORED, Plan
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.choice import read_by, scan_bytes, stand_ins, worth
from headlong.previews.whitening import Basis, whiten

CLASSES, SAMPLE = 16_384, 8_192
"""Classes from which a search may save more than the building of blocks is worth, and those that speak for all."""
K = 10


def on_trial(layer: Layer, plan: Plan, threads: int) -> Plan:
    """``plan`` with blocks on trial, or without where they are of no use even to rows of the layer, which stand in for
    queries."""
    vectors = stand_ins(layer)
    basis = whiten(layer.weight, vectors)
    if not promising(layer, basis, vectors, scan_bytes(layer, plan) / layer.vocab, threads):
        return plan
    blocks = worth(layer, plan, blocks_of(layer, basis, threads), vectors, MOST_SCORED)
    return plan._replace(blocks=blocks) if blocks.max_k else plan


def promising(layer: Layer, basis: Basis, vectors: Array, bytes_each: float, threads: int) -> bool:
    """Whether searches for rows of the layer read at most ``bytes_each`` for every class, among some of the classes. All of
    them have nearer neighbours, and read less."""
    step = -(-layer.vocab // SAMPLE)
    bias = None if layer.bias is None else np.ascontiguousarray(layer.bias[::step])
    some = Layer(np.ascontiguousarray(layer.weight[::step]), bias)
    return read_by(some, blocks_of(some, basis, threads), vectors, MOST_SCORED, K) <= bytes_each * some.vocab
