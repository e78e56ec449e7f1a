"""The parts of a layer with changes, settled classes and added rows: what they are made of, and searched in one call.

New rows are stored as the layer's are (a bound is about stored numbers), and new ids leave no gap: those of classes that are
there or were, or the next ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.arrays import Array, as_numpy, checked_ids, stored_matrix
from headlong.dtypes import Ids
from headlong.encode.blocks.boxes import blocks_in
from headlong.engines.base import Engine
from headlong.engines.build import checked_norms
from headlong.errors import DtypeError, IdError, NonFiniteError, ShapeError
from headlong.layers.matrix import Layer
from headlong.plan import MOST_SCORED, NEIGHBOURS
from headlong.question import About

Places = NDArray[Any]


def ids_alone(settled: Engine, there: NDArray[np.uint8], rows: Layer | None, ids: Ids) -> native.NativeReader | None:
    """``topk`` of settled classes and added rows in one search over blocks, for calls that ask for ids alone.

    None where there are no blocks, or where their basis was not kept.
    """
    plan, level = settled.plan, native.isa()
    if plan.blocks is None or level == native.REFERENCE:
        return None
    order = plan.blocks.order
    longest = float(settled.norms.max())
    search = native.blocks(settled.layer.weight, settled.layer.bias, plan.blocks, MOST_SCORED, level, longest)
    if not there.all():
        places = (there[np.maximum(order, 0)] != 0).reshape(-1, NEIGHBOURS)
        search.keep_there(np.packbits(places, axis=1, bitorder="little").view("<u2").ravel())
    if rows is not None:
        more = blocks_in(plan, rows, native.threads(settled.threads))
        if more is None:
            return None
        longest = float(checked_norms(rows, native.threads(settled.threads)).max())
        added = native.blocks(rows.weight, rows.bias, more, MOST_SCORED, level, longest)
        added.name(ids)
        search.put_next(added)
    blocks = plan.blocks._replace(samples=False)
    promise, rows_read = settled.promise, settled.rows
    assert isinstance(rows_read, native.NativeReader)
    path, link = f"{settled.name}/{level}", settled.layer.link
    about = About(promise.eps, estimates=promise.delta >= 1, threads=settled.threads or 0, path=path, link=link)
    return native.NativeReader(rows_read.rows, about, None, search, blocks, every=False)


def rows_like(layer: Layer, weight: Any, bias: Any) -> Layer:
    """``weight [m, dim]`` and ``bias [m]`` (None: 0) as a layer of their own, of a copy, with the layer's type and link."""
    rows = stored_matrix(weight)
    if rows.shape[1] != layer.dim:
        raise ShapeError(f"weight has shape {list(rows.shape)}; expected [m, {layer.dim}]")
    if rows.dtype != layer.weight.dtype:
        raise DtypeError(f"weight is {rows.dtype}; expected {layer.dtype}, as the layer's rows are stored: convert it")
    if bias is None and layer.bias is not None:
        bias = np.zeros(len(rows), np.float32)
    found = Layer(rows, bias, layer.link, copy=True)
    if not np.isfinite(found.weight.astype(np.float32)).all():
        raise NonFiniteError("weight holds NaN or infinity; repair the rows, or leave them out")
    return found


def new_ids(ids: Any, count: int, vocab: int) -> Ids:
    """Those of ``count`` rows: the next ones, or ``ids``, each once and none left out behind the last that there is."""
    if ids is None:
        return np.arange(vocab, vocab + count)
    names = checked_ids(as_numpy(ids, "ids").reshape(-1), vocab + count, "ids")
    if len(names) != count or len(np.unique(names)) != count:
        raise IdError(f"{len(names):,} ids were given for {count:,} rows; expected one id for each row, none twice")
    if (names >= vocab).any() and int(names.max()) != vocab + int((names >= vocab).sum()) - 1:
        raise IdError(f"ids reach {int(names.max())}; expected the next ids after {vocab - 1}, the last one, without a gap")
    return names


def kept_of(rows: Layer | None, which: Places) -> Layer | None:
    """Some of the rows: marks, or places in a new order."""
    if rows is None or not len(rows.weight[which]):
        return None
    bias = None if rows.bias is None else rows.bias[which]
    return Layer(rows.weight[which], bias, rows.link, copy=True)


def joined(first: Layer | None, second: Layer, order: Ids) -> Layer:
    """The rows of both in a new order."""
    if first is None:
        weight, bias = second.weight, second.bias
    else:
        weight = np.concatenate([first.weight, second.weight])
        biases = [np.zeros(one.vocab, np.float32) if one.bias is None else one.bias for one in (first, second)]
        bias = None if first.bias is None and second.bias is None else np.concatenate(biases)
    return Layer(weight[order], None if bias is None else bias[order], second.link, copy=True)


def one_layer(settled: Layer, rows: Layer | None, ids: Ids, alive: Array) -> Layer:
    """All classes in one matrix: zeros where one is gone."""
    weight = np.zeros((len(alive), settled.dim), settled.weight.dtype)
    weight[: settled.vocab] = settled.weight
    some = settled.bias is not None or (rows is not None and rows.bias is not None)
    bias = np.zeros(len(alive), np.float32) if some else None
    if bias is not None and settled.bias is not None:
        bias[: settled.vocab] = settled.bias
    if rows is not None:
        weight[ids] = rows.weight
        if bias is not None:
            bias[ids] = 0 if rows.bias is None else rows.bias
    weight[alive == 0] = 0
    if bias is not None:
        bias[alive == 0] = 0
        bias.setflags(write=False)
    weight.setflags(write=False)
    return Layer(weight, bias, settled.link, name=settled.name)
