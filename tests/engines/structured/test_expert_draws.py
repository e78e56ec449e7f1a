"""Samples of experts: the draws that every engine makes with the same seed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from headlong import native
from headlong.engines.few_allowed_classes import ListedClasses, sample_of
from headlong.engines.reference.gumbel import gumbels
from headlong.engines.sampling_filters import Filters
from headlong.layers.experts import ExpertsLayer

LEVELS = [native.REFERENCE, native.levels()[-1]]
FILTERS: tuple[dict[str, Any], ...] = (
    {}, {"temperature": 0.3}, {"temperature": 4.0}, {"top_k": 3}, {"top_k": 200, "min_p": 0.1}, {"min_p": 0.2},
    {"min_p": 0.5, "temperature": 2.0}, {"top_p": 0.6}, {"top_p": 0.9, "temperature": 0.5}, {"top_p": 0.8, "min_p": 0.3},
    {"top_k": 20, "top_p": 0.5},
)  # fmt: skip


def random_layer(seed: int, vocab: int, dim: int, scale: float, *, scaled: bool, constant: bool) -> ExpertsLayer:
    """Experts of very different sizes, one of a single class, some rows the same."""
    rng = np.random.default_rng(seed)
    sizes = [1, max(1, vocab // 3), vocab, int(rng.integers(1, vocab + 1))]
    ids = [np.sort(rng.choice(vocab, size, replace=False)) for size in sizes]
    width = dim + constant
    rows = [scale * rng.standard_normal((len(mine), width)) for mine in ids]
    for some in rows:
        some[rng.random(len(some)) < 0.2] = some[0]
    weight, starts = np.concatenate(rows).astype(np.float32), np.concatenate([[0], np.cumsum(sizes)])
    gate = rng.standard_normal((len(sizes), width)).astype(np.float32)
    return ExpertsLayer(gate, weight, np.concatenate(ids), starts, vocab, constant=constant, scaled=scaled)


def logits_of(layer: ExpertsLayer, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes of the row's expert and their logits, in float64."""
    x = np.append(row.astype(np.float64), 1.0) if layer.constant else row.astype(np.float64)
    scores = layer.gate.astype(np.float64) @ x
    rows = layer.part(int(scores.argmax()))
    value = 1 / np.exp(scores - scores.max()).sum() if layer.scaled else 1.0
    return layer.ids[rows], layer.weight[rows].astype(np.float64) @ (value * x)


def check(engine: Any, layer: ExpertsLayer, hidden: np.ndarray, n: int, seed: int, row0: int, **more: Any) -> Any:
    """Every draw is that of float64 among the classes that the filters keep, unless rounding could order keys either way."""
    found = engine.sample(hidden, n, seed=seed, position=row0 + np.arange(len(hidden)), **more)
    for b, row in enumerate(hidden):
        ids, z = logits_of(layer, row)
        given_ = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | more
        filters = Filters(n=n, seed=seed, row0=row0 + b, **given_)
        want, _, score = sample_of(ListedClasses(ids[None], z[None], z[None]), filters)
        near = 1e-9 * (1 + np.abs(z).max() / filters.temperature)
        same = found.ids[b] == want[0]
        if (filters.top_k, filters.top_p, filters.min_p) != (0, 1.0, 0.0) and not same.all():
            assert near_an_edge(z, filters)
            continue
        assert (np.abs(found.score[b] - score[0]) <= near)[same].all()
        for draw in np.flatnonzero(~same):
            noise = gumbels(seed, row0 + b, int(draw), ids)
            own = (z / filters.temperature + noise)[ids == found.ids[b, draw]]
            assert own.size and score[0, draw] - own[0] <= near
    return found


def near_an_edge(z: np.ndarray, filters: Filters) -> bool:
    """Whether a mass or a logit is so near to where a filter cuts that rounding may decide."""
    falling = np.sort(z)[::-1] / filters.temperature
    mass = np.exp(falling - falling[0])
    before = np.cumsum(mass) / mass.sum()
    ties = filters.top_k and filters.top_k < len(z) and falling[filters.top_k - 1] - falling[filters.top_k] < 1e-9
    low = filters.min_p > 0 and np.abs(falling - falling[0] - math.log(filters.min_p)).min() < 1e-9
    equal = (np.diff(falling) > -1e-9).any()  # which of equal classes is the last one inside
    return bool(ties or low or equal or np.abs(before - filters.top_p).min() < 1e-9)


@pytest.mark.parametrize("level", LEVELS)
@given(
    seed=st.integers(0, 2**32 - 1), vocab=st.sampled_from([4, 17, 70, 500]), dim=st.sampled_from([1, 5, 16, 40]),
    scale=st.sampled_from([0.0, 0.3, 3.0, 30.0]), more=st.sampled_from(FILTERS), row0=st.sampled_from([0, 7, 2**40]),
    scaled=st.booleans(), constant=st.booleans(),
)  # fmt: skip
def test_any_layer(
    level: str, seed: int, vocab: int, dim: int, scale: float, more: dict[str, Any], row0: int, scaled: bool, constant: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADLONG_ISA", level)
        layer = random_layer(seed, vocab, dim, scale, scaled=scaled, constant=constant)
        hidden = np.random.default_rng(seed).standard_normal((6, dim)) * np.array([0, 1e-3, 1, 1, 5, 50])[:, None]
        more = {name: min(value, vocab) if name == "top_k" else value for name, value in more.items()}
        check(hl.compile(layer), layer, hidden, 2, seed, row0, **more)


def test_a_choice_that_rounding_could_change_is_not_proved() -> None:
    layer = random_layer(1, 300, 8, 1.0, scaled=True, constant=False)
    gate = layer.gate.copy()
    gate[2] = gate[1]
    tied = ExpertsLayer(gate, layer.weight, layer.ids, layer.starts, layer.vocab, constant=False)
    hidden = np.random.default_rng(0).standard_normal((40, 8))
    engine = hl.compile(tied)
    chosen = engine.route(hidden)
    assert {1, 2} & set(chosen.tolist())
    found = engine.sample(hidden, 2, seed=1)
    np.testing.assert_array_equal(found.proved.all(axis=1), ~np.isin(chosen, [1, 2]))


@pytest.mark.parametrize("rule", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}], ids=str)
def test_draws_among_ids_that_are_not_proved_are_not(rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((300, 8)).astype(np.float32)
    layer = ExpertsLayer(np.ones((1, 8), np.float32), weight, np.arange(300), np.array([0, 300]), 300, scaled=False)
    engine = hl.compile(layer)
    hidden, best = rng.standard_normal((3, 8)), engine._best
    assert engine.sample(hidden, 2, seed=1, **rule).proved.all()
    monkeypatch.setattr(engine, "_best", lambda x, k, eps: best(x, k, eps)._replace(proved=np.zeros(len(x), bool)))
    assert not engine.sample(hidden, 2, seed=1, **rule).proved.any()
