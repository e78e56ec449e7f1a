"""Whether a plan gets blocks: where they were asked for, or where they answer sooner than what is behind them.

The clock decides: what is behind (codes, or all rows) answers alone, and with blocks before it, the same questions in turns,
for more and more classes, until blocks are no sooner. The questions are calibration vectors; where there are none, rows of the
layer stand in for them. They say well where blocks are of no use: where not even rows have near neighbours. They do not say
that queries will be as easy: hidden vectors of a language model are unlike its rows, and open nearly everything. So blocks are
on trial while they answer (``csrc/blocks/search.h``): searches are counted, and where most of them read so much that a scan of
all classes would have been sooner, all but one call of many are scanned. Ids are those of all rows either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from headlong import native
from headlong.answers import Answer
from headlong.arrays import Array
from headlong.dtypes import Doubles
from headlong.encode.basis import stand_ins
from headlong.encode.blocks.boxes import blocks_of
from headlong.encode.whitening import Basis, Directions, whiten
from headlong.engines.base import MOST_DELTA, reader_of, rows_of
from headlong.engines.contest import SOONER, decides, some_of, timed
from headlong.engines.method import Making
from headlong.layers.matrix import Layer
from headlong.plan import MOST_SCORED, SHORT, Blocks, Plan
from headlong.question import About, Filters, Question

MOST_DIM = 8192
"""Beyond, the basis of blocks is a large matrix to decompose and to read."""
MANY = 1024
"""Classes below which a scan of all of them is short."""
MANY_UNASKED = 16_384
"""Classes from which a search may save more than the building of blocks is worth, where nobody brought vectors."""
SAMPLE = 8_192
"""Classes that speak for all of such a layer."""
ASKED = (1, 16, SHORT, 256, 1024, 4096)
"""How many classes are asked for: more of them open more blocks."""
BATCHES = (1, 2, 8)
"""One query, two, which share what a scan reads, and what counts as a batch."""
JUDGES = 16
"""Vectors whose searches' bytes are counted."""
K = 16
"""How many classes they are asked for."""
EVERY = 2**31 - 1


def with_blocks(plan: Plan, making: Making, directions: Directions, asked: bool | None) -> Plan:
    """The plan with blocks, where that was ``asked`` for, or where they are sooner on the calibration vectors, whose
    ``directions`` these are, or on rows of a large layer; searches are native alone."""
    layer, calibration, threads, wanted = making
    if asked is False or native.isa() == native.REFERENCE:
        return plan
    if not asked:
        many = layer.vocab >= MANY if calibration is not None else layer.vocab >= MANY_UNASKED and math.isinf(wanted.eps)
        if not (many and layer.dim <= MOST_DIM and decides()):
            return plan
    vectors = stand_ins(layer) if calibration is None else calibration
    basis = whiten(layer.weight, vectors) if calibration is None else directions.basis()
    if asked:
        affine = layer.link.lowered()[0] == "affine"
        blocks = blocks_of(layer, basis, threads)._replace(max_batch=EVERY, max_k=layer.vocab, samples=affine)
        return plan._replace(blocks=blocks)
    if calibration is None and not promising(layer, plan, basis, vectors, threads):
        return plan
    return limited(plan, blocks_of(layer, basis, threads), making, vectors)


def promising(layer: Layer, plan: Plan, basis: Basis, vectors: Array, threads: int) -> bool:
    """Whether searches among some of the classes read no more of each than a scan of all. They have fewer near neighbours."""
    step = -(-layer.vocab // SAMPLE)
    bias = None if layer.bias is None else np.ascontiguousarray(layer.bias[::step])
    some = Layer(np.ascontiguousarray(layer.weight[::step]), bias)
    search = native.blocks(some.weight, some.bias, blocks_of(some, basis, threads), MOST_SCORED, native.isa())
    found = [search.topk(row[None], min(K, some.vocab), None, 1) for row in some_of(vectors, JUDGES)]
    scanned = layer.vocab * layer.row_bytes if plan.codes is None else plan.codes.tiles.nbytes + plan.codes.rotation.nbytes
    read = np.mean([one.bytes[0] for one in found])
    return all(one.done.all() for one in found) and bool(read / some.vocab <= scanned / layer.vocab)


def limited(plan: Plan, blocks: Blocks, making: Making, vectors: Doubles) -> Plan:
    """``plan`` with ``blocks`` before it for as many classes, and for such batches, as they answer sooner; without where they
    do not. They are on trial from the bytes on for which a search takes as long as what is behind them."""
    some, layer = some_of(vectors), making.layer
    about = About(delta=min(making.wanted.delta, MOST_DELTA), threads=making.threads, link=layer.link)
    alone, first = (_reader(layer, plan._replace(blocks=one), about) for one in (None, _always(blocks, layer)))

    def best(reader: native.Reader, k: int) -> Callable[[Doubles], Answer]:
        return lambda rows: reader.ask(rows, Question("best", k))

    most, lasting, ratio = 0, dict.fromkeys(BATCHES, 0), 1.0
    for k in ASKED:
        if k > layer.vocab:
            break
        seconds = timed([best(alone, k), best(first, k)], some, BATCHES)
        sooner = seconds[1] <= SOONER * seconds[0]
        if not sooner[0]:
            break
        lasting |= {batch: k for batch, good in zip(BATCHES, sooner, strict=True) if good and lasting[batch] == most}
        most = k
        ratio = float(seconds[0, 0] / seconds[1, 0]) if k <= K else ratio
    if not most:
        return plan._replace(blocks=None)
    few = min(most, K)
    read = np.mean([best(first, few)(row[None]).bytes[0] for row in some_of(vectors, JUDGES)])
    return plan._replace(
        blocks=blocks._replace(
            max_k=most,
            max_batch=EVERY if lasting[8] == most else 2 if lasting[2] == most else 1,
            max_k_of_batches=lasting[8],
            samples=_samples_sooner(layer, alone, first, some),
            trial=float(read - few * layer.row_bytes) * ratio,
        )
    )


def _samples_sooner(layer: Layer, alone: native.Reader, first: native.Reader, some: Doubles) -> bool:
    """Whether a sample without filters is sooner: the noise of every class is made either way."""
    if layer.link.lowered()[0] != "affine":
        return False

    plainly = Question("draw", filters=Filters(1, 1.0, 0, 1.0, 0.0, 0, 0))

    def sample(reader: native.Reader) -> Callable[[Doubles], Answer]:
        return lambda rows: reader.ask(rows, plainly)

    seconds = timed([sample(alone), sample(first)], some, BATCHES[:2])
    return bool((seconds[1] <= SOONER * seconds[0]).all())


def _always(blocks: Blocks, layer: Layer) -> Blocks:
    return blocks._replace(max_batch=EVERY, max_k=layer.vocab, samples=True, trial=math.inf)


def _reader(layer: Layer, plan: Plan, about: About) -> native.Reader:
    """What answers from a plan, for its times."""
    level, norms = native.isa(), np.zeros(layer.vocab, np.float32)  # which decide nothing but the rounding of float32
    return reader_of(layer, plan, norms, rows_of(layer, plan, norms, level, about), about, level)
