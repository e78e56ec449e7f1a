"""Nuclei decided by a bet: the law is that of float64's nucleus, what is not proved says so, and rows are few."""

from __future__ import annotations

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.engines.reference.gumbel import gumbels
from oracle import kept
from rates import check_rate

VOCAB, DIM, QUERIES = 6000, 48, 40


@pytest.fixture(scope="module")
def layer() -> hl.Layer:
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((VOCAB, DIM)) * (1 + np.arange(DIM)) ** -0.5
    return hl.Layer(weight.astype(np.float32), rng.standard_normal(VOCAB).astype(np.float32))


@pytest.fixture(scope="module")
def hidden() -> np.ndarray:
    return np.random.default_rng(6).standard_normal((QUERIES, DIM))


def winners(layer: hl.Layer, hidden: np.ndarray, top_p: float, temperature: float, seed: int) -> list[int]:
    """The largest key of the classes of each nucleus, all in float64."""
    ids, won = np.arange(layer.vocab), []
    for row, z in enumerate(hidden @ layer.weight.astype(np.float64).T + (0.0 if layer.bias is None else layer.bias)):
        inside = kept(z, z / temperature, 0, top_p, 0.0)
        won.append(int(inside[np.argmax(z[inside] / temperature + gumbels(seed, row, 0, ids)[inside])]))
    return won


@pytest.fixture(params=[level for level in native.levels() if level != native.REFERENCE])
def engine(request: pytest.FixtureRequest, layer: hl.Layer, hidden: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> hl.Engine:
    monkeypatch.setenv("HEADLONG_ISA", request.param)
    return hl.compile(layer, "codes", eps=0.05, delta=0.01, calibration=hidden, blocks=False, threads=2)


@pytest.mark.parametrize(("top_p", "temperature"), [(0.95, 0.8), (0.4, 1.5)])
def test_draws_are_those_of_the_nucleus(
    engine: hl.Engine, layer: hl.Layer, hidden: np.ndarray, top_p: float, temperature: float
) -> None:
    drawn = engine.sample(hidden, temperature=temperature, top_p=top_p, seed=9, eps=np.inf)
    expected = winners(layer, hidden, top_p, temperature, 9)
    check_rate(int((drawn.ids[:, 0] != expected).sum()), QUERIES, 0.01)
    assert not drawn.proved.all() and drawn.cost.dense.mean() < 0.5
    assert (drawn.proved[:, 0] | ~drawn.cost.dense).all() and drawn.cost.rows.mean() < VOCAB / 4


def test_without_a_delta_every_draw_is_proved(
    layer: hl.Layer, hidden: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = hl.compile(layer, "codes", eps=0.05, delta=0.0, calibration=hidden, blocks=False)
    drawn = engine.sample(hidden[:8], top_p=0.9, seed=4, eps=np.inf)
    assert drawn.proved.all() and drawn.ids[:, 0].tolist() == winners(layer, hidden[:8], 0.9, 1.0, 4)


def test_masks_and_ties(engine: hl.Engine, layer: hl.Layer, hidden: np.ndarray) -> None:
    """A nucleus of the classes that are allowed, and one whose boundary runs through equal rows."""
    drawn = engine.sample(hidden[:8], 2, top_p=0.9, seed=1, exclude=np.arange(0, VOCAB, 2), eps=np.inf)
    assert (drawn.ids % 2 == 1).all()
    rows = np.repeat(layer.weight[:20], 200, axis=0)
    tied = hl.Layer(rows)
    one = hl.compile(tied, "codes", eps=0.05, delta=0.01, calibration=hidden, blocks=False)
    found = one.sample(hidden[:8], top_p=0.5, seed=3, eps=np.inf)
    for row, z in enumerate(hidden[:8] @ rows.astype(np.float64).T):
        inside = kept(z, z, 0, 0.5, 0.0)
        assert int(found.ids[row, 0]) == int(inside[np.argmax(z[inside] + gumbels(3, row, 0, np.arange(len(z)))[inside])])


@pytest.mark.parametrize("distinct", [1, 3, 60])
@pytest.mark.parametrize(
    "cut", [(0, 0.5, 0.0), (0, 0.9, 0.02), (37, 0.8, 0.0), (37, 1.0, 0.0), (0, 1.0, 0.3), (700, 0.999, 1e-9)]
)
def test_filters_of_a_dense_pass_select_what_a_sort_would(
    layer: hl.Layer, hidden: np.ndarray, distinct: int, cut: tuple[int, float, float]
) -> None:
    """Ties all over leave no other way; their places are counted, not sorted, and their noise is each class's own."""
    rows = layer.weight[np.random.default_rng(distinct).integers(0, distinct, 4000)]
    engine = hl.compile(hl.Layer(rows), "full")
    words = {"top_k": cut[0] or None, "top_p": cut[1] if cut[1] < 1 else None, "min_p": cut[2] or None}
    found = engine.sample(hidden[:6], 2, seed=9, temperature=1.5, **words, eps=np.inf)
    assert found.cost.dense.all()
    for row, z in enumerate(hidden[:6] @ rows.astype(np.float64).T):
        inside = kept(z, z / 1.5, *cut)
        for draw in range(2):
            key = z[inside] / 1.5 + gumbels(9, row, draw, np.arange(len(z)))[inside]
            assert int(found.ids[row, draw]) == int(inside[np.argmax(key)])
            assert found.score[row, draw] == pytest.approx(key.max(), rel=1e-12)
