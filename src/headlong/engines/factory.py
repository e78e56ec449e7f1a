"""An engine over one matrix, from a layer and a method: one pass over the weights, the plan, the promise.

What ``headlong.compile`` does for a plain layer, and what the engines of structured layers do for each of their matrices.
"""

from __future__ import annotations

import math

import numpy as np

from headlong import native
from headlong.answers import Promise
from headlong.costs import BUILT_IN, Costs, here
from headlong.engines.base import Engine
from headlong.engines.method import METHODS, Method
from headlong.errors import NonFiniteError, OptionError
from headlong.layers.matrix import Layer
from headlong.native import Doubles, Floats
from headlong.plan import Plan

FEW, FEW_TO_BET = 60_000, 2_200_000
"""Weights, and bytes of rows, below which reading all of them is no slower than looking first: for ids and proofs, and where a
bet settles the normaliser, which takes some tens of microseconds whatever the size (``results/choice.json``). At built-in
costs, that is: a machine whose passes are dearer, or whose bytes are cheaper, reads larger layers whole."""
LIBRARY = (
    "the linear algebra library that NumPy was built with computes wrongly here: try another kernel of it "
    "(OPENBLAS_CORETYPE), or method='full', which needs none"
)
READERS = ("auto", "full", "cascade")
"""What may read a matrix of a structured layer: those that prove their answers."""


def bets(wanted: Promise) -> bool:
    """Whether the normaliser is settled by a bet on sampled rows."""
    return wanted.delta > 0 and math.isfinite(wanted.eps)


def choose(layer: Layer, wanted: Promise, calibrated: bool = False) -> tuple[str, str]:
    """The method that "auto" stands for, and why."""
    size, small, unit = layer.vocab * layer.dim, FEW, "weights"
    if bets(wanted):
        size, small, unit = size * layer.weight.itemsize, FEW_TO_BET, "bytes of rows"
    small = round(small * math.sqrt(passes_in_bytes(here()) / passes_in_bytes(BUILT_IN)))  # half of it is arithmetic
    if size < small:
        return "full", f"{size:,} {unit}, fewer than {small:,}: reading all of them is no slower than looking first"
    looks = "calibration vectors choose the first look" if calibrated else "int8 codes prove ids from a fraction of the bytes"
    return "cascade", f"{size:,} {unit}, {small:,} or more: {looks}"


def passes_in_bytes(costs: Costs) -> float:
    """How many bytes of a layer in the caches are read in the time that a pass of all threads takes to begin and end."""
    return costs.level / costs.cache


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


def first_look(plan: Plan) -> str:
    """What level 0 reads, in words."""
    width = max(stop for _, stop, _ in plan.levels[0].layout)
    if any(bits < 8 for *_, bits in plan.levels[0].layout):
        return "few bits of all coordinates, more where the energy is"
    return "int8 codes of all coordinates" if plan.rotation is None else f"a whitened prefix of {width} coordinates"
