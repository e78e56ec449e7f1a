"""Whether a tree finds normalisers sooner than a pass over all classes does: some searches, priced by :mod:`headlong.costs`.

::

    ns of a search  =  threads * ((row + gathered * bytes of a node + 4 narrowed) * nodes + narrowed * classes)    one thread's
    ns of a pass    =  level + bytes of every class + narrowed * classes

Without calibration vectors queries that the layer makes likely stand in for them. Either way what they recommend is on trial: a
search that takes half of a pass is given up, and where most were, none is made.
"""

from __future__ import annotations

import math

import numpy as np

from headlong import native
from headlong.costs import here
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.node_sums import MOST_DIM, NodeSums, widths_of
from headlong.plan import Plan
from headlong.previews.look_costs import pass_ns
from headlong.previews.sums.stand_ins import likely_queries
from headlong.previews.sums.tree import node_sums

CLASSES = 16_384
"""Classes from which a search saves more than a few microseconds."""
JUDGES = 32
"""Vectors that are searched for."""
LESS = 0.5
"""Of the time of a pass: what a search may take."""
EXPONENTIALS = 4
"""Of a node, for its two ends."""


def may_sum(layer: Layer, eps: float) -> bool:
    """Whether a tree is worth building, to see: many classes of few coordinates under an affine link, and a finite ``eps``."""
    few = layer.dim <= MOST_DIM and layer.vocab >= CLASSES
    return few and math.isfinite(eps) and layer.link.lowered()[0] == "affine"


def with_sums(layer: Layer, plan: Plan, eps: float, vectors: Doubles | None, threads: int) -> Plan:
    """``plan`` with a tree, where searches for ``vectors``, or for what stands in for them, take less than a pass."""
    sums = node_sums(layer, threads, LESS * pass_ns(layer, here()) / node_ns(layer) * node_bytes(layer))
    if native.isa() == native.REFERENCE:  # it is asked for to be read, not to be fast
        return plan._replace(sums=sums)
    queries = likely_queries(layer) if vectors is None else vectors
    queries = np.ascontiguousarray(queries[:: -(-len(queries) // JUDGES)], np.float64)
    worth = search_ns(layer, sums, queries, eps) <= LESS * pass_ns(layer, here())
    return plan._replace(sums=sums) if worth else plan


def search_ns(layer: Layer, sums: NodeSums, queries: Doubles, eps: float) -> float:
    """Nanoseconds, the mean over ``queries``; one that is given up takes a pass, too."""
    alone = Plan(None, None, None, None, (), sums=sums)
    norms = native.row_norms(layer.weight)
    reader = native.executor(layer.weight, layer.bias, norms, layer.link.lowered(), alone, native.isa())
    costs, total = here(), 0.0
    for query in queries:
        _, _, rows, read, dense = reader.lse(query[None], eps, None, False, 1)
        scored = 0 if dense[0] else int(rows[0])
        nodes = (sums.most if dense[0] else float(read[0]) - 4 * (layer.dim + 1) * scored) / node_bytes(layer)
        total += nodes * node_ns(layer) + costs.threads * costs.narrowed * scored + pass_ns(layer, here()) * bool(dense[0])
    return total / len(queries)


def node_bytes(layer: Layer) -> int:
    """What is read of a node."""
    return 8 * sum(widths_of(layer.dim))


def node_ns(layer: Layer) -> float:
    """Nanoseconds of a node, of one thread."""
    costs = here()
    return costs.threads * (costs.row + costs.gathered * node_bytes(layer) + EXPONENTIALS * costs.narrowed)
