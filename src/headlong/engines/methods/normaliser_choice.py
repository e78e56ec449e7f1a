"""Whether normalisers go by looks or by a pass over all rows at once.

    a look, and the rows or the pass that it leaves        against that pass alone, in bytes

Rows of few coordinates are nearly as short as their codes and radii, so that a look takes most of the time of a pass. Where
logits are far apart, as those of narrow kernels are, radii are so wide that many looks settle nothing. So a few calls are made.
"""

from __future__ import annotations

import numpy as np

from headlong import native
from headlong.engines.method import sure
from headlong.engines.method_choice import FEW_TO_BET, bets
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.packed_rows import PackedRows
from headlong.plan import Plan
from headlong.previews.blocks.choice import ROW, look_bytes, stand_ins
from headlong.promise import Promise

JUDGES = 8
"""Vectors that are asked for; each may take a look and a pass."""
LOOK, SOONER = 0.4, 0.9
"""Of a pass's bytes: what a look reads at least, where it is worth asking (0.44 of rows of 16 coordinates); and all that calls
may read on average."""


def with_normalisers(layer: Layer, plan: Plan, promise: Promise, vectors: Doubles | None, threads: int) -> Plan:
    """``plan``, by which calls for normalisers read all rows where looks first take longer. Without ``vectors`` directions of
    rows stand in for queries."""
    found_elsewhere = plan.blocks is not None and plan.blocks.least <= promise.eps
    if found_elsewhere or not plan.levels or not bets(promise) or layer.weight.nbytes < FEW_TO_BET:
        return plan
    # Codes take as long as the float32 numbers that are made of them.
    look, every = look_bytes(plan), layer.weight.size * (4 if isinstance(layer.weight, PackedRows) else layer.weight.itemsize)
    if native.isa() == native.REFERENCE or look < LOOK * every:
        return plan
    queries = stand_ins(layer) if vectors is None else vectors
    queries = np.ascontiguousarray(queries[:: -(-len(queries) // JUDGES)], np.float64)
    norms, link = native.row_norms(layer.weight, threads), layer.link.lowered()
    reader = native.executor(layer.weight, layer.bias, norms, link, plan._replace(blocks=None), native.isa())
    found = [reader.lse(query[None], promise.eps, None, False, threads, sure(promise).delta, 0) for query in queries]
    read = [look + (every if dense[0] else ROW * rows[0]) for *_, rows, _, dense in found]
    return plan._replace(dense=plan.dense._replace(normalised=0.0)) if float(np.mean(read)) > SOONER * every else plan
