"""Every kind of engine that promises, asked for answers that may fail like its calibration vectors; failures are counted.

Which randomness a kind rests on is in its promise; where it has no use for calibration vectors it proves what was asked, and a
published method promises nothing. None promises more than it keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import headlong as hl
from headlong.engines.base import Engine
from headlong.engines.shards import here
from headlong.layers.experts import ExpertsLayer
from headlong.layers.matrix import Layer
from oracle import truth
from rates import check_rate

VOCAB, DIM, K, RATE, EPS, DELTA = 4000, 64, 5, 0.05, 0.05, 0.1
CALIBRATION, ASKED = 1000, 200
IDS: dict[str, Any] = {"eps": math.inf, "delta_ids": RATE, "over": "calibration"}
BOTH: dict[str, Any] = {"eps": EPS, "delta": DELTA, "delta_ids": RATE, "over": ("calibration", "query")}
LOG_PROBS: dict[str, Any] = {"eps": EPS, "delta": DELTA, "over": ("calibration", "query")}


class Case(NamedTuple):
    layer: Layer
    calibration: np.ndarray
    asked: np.ndarray
    best: np.ndarray
    lse: np.ndarray


@pytest.fixture(scope="module")
def case() -> Case:
    """Logits whose energy falls off, so that prefixes, blocks and rotations all leave something open."""
    rng = np.random.default_rng(4)
    energy = np.arange(1, DIM + 1.0) ** -0.6
    layer = Layer(
        (1.5 * rng.standard_normal((VOCAB, DIM)) * energy).astype(np.float32), rng.standard_normal(VOCAB).astype(np.float32)
    )
    hidden = rng.standard_normal((CALIBRATION + ASKED, DIM)) * energy
    asked = hidden[CALIBRATION:]
    exact = truth(layer, asked)
    return Case(layer, hidden[:CALIBRATION], asked, np.sort(exact.logits, axis=1)[:, -K:], exact.lse)


def failures(engine: Any, case: Case) -> tuple[int, int]:
    """Of answers to one query a call: with a wrong id, and with a normaliser beyond eps."""
    wrong = far = 0
    for one, best, lse in zip(case.asked, case.best, case.lse, strict=True):
        found = engine.topk(one[None], K)
        wrong += bool((np.sort(np.asarray(found.logits[0])) < best - 1e-9).any())
        far += abs(float(found.lse[0]) - lse) > engine.promise.eps
    return wrong, far


KINDS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "prefix, ids": ("cascade", {**IDS, "width": 16}, {"calibration", "query"}),
    "prefix, both": ("cascade", {**BOTH, "width": 16}, {"calibration", "query"}),
    "prefix, log-probabilities": ("cascade", {**LOG_PROBS, "width": 16}, {"calibration", "query"}),
    "blocks": ("cascade", {**IDS, "blocks": True}, {"calibration", "query"}),
    "few bits over a rotation": ("cascade", {**IDS, "bits": 4, "over": "rotation"}, {"rotation"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_answers_fail_no_more_often_than_promised(kind: str, case: Case) -> None:
    method, options, over = KINDS[kind]
    engine = hl.compile(case.layer, method, calibration=case.calibration, threads=1, **options)
    assert engine.promise.over == over and engine.promise.delta_ids == options.get("delta_ids", 0.0)
    wrong, far = failures(engine, case)
    check_rate(wrong, ASKED, max(engine.promise.delta_ids, 1e-9))
    if math.isfinite(engine.promise.eps):
        check_rate(far, ASKED, engine.promise.delta)


@pytest.mark.parametrize(
    ("method", "options"), [("cascade", {"bits": 4}), ("cascade", {"width": 0}), ("full", {})]
)
def test_what_has_no_use_for_calibration_is_proved(method: str, options: dict[str, Any], case: Case) -> None:
    engine = hl.compile(case.layer, method, calibration=case.calibration, threads=1, **IDS, **options)
    assert engine.promise.delta_ids == 0 and not engine.promise.over
    assert failures(engine, case)[0] == 0


def test_a_published_method_promises_nothing(case: Case) -> None:
    engine = hl.compile(case.layer, "svd", calibration=case.calibration, threads=1, **IDS)
    assert engine.promise.delta_ids == 1 and math.isinf(engine.promise.eps)


def slices(case: Case, count: int, **options: Any) -> Iterator[Engine]:
    for part in np.array_split(np.arange(VOCAB), count):
        weight, bias = case.layer.weight[part], case.layer.bias
        assert bias is not None
        yield hl.compile(Layer(weight, bias[part]), "cascade", width=16, calibration=case.calibration, threads=1, **options)


def test_the_promise_of_shards_is_that_of_the_whole(case: Case) -> None:
    shards = here(list(slices(case, 2, **{**BOTH, "delta": DELTA / 2, "delta_ids": RATE / 2})))
    assert shards.promise.delta_ids == pytest.approx(RATE) and shards.promise.delta == pytest.approx(DELTA)
    assert shards.promise.over == {"calibration", "query"}
    wrong, far = failures(shards, case)
    check_rate(wrong, ASKED, RATE)
    check_rate(far, ASKED, DELTA)


def test_a_nucleus_that_a_bet_decides_is_the_exact_one(case: Case) -> None:
    """The same seeds draw the same classes, but for delta."""
    engine = hl.compile(case.layer, "cascade", calibration=case.calibration, width=16, threads=1, **LOG_PROBS)
    exact = hl.compile(case.layer, "full", threads=1)
    other = 0
    for seed, one in enumerate(case.asked):
        drawn, true = (each.sample(one[None], top_p=0.6, n=1, seed=seed).ids for each in (engine, exact))
        other += bool((np.asarray(drawn) != np.asarray(true)).any())
    check_rate(other, ASKED, DELTA)


def test_experts_prove_with_calibration_vectors_too(case: Case) -> None:
    """These choose what is read; nothing is learned of how wrong it may be."""
    layer = ExpertsLayer(np.ones((2, DIM), np.float32), case.layer.weight, np.arange(VOCAB), [0, VOCAB // 2, VOCAB], VOCAB)
    engine = hl.compile(layer, calibration=case.calibration, delta_ids=RATE, over={"query", "calibration"}, threads=1)
    assert engine.promise.delta_ids == 0 and "calibration" not in engine.promise.over
