"""From a layer to an engine: arguments are checked, a method is chosen, an engine is built.

``codes`` reads a quarter of the bytes, with calibration vectors often a tenth; only where a layer is so small that reading all
of it takes microseconds is ``full`` the faster one. Which one is taken, and from which size on, is decided in
``engines/method_choice.py``. A method that promises nothing is never chosen for you.
"""

from __future__ import annotations

import difflib
import math
from functools import partial
from inspect import signature
from typing import Any, NamedTuple, Protocol, overload

from numpy.typing import ArrayLike

import headlong.engines.changed  # noqa: F401  # what engines become when classes come and go
from headlong import native
from headlong.arrays import is_linear
from headlong.dtypes import Doubles
from headlong.engines.adapting import Adapting
from headlong.engines.arguments import checked_eps, checked_hidden
from headlong.engines.base import Engine
from headlong.engines.build import reading
from headlong.engines.contest import decides, held_out
from headlong.engines.device.build import on_device
from headlong.engines.device.engine import DeviceEngine
from headlong.engines.device.memory import place_of
from headlong.engines.full import Full
from headlong.engines.method import METHODS, Method, Running, option_names
from headlong.engines.method_choice import choose
from headlong.engines.methods import adaptive, codes, svd
from headlong.engines.mixture import engine as mixture
from headlong.engines.structured import branches, differentiated, experts
from headlong.engines.structured.base import ENGINES, StructuredEngine
from headlong.errors import InputError, OptionError, ShapeError, named
from headlong.layers.matrix import Layer
from headlong.layers.structured import StructuredLayer
from headlong.number_checks import flag, real, text, whole
from headlong.promise import Promise

BUILT_IN = (Full, codes.Coded, svd.Svd, adaptive.Adaptive)
STRUCTURED = (
    branches.TreeEngine, branches.BandsEngine, differentiated.BlocksEngine, experts.ExpertsEngine, mixture.MixtureEngine,
)  # fmt: skip

ADAPTED = ("auto", "codes")
"""Methods whose plan vectors choose and whose promise does not rest on them."""


class Linear(Protocol):
    """What a ``torch.nn.Linear`` has; named here without importing torch."""

    weight: Any
    bias: Any


@overload
def compile(layer: Layer | Linear, method: str = ..., *, device: None = ..., **options: Any) -> Engine: ...
@overload
def compile(layer: Layer | StructuredLayer | Linear, method: str = ..., *, device: str, **options: Any) -> DeviceEngine: ...
@overload
def compile(layer: StructuredLayer, method: str = ..., *, device: None = ..., **options: Any) -> StructuredEngine: ...
def compile(
    layer: Layer | StructuredLayer | Linear,
    method: str = "auto",
    *,
    eps: float = 0.01,
    delta: float = 1e-6,
    log_probs: bool = True,
    calibration: ArrayLike | None = None,
    adapt: bool = False,
    threads: int | None = None,
    seed: int = 0,
    device: str | None = None,
    **options: Any,
) -> Engine | Adapting | StructuredEngine | DeviceEngine:
    """An engine whose ids are exact and ``|log p^ - log p| <= eps`` for each query, except with probability ``delta``.

    ``layer``        a layer, or a ``torch.nn.Linear``, whose weights are read in place
    ``method``       "auto", or one of ``headlong.engines.method.METHODS``; ``options`` are that method's
    ``delta``        for ids and log-probabilities together; 0: both are proved
    ``log_probs``    False: ids and logits alone are asked for, which reads less. A call may still name an ``eps``
    ``calibration``  ``[n, dim]``, hidden vectors like those of later queries, about four for each dimension. With them
                     ``codes`` read less, and ``svd`` misses less. What is promised holds for every vector. For "auto" the
                     last of them, a quarter and at most 256, time the plans that the others made
    ``adapt``        True: the engine keeps copies of its first queries, compiles better and better plans from them in the
                     background (some seconds each, in a thread of low priority) and uses them. For "auto" and "codes".
                     Where the whole layer is read anyway, there is nothing to learn: an engine that does not adapt comes back
    ``threads``      of every call; None: ``HEADLONG_THREADS``, else ``OMP_NUM_THREADS``, else all processors
    ``device``       "cuda" or "cuda:N": an engine in that GPU's memory, which returns tensors there; "interpreter": its
                     kernels in Triton's interpreter, for tests; None: the device of the layer's weight
    The engine's ``promise`` says what it keeps, which may be more than was asked (``full`` proves everything).
    A structured layer has one engine, that of its kind, which takes no calibration vectors.
    """
    eps, delta = checked_eps(eps), real(delta, "delta", 0.0, 1.0)
    wanted = Promise(eps if flag(log_probs, "log_probs") else math.inf, delta)
    whole(seed, "seed", 0, 2**64 - 1)
    text(method, "method", f"one of auto, {', '.join(sorted(METHODS))}")
    if is_linear(layer):
        layer = Layer(layer)
    flag(adapt, "adapt")
    if not isinstance(layer, Layer | StructuredLayer):
        raise InputError(f"layer is {named(layer)}; expected headlong.Layer(weight, bias), or a torch.nn.Linear")
    place = _place(device, layer)
    if place is not None:
        _check_placed(place, calibration=calibration, adapt=adapt)
        return on_device(layer, method, place, eps=wanted.eps, seed=seed, options=options)
    if isinstance(layer, StructuredLayer):
        if adapt:
            raise OptionError(f"adapt is for a headlong.Layer; {named(layer)} has one engine: leave adapt out")
        return _structured(layer, Wish(method, wanted, options), calibration, Running(threads, seed))
    vectors = None if calibration is None else _vectors(calibration, layer.dim, layer.vocab)
    if adapt and method not in ADAPTED:
        raise OptionError(f"adapt is for methods {' and '.join(ADAPTED)}; leave adapt or method out")
    wish, running = Wish(method, wanted, options), Running(threads, seed)
    engine = _read(layer, wish, running, vectors)
    if not adapt:
        return engine
    learns = engine.plan.looks or (method == "auto" and choose(layer, wanted, calibrated=True)[0] == "codes")
    return Adapting(engine, partial(_read, layer, wish, running, builders=1)) if learns else engine


class Wish(NamedTuple):
    """What was asked for: a method by name, or "auto", what it is to promise, and its options."""

    method: str
    promise: Promise
    options: dict[str, Any]


def _read(layer: Layer, wish: Wish, running: Running, vectors: Doubles | None, builders: int | None = None) -> Engine:
    """The engine of one matrix, as chosen or as asked for."""
    wanted, options, seed = wish.promise, wish.options, running.seed
    name, reason = wish.method, running.reason
    if name == "auto":
        name, reason = choose(layer, wanted, vectors is not None)
    if name == "codes":
        options = {"rotation": seed, **options}
    reader = configured(name, options).aimed(wanted)
    timed = wish.method == "auto" and name == "codes" and not {"bits", "segments"} & options.keys()  # those are the caller's
    held = None
    if timed and vectors is not None and decides():
        vectors, held = held_out(vectors)
    engine = reading(layer, reader, wanted, vectors, running._replace(reason=reason), builders)
    if vectors is not None and name == "full":
        engine.reason += "; the calibration vectors are not used"
    if vectors is not None and held is not None:
        engine = codes.by_the_clock(engine, vectors, held, wanted, seed)
    if engine.plan.codes is not None and reason != "asked for":
        bits = sum((stop - start) * bits for start, stop, bits, _ in engine.plan.codes.segments) / layer.dim
        engine.reason += f"; a code of {bits:.3g} bits for each weight"
    return engine


def _place(device: str | None, layer: Layer | StructuredLayer) -> str | None:
    """The device that was asked for or that the weight lies on, with what it takes at hand; None: the CPU."""
    place = device
    if place is None and layer.resident is not None:
        place = str(layer.resident.device)
    if place is not None:
        place_of(place)
    return place


def _check_placed(place: str, *, calibration: ArrayLike | None, adapt: bool) -> None:
    """OptionError where vectors or queries should choose a plan: on a device nothing is chosen."""
    for name, given in (("calibration", calibration is not None), ("adapt", adapt)):
        if given:
            raise OptionError(f"{name} was given, but device is {place!r}: engines there learn from no vectors, leave it out")


def _structured(layer: StructuredLayer, wish: Wish, calibration: ArrayLike | None, running: Running) -> StructuredEngine:
    """The engine of the layer's kind."""
    method = wish.method
    if method not in ("auto", layer.kind):
        raise OptionError(f"method is {method!r}; {named(layer)} is read by {layer.kind!r}, which is also its 'auto'")
    engine = ENGINES[layer.kind]
    if calibration is not None:
        raise OptionError(f"the {layer.kind} engine takes no calibration vectors; leave them out")
    native.threads(running.threads)
    chosen = engine.Options(**known(layer.kind, engine.Options, wish.options))
    reason = "asked for" if method == layer.kind else f"the engine for layers of the kind {layer.kind!r}"
    return engine(layer, chosen, wish.promise, running._replace(reason=reason))


def _vectors(calibration: ArrayLike | None, dim: int, vocab: int | None = None) -> Doubles:
    """Calibration vectors, checked."""
    vectors = checked_hidden(calibration, dim, "calibration", vocab)
    if not len(vectors):
        raise ShapeError("calibration has no rows; pass hidden vectors [n, dim], or None")
    return vectors


def known(name: str, kind: Any, options: dict[str, Any]) -> dict[str, Any]:
    """``options``, all of which ``kind`` has."""
    known = option_names(kind)
    for option in options:
        if option not in known:
            named = [*known, *signature(compile).parameters]
            near = difflib.get_close_matches(option, named, 1) or [one for one in named if one.startswith(option)]
            meant = f"did you mean {near[0]}=? " if near else ""
            raise OptionError(f"{name} has no option {option!r}; {meant}it has {', '.join(known) or 'none'}")
    return options


def configured(name: Any, options: dict[str, Any]) -> Method:
    """The method ``name`` with its options."""
    if not isinstance(name, str) or name not in METHODS:
        hint = "; torch's AdaptiveLogSoftmaxWithLoss is headlong.structured.BandsLayer" if name == "bands" else ""
        raise OptionError(f"method is {name!r}; choose from auto, {', '.join(sorted(METHODS))}{hint}")
    method: Method = METHODS[name](**known(name, METHODS[name], options))
    return method
