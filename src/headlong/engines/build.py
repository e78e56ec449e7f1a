"""One engine is built and checked: from a matrix and a method, one pass over the weights, the plan, the promise.

What ``headlong.compile`` does for a plain layer, and what the engines of structured layers do for each of their matrices. Which
method "auto" stands for is in :mod:`headlong.engines.method_choice`.
"""

from __future__ import annotations

import numpy as np

from headlong import native
from headlong.engines.base import Engine
from headlong.engines.method import METHODS, Method
from headlong.engines.method_choice import choose
from headlong.errors import NonFiniteError, OptionError
from headlong.layers.matrix import Layer
from headlong.native import Doubles, Floats
from headlong.plan import Plan
from headlong.promise import Promise

LIBRARY = (
    "the linear algebra library that NumPy was built with computes wrongly here: try another kernel of it "
    "(OPENBLAS_CORETYPE), or method='full', which needs none"
)
READERS = ("auto", "full", "cascade")
"""What may read a matrix of a structured layer: those that prove their answers."""


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
    promise = reader.promise(wanted, vectors is not None)
    try:
        plan = reader.plan(layer, vectors, count, promise)
    except np.linalg.LinAlgError as error:
        raise NonFiniteError(f"no basis for the layer was found ({error}); {LIBRARY}") from error
    check_numbers(plan)
    return Engine(layer, reader, plan, norms, promise, threads=threads, seed=seed, reason=reason)


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
    named = {"mean": plan.mean, "rotation": plan.rotation, "base": plan.base, "centre": plan.centre}
    for number, level in enumerate(plan.levels):
        named |= {f"scale of level {number}": level.scale, f"slack of level {number}": level.slack}
    small = {name: array for name, array in (plan.arrays or {}).items() if array.dtype == np.float64}
    for name, array in (named | small).items():
        if array is not None and np.isnan(array).any():
            raise NonFiniteError(f"the {name} of the plan came out with NaN, though layer and vectors are finite; {LIBRARY}")


def part(
    layer: Layer, method: str, wanted: Promise, *, threads: int | None, seed: int, vectors: Doubles | None = None
) -> Engine:
    """The engine of one matrix of a structured layer; ``vectors`` are what it is asked for, and choose its plan."""
    if method not in READERS:
        raise OptionError(f"parts is {method!r}; expected one of {', '.join(READERS)}")
    name, reason = choose(layer, wanted, vectors is not None) if method == "auto" else (method, "asked for")
    wanted = wanted._replace(over=frozenset({"query"}))
    return reading(layer, METHODS[name](), wanted, vectors, threads=threads, seed=seed, reason=reason)
