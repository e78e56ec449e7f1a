"""From a layer to an engine: the choice of a method and its reason, one pass over the weights, the promise.

``cascade`` proves ids from a quarter of the bytes, with calibration vectors often from a twentieth; only where a layer is so
small that reading all of it takes microseconds is ``full`` the faster one. A method that promises nothing is never chosen
for you.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from headlong import kernels
from headlong.arrays import hidden64
from headlong.engines import cascade, full, svd
from headlong.engines.base import LARGEST, METHODS, Engine, Method, checked_eps
from headlong.engines.options import real, whole
from headlong.engines.saved import read_engine
from headlong.errors import InputError, MalformedFileError, NonFiniteError, OptionError, ShapeError
from headlong.layers.matrix import Layer
from headlong.plan import Plan

SMALL = 1_500_000
"""Weights below which reading all of them is no slower than looking first."""

BUILT_IN = (full.Full, cascade.Cascade, svd.Svd)


def compile(
    layer: Layer,
    method: str = "auto",
    eps: float = 0.01,
    delta: float = 1e-3,
    delta_ids: float = 0.0,
    calibration: Any = None,
    threads: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Engine:
    """An engine that keeps ``|log p^ - log p| <= eps`` but for probability ``delta``, ids but for ``delta_ids``.

    ``method``       "auto", or one of ``headlong.engines.base.METHODS``; ``options`` are that method's
    ``calibration``  ``[n, dim]`` hidden vectors as the engine will see them, some thousands: they decide how little has to be
                     read (``cascade``) or what is (``svd``); what is promised holds for every vector
    ``threads``      of every call; None: ``HEADLONG_THREADS`` or all processors
    The engine's ``promise`` says what it keeps, which may be more than was asked (``full`` proves everything).
    """
    if not isinstance(layer, Layer):
        raise InputError(f"layer is a {type(layer).__name__}; expected headlong.Layer(weight, bias)")
    eps = checked_eps(eps)
    real(delta, "delta", 0.0, 1.0)
    real(delta_ids, "delta_ids", 0.0, 1.0)
    whole(seed, "seed", 0, 2**64 - 1)
    vectors = None if calibration is None else hidden64(calibration, layer.dim, "calibration")
    if vectors is not None and np.abs(vectors).max(initial=0.0) > LARGEST:
        raise NonFiniteError(f"calibration reaches {np.abs(vectors).max():.3g}, beyond float32's range; rescale the vectors")
    if vectors is not None and not len(vectors):
        raise ShapeError("calibration has no rows; pass hidden vectors [n, dim], or None")
    name, reason = choose(layer, vectors is not None) if method == "auto" else (method, "asked for")
    reader = configured(name, options)
    count = kernels.threads(threads)
    norms = kernels.row_norms(layer.weight, count)
    if np.isnan(norms).any():
        row = int(np.argmax(np.isnan(norms)))
        raise NonFiniteError(f"weight row {row} holds NaN or infinity; repair it, or remove the class from the layer")
    if np.isinf(norms).any():
        row = int(np.argmax(norms))
        raise NonFiniteError(
            f"weight row {row} is longer than float32 can say; rescale the layer, with Affine(scale) to undo it"
        )
    promise = reader.promise(eps, delta, delta_ids)
    plan = reader.plan(layer, vectors, count, promise)
    if method == "auto" and vectors is not None and len(plan.levels):
        reason += f": {_first_look(plan)}"
    return Engine(layer, reader, plan, norms, promise, threads=threads, seed=seed, reason=reason)


def _first_look(plan: Plan) -> str:
    """What level 0 reads, in words."""
    width = max(stop for _, stop, _ in plan.levels[0].layout)
    return "int8 codes of all coordinates" if plan.rotation is None else f"a whitened prefix of {width} coordinates"


def choose(layer: Layer, calibrated: bool = False) -> tuple[str, str]:
    """The method that "auto" stands for, and why."""
    size = layer.vocab * layer.dim
    if size < SMALL:
        return "full", f"{size:,} weights, fewer than {SMALL:,}: reading all of them is no slower than looking first"
    looks = "calibration vectors choose the first look" if calibrated else "int8 codes prove ids from a fraction of the bytes"
    return "cascade", f"{size:,} weights, {SMALL:,} or more: {looks}"


def configured(name: Any, options: dict[str, Any]) -> Method:
    """The method ``name`` with its options."""
    if not isinstance(name, str) or name not in METHODS:
        raise OptionError(f"method is {name!r}; choose from auto, {', '.join(METHODS)}")
    known = [field for field in METHODS[name].__dataclass_fields__ if field != "name"]
    for option in options:
        if option not in known:
            raise OptionError(f"{name} has no option {option!r}; it has {', '.join(known) or 'none'}")
    method: Method = METHODS[name](**options)
    return method


def load(path: str | os.PathLike[str], layer: Layer | None = None, threads: int | None = None) -> Engine:
    """An engine that was saved: mapped, ready in milliseconds. ``layer`` is needed where it was left out of the file."""
    if threads is not None:
        kernels.threads(threads)
    saved = read_engine(path, layer)
    try:
        method = configured(saved.method, saved.options)
        return Engine(
            saved.layer, method, saved.plan, saved.norms, saved.promise,
            threads=threads, seed=saved.seed, reason=saved.reason,
        )  # fmt: skip
    except ValueError as error:  # an option that is none, or numbers that the native module refuses
        raise MalformedFileError(f"{os.fspath(path)}: {error}") from error
