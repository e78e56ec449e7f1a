"""From layer to engine: the predicate, the promise, refusals; and the main job on a trained layer."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import headlong
import headlong as hl
from headlong import native
from headlong.engines.method_choice import LEAST_NUMBERS, MOST_DIM, UNTIMED, choose
from headlong.engines.reference.gumbel import gumbels
from headlong.errors import (
    HeadlongError,
    InputError,
    MissingPackageError,
    NonFiniteError,
    OptionError,
    ShapeError,
)
from headlong.layers.matrix import Layer
from oracle import check_draw, check_topk, check_within, truth
from thinned import ALL

SMALL_LAYER = hl.Layer(np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32))


def test_auto_is_one_predicate_with_a_reason() -> None:
    bet, proof, ids = hl.Promise(0.01, 0.001), hl.Promise(0.01, 0.0), hl.Promise(math.inf, 0.0)
    small = hl.Layer(np.ones((LEAST_NUMBERS // 64 - 1, 64), np.float16))
    middling, large = (hl.Layer(np.ones((size // 64, 64), np.float16)) for size in (LEAST_NUMBERS, UNTIMED))
    tall, wide = (hl.Layer(np.ones(shape, np.float16)) for shape in ((8192, 1024), (4 * MOST_DIM + 4, MOST_DIM + 1)))
    uncoded = hl.Layer(np.zeros((UNTIMED // 64, 64), np.float16))
    for layer, wanted, calibrated, method, why in (
        (small, bet, True, "full", "read in no time"),
        (middling, bet, True, "codes", "262,144 weights"),
        (middling, bet, False, "full", "fewer than 4,194,304, and no calibration vectors"),
        (large, bet, False, "codes", "weights"),
        (large, ids, False, "codes", "weights"),
        (large, proof, False, "full", "proved log-probabilities take all rows"),
        (large, proof, True, "codes", "weights"),
        (middling, ids, False, "codes", "weights"),
        (tall, bet, True, "codes", "weights"),
        (tall, bet, False, "full", "rotating a query takes too long"),
        (tall, ids, False, "codes", "weights"),
        (wide, ids, False, "full", "rotating a query takes too long"),
        (uncoded, bet, True, "full", "leave float32"),
    ):
        found = choose(layer, wanted, calibrated)
        assert found[0] == method and why in found[1]
    engine = hl.compile(SMALL_LAYER)
    assert engine.method.name == "full" and engine.reason == choose(SMALL_LAYER, bet, False)[1]
    assert hl.compile(SMALL_LAYER, "codes").reason == "asked for"
    vectors = np.random.default_rng(1).standard_normal((50, 16))
    for method in ("auto", "full"):
        assert hl.compile(SMALL_LAYER, method, calibration=vectors).reason.endswith("; the calibration vectors are not used")
    assert "not used" not in hl.compile(SMALL_LAYER, "codes", calibration=vectors).reason


def test_promises() -> None:
    """What is asked, or more: full proves everything."""
    full, coded, alone, proof = (
        hl.compile(SMALL_LAYER, method, **asked)
        for method, asked in (
            ("full", {"eps": 0.03, "delta": 0.1}),
            ("codes", {"eps": 0.03, "delta": 0.1}),
            ("codes", {"log_probs": False}),
            ("codes", {"eps": 0.03, "delta": 0.0}),
        )
    )
    assert full.promise == proof.promise == hl.Promise(0.03, 0.0)
    assert "ids and log-probabilities within 0.03 nats proved" in repr(full)
    assert coded.promise == hl.Promise(0.03, 0.1)
    assert "ids exact and log-probabilities within 0.03 nats, except with probability 0.1" in repr(coded)
    assert alone.promise == hl.Promise(math.inf, 1e-6)
    assert hl.compile(SMALL_LAYER, "codes").promise == hl.Promise(0.01, 1e-6)


def test_odds_are_rounded_up() -> None:
    assert str(hl.Promise(math.inf, 1 / 142)) == "ids exact except with probability 0.00705, log-probabilities not promised"
    assert str(hl.Promise(0.01, 0.3)) == "ids exact and log-probabilities within 0.01 nats, except with probability 0.3"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "fastest"}, OptionError, "method is 'fastest'; choose from auto, adaptive, codes, full, svd"),
        ({"method": None}, OptionError, "method is None"),
        ({"method": "full", "width": 3}, OptionError, "full has no option 'width'; it has none"),
        ({"method": "codes", "name": "x"}, OptionError, "codes has no option 'name'; it has bits, segments, rotation, blocks"),
        ({"method": "codes", "blocks": 1}, OptionError, "blocks is 1; expected True or False"),
        ({"method": "adaptive", "aim": (0.3, 0.1)}, OptionError, "adaptive has no option 'aim'"),
        ({"method": "codes", "rotation": -3}, OptionError, "rotation is -3"),
        ({"method": "codes", "segments": [[0, 8, 4]]}, OptionError, "follow one another up to 16"),
        ({"eps": 0}, OptionError, "eps is 0"),
        ({"eps": "small"}, OptionError, "eps is 'small'"),
        ({"delta": 2}, OptionError, "delta is 2"),
        ({"log_probs": 1}, OptionError, "log_probs is 1; expected True or False"),
        ({"seed": 1.5}, OptionError, "seed is 1.5"),
        ({"threads": 0}, OptionError, "threads is 0"),
        ({"calibration": np.zeros(16)}, ShapeError, r"pass calibration\[None, :\]"),
        ({"calibration": np.full((2, 16), np.inf)}, NonFiniteError, r"calibration\[0, 0\] is inf"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[HeadlongError], message: str) -> None:
    with pytest.raises(error, match=message):
        hl.compile(SMALL_LAYER, **arguments)


def test_a_triton_that_is_too_old_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in (("torch", ModuleType("torch")), ("triton", ModuleType("triton"))):
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["triton"].__version__ = "3.2.0"  # type: ignore[attr-defined]
    with pytest.raises(MissingPackageError, match=r"needs triton 3\.6, not 3\.2\.0"):
        hl.compile(SMALL_LAYER, device="cuda")


def test_bad_layers() -> None:
    with pytest.raises(InputError, match=r"layer is an ndarray; expected headlong.Layer\(weight, bias\)"):
        hl.compile(np.zeros((3, 3), np.float32))  # type: ignore[arg-type]
    weight = np.zeros((200, 4), np.float32)
    for value, message in ((np.nan, "weight row 130 holds NaN or infinity"), (3e38, "row 130 is longer than float32 can hold")):
        weight[130] = value
        with pytest.raises(NonFiniteError, match=message):
            hl.compile(hl.Layer(weight))


@pytest.mark.parametrize("method", ["full", "codes"])
def test_a_trained_layer(
    trained: Layer, trained_hidden: np.ndarray, method: str, level: str
) -> None:
    """Top-10, log-probabilities, samples and nuclei of a language model's layer are those of float64."""
    count = {"numpy": 12, "portable": 30}.get(level, 300) // (1 if ALL else 3)
    hidden = trained_hidden[:: len(trained_hidden) // count][:count]
    exact = truth(trained, hidden)
    engine = hl.compile(trained, method, eps=0.2, delta=0.0)
    for eps in (None, math.inf) if level == native.REFERENCE else (None, 0.05, math.inf):
        found = engine.topk(hidden, 10, eps=eps)
        if eps != math.inf:
            check_within(found.lse, exact.lse, found.error, 1e-10)
        assert found.proved.all() and (found.error <= (0.2 if eps is None else eps)).all()
        for b in range(count):
            check_topk(exact.logits[b], found.ids[b], found.logits[b], float(exact.rounding[b]))
    classes = np.arange(trained.vocab, dtype=np.int64)
    for filters, cut in (({}, (0, 1.0, 0.0)), ({"top_p": 0.9}, (0, 0.9, 0.0)), ({"top_k": 50, "top_p": 0.7}, (50, 0.7, 0.0))):
        drawn = engine.sample(hidden[:6], seed=4, **filters)
        assert drawn.proved.all()
        for b in range(len(drawn.ids)):
            won = int(drawn.ids[b, 0]), float(drawn.score[b, 0])
            check_draw(exact.logits[b], exact.exponents[b], gumbels(4, b, 0, classes), cut, *won)


@pytest.mark.parametrize("function", ["eigh", "inv"])
def test_a_library_that_computes_nan_is_told_of(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    """As OpenBLAS's SVE kernels did under emulation: answers were id -1."""
    usual = getattr(np.linalg, function)

    def broken(*given: Any) -> Any:
        found = usual(*given)
        return np.full_like(found, np.nan) if isinstance(found, np.ndarray) else tuple(part * np.nan for part in found)

    layer = hl.Layer(np.random.default_rng(3).standard_normal((300, 16)).astype(np.float32))
    assert hl.compile(layer, "codes", blocks=True).topk(np.ones((1, 16)), 1).ids[0, 0] >= 0
    monkeypatch.setattr(np.linalg, function, broken)
    with pytest.raises(NonFiniteError, match="computes wrongly"):
        hl.compile(layer, "codes", blocks=True)


def test_types_are_named_with_their_articles() -> None:
    with pytest.raises(InputError, match=r"^layer is an int; expected"):
        headlong.compile(3)  # type: ignore[call-overload]
    with pytest.raises(InputError, match=r"^layer is a str; expected"):
        headlong.compile("head")  # type: ignore[call-overload]


@pytest.mark.parametrize("bits", [1, 2.5, 3.5, 4, 7, 8])
@pytest.mark.parametrize("vectors", [False, True])
def test_bits_that_are_said_are_those_that_are_stored(bits: float, vectors: bool) -> None:
    """And a plan of bits that a caller asked for is not put aside for a faster one."""
    rng = np.random.default_rng(0)
    layer = hl.Layer(rng.standard_normal((4_096, 64), np.float32))
    calibration = rng.standard_normal((300, 64)) if vectors else None
    engine: Any = hl.compile(layer, eps=np.inf, calibration=calibration, bits=bits, blocks=False)
    assert engine.name == "codes" and engine.options["bits"] == bits
    stored = sum((stop - start) * each for start, stop, each, _ in engine.plan.codes.segments) / layer.dim
    assert stored <= bits and f"a code of {stored:.3g} bits for each weight" in engine.reason
