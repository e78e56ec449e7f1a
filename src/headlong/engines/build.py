"""One engine is built and checked: from a matrix and a method, one pass over the weights, the plan, the promise.

What ``headlong.compile`` does for a layer of one matrix, and what the engines of structured layers do for each of their
matrices. Which method "auto" stands for is in :mod:`headlong.engines.method_choice`.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np

from headlong import native
from headlong.arrays import Array
from headlong.dtypes import Doubles, Floats
from headlong.engines.base import Engine
from headlong.engines.method import PLAIN, Making, Method, Running
from headlong.errors import NonFiniteError
from headlong.layers.matrix import Layer
from headlong.plan import Plan
from headlong.promise import Promise

LIBRARY = (
    "the linear algebra library that NumPy was built with computes wrongly here: try another kernel of it "
    "(OPENBLAS_CORETYPE), or method='full', which needs none"
)
MANY_WEIGHTS = 1 << 24
"""Weights of a layer that is large beside what a program takes."""


def reading(
    layer: Layer,
    reader: Method,
    wanted: Promise,
    vectors: Doubles | None = None,
    running: Running = PLAIN,
    builders: int | None = None,
) -> Engine:
    """The engine that reads ``layer`` by ``reader`` and keeps ``wanted``; ``vectors`` calibrate it.

    ``builders``  threads that make the plan; None: as many as read it
    """
    count = native.threads(running.threads) if builders is None else builders
    norms = checked_norms(layer, count)
    try:
        plan = reader.plan(Making(layer, vectors, count, wanted))
    except np.linalg.LinAlgError as error:
        raise NonFiniteError(f"no basis for the layer was found ({error}); {LIBRARY}") from error
    check_numbers(plan)
    if layer.vocab * layer.dim >= MANY_WEIGHTS:
        give_back_pages()
    return Engine(layer, reader, plan, norms, reader.promise(wanted, plan), running)


def give_back_pages() -> None:
    """To the system, what an allocator holds of freed memory: with GNU's an eighth of a large head after a plan was made."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def checked_norms(layer: Layer, threads: int) -> Floats:
    """The lengths of all rows, none of which may be infinite or no number."""
    norms = native.row_norms(layer.weight, threads)
    if np.isnan(norms).any():
        row = int(np.argmax(np.isnan(norms)))
        raise NonFiniteError(f"weight row {row:,} holds NaN or infinity; repair it, or remove the class from the layer")
    if np.isinf(norms).any():
        row = int(np.argmax(norms))
        raise NonFiniteError(
            f"weight row {row:,} is longer than float32 can hold; rescale the layer, with Affine(scale) to undo it"
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
