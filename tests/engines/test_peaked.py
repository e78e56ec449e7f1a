"""Peaked distributions in batches: no query runs away, none costs more than it would alone, every answer is finite and right.

Logits that spread over more than about twelve units give a few classes e^30 times the gap of a typical one. What a sample of
the classes says of the normaliser is then far too low, so that no bound of the work may rest on it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

import headlong as hl
from limited import in_limits

K = 10


class Case(NamedTuple):
    spread: float  # the standard deviation of a query's logits
    batch: int = 8
    vocab: int = 12_103
    eps: float = 0.01
    bias: float = 0.0  # its standard deviation
    calibrated: bool = True
    options: dict[str, Any] = {}  # noqa: RUF012
    norms: float = 0.4
    seed: int = 7


class Outcome(NamedTuple):
    right: float  # the share of ids
    off: np.ndarray  # of the normaliser
    error: np.ndarray
    best: np.ndarray  # log-probabilities
    rows: float
    bytes: float
    alone: float  # bytes of the same queries one by one


def play(case: Case) -> Outcome:
    rng = np.random.default_rng(case.seed)
    shape = (case.vocab, 64)
    weight = (rng.normal(size=shape) * np.exp(case.norms * rng.normal(size=(shape[0], 1)))).astype(np.float32)
    bias = (case.bias * rng.normal(size=shape[0])).astype(np.float32) if case.bias else None
    hidden = rng.normal(size=(512 + case.batch, shape[1]))
    hidden = (hidden * (case.spread / (hidden @ weight.T).std(axis=1, keepdims=True))).astype(np.float32).astype(np.float64)
    calibration, queries = hidden[: -case.batch], hidden[-case.batch :]
    layer = hl.Layer(weight, bias)
    engine = hl.compile(
        layer, "codes", eps=case.eps, calibration=calibration if case.calibrated else None, threads=2, **case.options
    )
    found = engine.topk(queries, K)
    alone = [engine.topk(query[None], K).cost for query in queries]
    logits = queries.astype(np.float64) @ weight.astype(np.float64).T + (0 if bias is None else bias.astype(np.float64))
    most = logits.max(axis=1)
    lse = most + np.log(np.exp(logits - most[:, None]).sum(axis=1))
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :K]
    return Outcome(
        float((found.ids == ids).mean()),
        np.abs(found.lse - lse),
        found.error,
        found.log_probs[:, 0],
        float(found.cost.rows.sum()),
        float(found.cost.bytes.sum()),
        float(sum(cost.bytes.sum() for cost in alone)),
    )


# Seeds for which points were once drawn without a limit.
CASES = {
    "spread-12": Case(12, seed=3),
    "spread-16": Case(16, seed=3),
    "spread-25": Case(25, seed=1),
    "spread-60": Case(60, batch=64, seed=0),
    "plain": Case(60, vocab=20_011, calibrated=False, seed=0),
    "bias": Case(3, bias=1e3, seed=5),
    "narrow-promise": Case(6, batch=128, eps=1e-4, seed=0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_batch_ends_and_costs_no_more_than_its_queries_alone(name: str) -> None:
    case = CASES[name]
    outcome = in_limits(play, case)
    assert outcome.right == 1
    assert (outcome.error <= case.eps).all() and (outcome.off <= case.eps).all()
    assert outcome.bytes <= 1.1 * outcome.alone
    assert outcome.rows < case.batch * case.vocab * 1.1


@pytest.mark.parametrize("spread", [80, 1_000, 8_000])
def test_normalisers_that_nobody_asked_for_are_finite_and_within_their_error(spread: float) -> None:
    case = Case(spread, batch=64, vocab=9_000, eps=math.inf, norms=0.0)
    outcome = in_limits(play, case)
    assert outcome.right == 1
    assert np.isfinite(outcome.off).all() and np.isfinite(outcome.best).all()
    assert (outcome.off <= outcome.error).all()
    assert outcome.rows < 0.5 * case.batch * case.vocab


@pytest.mark.parametrize("batch", [1, 8])
def test_a_query_whose_other_classes_weigh_nothing_is_done(batch: int) -> None:
    """Where float32 has no gap left of any class that is not scored, there is nothing to draw, and nothing to read densely."""
    rng = np.random.default_rng(2)
    weight = rng.normal(size=(20_000, 16)).astype(np.float32)
    hidden = rng.normal(size=(batch, 16)).astype(np.float32)
    weight[:batch] = 40 * hidden  # each query's own class is some hundreds of nats above all others
    engine = hl.compile(hl.Layer(weight), "codes", threads=1)
    found = engine.topk(0.5 * hidden.astype(np.float64), K)
    logits = 0.5 * hidden.astype(np.float64) @ weight.T.astype(np.float64)
    assert (found.ids == np.argsort(-logits, axis=1, kind="stable")[:, :K]).all()
    assert (np.abs(found.lse - logits.max(axis=1)) <= found.error).all() and (found.error <= 0.01).all()
    assert not found.cost.dense.any()


@pytest.mark.parametrize("bias", [False, True])
def test_a_vector_of_zeros_drags_none_along(bias: bool) -> None:
    rng = np.random.default_rng(8)
    weight, hidden = rng.normal(size=(20_000, 32)).astype(np.float32), rng.normal(size=(9, 32))
    hidden[[2, 5]] = 0
    offset = rng.normal(size=20_000).astype(np.float32) if bias else None
    engine = hl.compile(hl.Layer(weight, offset), "codes", delta=0.0)
    logits = hidden @ weight.T.astype(np.float64) + (0 if offset is None else offset.astype(np.float64))
    for eps in (0.01, math.inf):
        top = engine.topk(hidden, K, eps=eps)
        assert (top.ids == np.argsort(-logits, axis=1, kind="stable")[:, :K]).all() and top.proved.all()
        exact = np.log(np.exp(logits).sum(axis=1))
        assert (np.abs(top.lse - exact) <= top.error)[[2, 5]].all()
        assert top.cost.bytes[[2, 5]].max() <= top.cost.bytes.max()


def test_a_normaliser_alone_costs_no_more_than_with_ids() -> None:
    """The one class that has nearly all the mass was not among those that guesses went by, and all rows were read."""
    rng = np.random.default_rng(4)
    layer = hl.Layer(rng.normal(size=(20_000, 128)).astype(np.float16))
    hidden = 2 * rng.normal(size=(24, 128))
    engine = hl.compile(layer, "codes", threads=2)
    for x in hidden:
        alone, beside = engine.lse(x[None]), engine.topk(x[None], K)
        assert not alone.cost.dense[0] and alone.cost.bytes[0] < 1.1 * beside.cost.bytes[0]
        assert abs(alone.lse[0] - beside.lse[0]) <= alone.error[0] + beside.error[0]
