"""One engine is built and checked: from a matrix and a method, one pass over the weights, the plan, the promise.

What ``headlong.compile`` does for a layer of one matrix, and what the engines of structured layers do for each of their
matrices. Which method "auto" stands for is in :mod:`headlong.engines.method_choice`.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from headlong import native
from headlong.arrays import LEAST_LARGE, Array, large_empty
from headlong.dtypes import Doubles, Floats
from headlong.engines.base import Engine
from headlong.engines.method import Method
from headlong.errors import NonFiniteError
from headlong.layers.matrix import Layer
from headlong.plan import Plan
from headlong.promise import Promise

LIBRARY = (
    "the linear algebra library that NumPy was built with computes wrongly here: try another kernel of it "
    "(OPENBLAS_CORETYPE), or method='full', which needs none"
)
LINE = 64
"""Bytes from whose multiples every array of a plan begins: a line of the cache."""
MANY_WEIGHTS = 1 << 24
"""Weights of a layer that is large beside what a program takes."""


def reading(
    layer: Layer,
    reader: Method,
    wanted: Promise,
    vectors: Doubles | None = None,
    *,
    threads: int | None = None,
    seed: int = 0,
    reason: str = "asked for",
    builders: int | None = None,
) -> Engine:
    """The engine that reads ``layer`` by ``reader`` and keeps ``wanted``; ``vectors`` calibrate it.

    ``builders``  threads that make the plan; None: as many as read it
    """
    count = native.threads(threads) if builders is None else builders
    norms = checked_norms(layer, count)
    try:
        plan = reader.plan(layer, vectors, count, wanted)
    except np.linalg.LinAlgError as error:
        raise NonFiniteError(f"no basis for the layer was found ({error}); {LIBRARY}") from error
    check_numbers(plan)
    plan = in_large_pages(plan)
    if layer.vocab * layer.dim >= MANY_WEIGHTS:
        give_back_pages()
    return Engine(layer, reader, plan, norms, reader.promise(wanted, plan), threads=threads, seed=seed, reason=reason)


def give_back_pages() -> None:
    """To the system, what an allocator holds of freed memory: with GNU's an eighth of a large head after a plan was made."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def in_large_pages(plan: Plan) -> Plan:
    """The same plan, its smaller arrays copied one behind the other into large pages, where the system has them. Those of
    :data:`LEAST_LARGE` bytes have such pages already, and a plan with less than that in all is left as it is.

    Otherwise chance decides where a small array lies: in pages that another one left, or, if a thread made it, in small ones,
    each of which has to be looked up by a search that jumps among the records.
    """
    small = {id(array): array for array in arrays_of(plan) if array.nbytes < LEAST_LARGE and array.flags.c_contiguous}
    sizes = [-(-array.nbytes // LINE) * LINE for array in small.values()]
    if sum(sizes) < LEAST_LARGE:
        return plan
    room, moved = large_empty((sum(sizes),)), {}
    for array, stop, size in zip(small.values(), itertools.accumulate(sizes), sizes, strict=True):
        place = room[stop - size : stop][: array.nbytes].view(array.dtype).reshape(array.shape)
        place[...] = array
        place.flags.writeable = array.flags.writeable
        moved[id(array)] = place
    found: Plan = _replaced(plan, moved)
    return found


def arrays_of(part: Any) -> Iterator[Array]:
    """All arrays of a plan, or of a part of it."""
    if isinstance(part, np.ndarray):
        yield part
    elif isinstance(part, (tuple, Mapping)):
        for inner in part.values() if isinstance(part, Mapping) else part:
            yield from arrays_of(inner)


def _replaced(part: Any, moved: Mapping[int, Array]) -> Any:
    """``part`` with other arrays in place of its own, by their ids."""
    if isinstance(part, np.ndarray):
        return moved.get(id(part), part)
    if isinstance(part, Mapping):
        return {name: _replaced(inner, moved) for name, inner in part.items()}
    if not isinstance(part, tuple):
        return part
    inner = [_replaced(one, moved) for one in part]
    return type(part)(*inner) if hasattr(part, "_fields") else tuple(inner)


def checked_norms(layer: Layer, threads: int) -> Floats:
    """The lengths of all rows, none of which may be infinite or no number."""
    norms = native.row_norms(layer.weight, threads)
    if np.isnan(norms).any():
        row = int(np.argmax(np.isnan(norms)))
        raise NonFiniteError(f"weight row {row} holds NaN or infinity; repair it, or remove the class from the layer")
    if np.isinf(norms).any():
        row = int(np.argmax(norms))
        raise NonFiniteError(
            f"weight row {row} is longer than float32 can hold; rescale the layer, with Affine(scale) to undo it"
        )
    return norms


def check_numbers(plan: Plan) -> None:
    """NonFiniteError where a plan of finite numbers came out with NaN: comparisons with it have no order, and radii no end."""
    named: dict[str, Array] = {} if plan.preview is None else {"preview": plan.preview.columns}
    if plan.codes is not None:
        named |= {"rotation": plan.codes.rotation, "bounds": plan.codes.bounds}
    small = {name: array for name, array in (plan.arrays or {}).items() if array.dtype == np.float64}
    for name, array in (named | small).items():
        if np.isnan(array).any():
            raise NonFiniteError(f"the {name} of the plan came out with NaN, though layer and vectors are finite; {LIBRARY}")
