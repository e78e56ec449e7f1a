"""Whether blocks answer sooner than a scan of all classes: what calibration vectors open, in bytes of a scan.

    search  =  threads * (what every search reads + FETCHED * what it opens + (ROW + ALONE * a row's bytes) * rows)
    look    =  bytes of every class + COMPARED * classes + PASSES + ROW * candidates + the same of rows

    candidates  =  k (1 + log(classes / k))      those that are better than all before, where classes come in any order

A search is one thread's. A batch shares the bytes of a look, whose products are each query's own. What the two numbers say
is on trial while they answer.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from headlong import native
from headlong.arrays import Array
from headlong.dtypes import Doubles
from headlong.layers.matrix import Layer
from headlong.plan import SHORT, Blocks, Plan
from headlong.randomness import stream

FETCHED, ROW, ALONE = 1.85, 670.0, 2.9
"""Bytes of a scan that take as long as a byte here and there, as a row beside its bytes, and as one of these, measured by all
threads together on two cores of a server processor of 2022, as those below."""
COMPARED, PASSES, PRODUCTS = 42.0, 150_000.0, 0.14
"""The same of a class's interval, of the passes that all threads begin and end together, and, in a batch, of the products of a
byte of codes with one query."""
THREADS, BATCH = 2, 8
"""Threads, and the queries of what counts as a batch."""
LEAD = 0.85
"""Of the look's time: the vectors that a search is judged by chose its bounds, too, and others open more."""
JUDGES, FEWEST, ASKED_IN_ALL = 16, 4, 2048
"""Calibration vectors that are searched for: fewer, but no fewer than :data:`FEWEST`, where each of them is asked for many
classes, whose numbers differ less from vector to vector."""
ASKED = (1, 16, SHORT, 256, 1024, 4096)
"""How many classes: more of them open more blocks."""
EVERY = 2**31 - 1
STAND_INS, NOISE, BESIDE_BIAS = 4096, 0.7, 4.0
"""Rows of the layer that stand in for hidden vectors, and the length of what is added to a row of length one."""


def read_by(layer: Layer, blocks: Blocks, vectors: Doubles, share: float, k: int) -> float:
    """Bytes that a search for the ``k`` best reads on average of some vectors; inf where one is given up."""
    search, judges, total = native.blocks(layer.weight, layer.bias, blocks, share, native.isa()), _judges(vectors, k), 0.0
    for row in judges:  # each alone: together they would share what they read
        answer = search.topk(row[None], k, None, 1)
        total += float(np.mean(answer[3]))
        if not answer[5].all():
            return math.inf
    return total / len(judges)


def _judges(vectors: Doubles, k: int) -> Doubles:
    most = max(FEWEST, min(JUDGES, ASKED_IN_ALL // k))
    return np.ascontiguousarray(vectors[:: -(-len(vectors) // most)], np.float64)


def worth(layer: Layer, plan: Plan, blocks: Blocks, vectors: Doubles, share: float) -> Blocks:
    """``blocks`` for the largest k of :data:`ASKED` for which a search takes less time than a scan of all classes (0: none), as
    some vectors show: for one query, for two, which share what a look reads, and for more of them; on trial from the bytes on,
    without the answers' rows, from which it takes more."""
    search = functools.cache(lambda k: searched(layer, blocks, vectors, share, k))

    def last(batch: int) -> int:
        most = 0
        for k in ASKED:
            if k > layer.vocab or not sooner(layer, search(k), scan_time(layer, plan, k, batch), batch):
                break
            most = k
        return most

    most = last(1)
    if not most:
        return blocks._replace(max_k=0, max_k_of_batches=0)
    found, row = search(min(most, SHORT)), layer.row_bytes
    spare = scan_time(layer, plan, min(most, SHORT), 1) - search_time(layer, found._replace(opened=0.0), 1)
    opened = max(found.opened, spare / (THREADS * FETCHED))
    trial = found.every + opened + max(0.0, found.rows - min(most, SHORT)) * row
    many = last(BATCH)
    batch = EVERY if many >= most else 2 if last(2) >= most else 1
    return blocks._replace(max_k=most, max_batch=batch, max_k_of_batches=many, trial=trial)


class Counted(NamedTuple):
    """Of one query: bytes that every query reads, bytes that it opens, and rows; the share of queries that have to be asked
    again, another way."""

    every: float
    opened: float
    rows: float
    again: float = 0.0


def sooner(layer: Layer, search: Counted, look: float, batch: int) -> bool:
    """Whether the search is well over before the look is, for one query of a batch."""
    return search_time(layer, search, batch) <= LEAD * look * (1 - search.again)


def search_time(layer: Layer, search: Counted, batch: int) -> float:
    """In bytes of a scan. In a batch every thread has queries of its own."""
    alone = FETCHED * search.opened + (ROW + ALONE * layer.row_bytes) * search.rows
    return THREADS * (search.every + alone) if batch == 1 else search.every / batch + alone


def scan_time(layer: Layer, plan: Plan, k: int, batch: int) -> float:
    """The same of a look for the ``k`` best: of one query, each thread has some of the classes, and the best of those."""
    threads = THREADS if batch == 1 else 1
    candidates = threads * k * (1 + math.log(max(1.0, layer.vocab / (threads * k))))
    rows = (threads * ROW + ALONE * layer.row_bytes) * k
    passes = PASSES if batch == 1 else 0.0
    return scan_bytes(layer, plan) * max(1 / batch, PRODUCTS) + COMPARED * layer.vocab + passes + ROW * candidates + rows


def searched(layer: Layer, blocks: Blocks, vectors: Doubles, share: float, k: int) -> Counted:
    """What searches for the ``k`` best read on average of some vectors."""
    search, judges = native.blocks(layer.weight, layer.bias, blocks, share, native.isa()), _judges(vectors, k)
    every, rows, read, done = _every(blocks), 0.0, 0.0, 0.0
    for row in judges:  # each alone: together they would share what they read
        answer = search.topk(row[None], k, None, 1)
        done += float(answer[5][0]) / len(judges)
        rows, read = rows + float(answer[2][0]) / len(judges), read + float(answer[3][0]) / len(judges)
    return Counted(every, max(0.0, read - every - rows * layer.row_bytes), rows, again=1 - done)


def _every(blocks: Blocks) -> float:
    """Bytes that every search reads."""
    arrays = (blocks.head, blocks.back, blocks.rest, blocks.levels[0].records)
    return float(sum(array.nbytes for array in arrays if array is not None))


def worth_sampling(layer: Layer, plan: Plan, blocks: Blocks, vectors: Doubles, share: float, always: bool) -> bool:
    """Whether a sample without filters takes less time by blocks, on some vectors: the noise of every class is made either way.
    ``always``: it is enough that they can."""
    if layer.link.lowered()[0] != "affine":
        return False
    if always:
        return True
    reader = _reader(layer, blocks, share)
    found = [reader.sample(one[None], 1, 1.0, 0, 1.0, 0.0, seed, 0, None, 1) for seed, one in enumerate(_judges(vectors, 1))]
    every = _every(blocks)
    rows, read = (float(np.mean([getattr(answer, name)[0] for answer in found])) for name in ("rows", "bytes"))
    counted = Counted(every, max(0.0, read - every - rows * layer.row_bytes), rows)
    return all(sooner(layer, counted, scan_time(layer, plan, 1, batch), batch) for batch in (1, 2))


def _reader(layer: Layer, blocks: Blocks, share: float) -> Any:
    """What answers by blocks whatever these can, and by all rows what they cannot: ``dense`` says so."""
    level, norms = native.isa(), np.zeros(layer.vocab, np.float32)  # which decide nothing but the rounding of float32
    rows = native.executor(layer.weight, layer.bias, norms, layer.link.lowered(), Plan(), level)
    always = blocks._replace(max_batch=EVERY, max_k=layer.vocab, samples=True)
    return native.reader(rows, None, native.blocks(layer.weight, layer.bias, blocks, share, level), always)


def scan_bytes(layer: Layer, plan: Plan) -> float:
    """What a query reads of every class, whatever it asks."""
    return float(layer.vocab * layer.row_bytes if plan.codes is None else plan.codes.tiles.nbytes + plan.codes.rotation.nbytes)


def stand_ins(layer: Layer) -> Array:
    """Directions of rows of the layer, less their mean, evenly spread, and :data:`NOISE` in every direction.

    A vector that predicts a class leans towards its row, and is more than that: without the noise all of the others' energy
    would be thought to lie in the layer's leading directions, and looks would come out too short for real queries. How long
    hidden vectors are is not known either. Biases matter beside products of unit length only: so vectors are long enough for
    products that vary :data:`BESIDE_BIAS` times as much as biases do.
    """
    rows = layer.weight[:: -(-layer.vocab // STAND_INS)].astype(np.float64)
    rows -= rows.mean(axis=0)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    rows = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    noise = stream("stand-ins", 0).standard_normal(rows.shape)
    found = rows + NOISE / math.sqrt(layer.dim) * noise
    if layer.bias is None:
        return np.asarray(found)
    some = slice(None, None, -(-len(found) // ASKED[3]))
    varied = float(np.std(found[some] @ layer.weight[:: -(-layer.vocab // STAND_INS)].astype(np.float64).T))
    wanted = BESIDE_BIAS * float(np.std(layer.bias, dtype=np.float64))  # squares of large ones are beyond float32
    return np.asarray(found * max(1.0, wanted / varied) if varied > 0 else found)
