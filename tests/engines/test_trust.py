"""What training and serving rely on: unpacked answers in the caller's precision, entropies, rankings, draws row by row."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.errors import OptionError, ShapeError
from oracle import check_within, truth

VOCAB, DIM = 3000, 48
RNG = np.random.default_rng(0)
WEIGHT = (RNG.standard_normal((VOCAB, DIM)) / 2).astype(np.float32)
HIDDEN = RNG.standard_normal((12, DIM))
LAYERS = {
    "plain": hl.Layer(WEIGHT),
    "with a bias": hl.Layer(WEIGHT, RNG.standard_normal(VOCAB).astype(np.float32), hl.Affine(0.8, 0.3)),
    "bent": hl.Layer(WEIGHT, link=hl.SoftCap(9.0)),
}


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> hl.Layer:
    return LAYERS[request.param]


def shards_of(layer: hl.Layer) -> Any:
    from headlong.engines.shards import here

    bias = [None, None] if layer.bias is None else np.split(layer.bias, [1000])
    parts = zip(np.split(np.asarray(layer.weight), [1000]), bias, strict=True)
    return here([hl.compile(hl.Layer(w.copy(), b, layer.link), delta=0) for w, b in parts])


KINDS: dict[str, Any] = {
    "auto": lambda layer: hl.compile(layer, delta=0), "full": lambda layer: hl.compile(layer, "full"), "shards": shards_of,
}  # fmt: skip


@pytest.mark.parametrize("verb", ["topk", "lse", "log_prob", "entropy"])
def test_float32_comes_back_as_float32_within_its_error(verb: str, layer: hl.Layer) -> None:
    torch = pytest.importorskip("torch")
    engine = hl.compile(layer, delta=0)
    more = (np.arange(24).reshape(12, 2),) if verb == "log_prob" else ()
    narrow = HIDDEN.astype(np.float32)
    wide, single = (getattr(engine, verb)(rows, *more) for rows in (narrow.astype(np.float64), narrow))
    tensor = getattr(engine, verb)(torch.from_numpy(narrow), *more)
    for name in {"log_probs", "lse", "entropy", "error"} & set(single._fields):
        values = getattr(single, name)
        assert values.dtype == np.float32 and getattr(wide, name).dtype == np.float64
        assert getattr(tensor, name).dtype == torch.float32 and (getattr(tensor, name).numpy() == values).all()
    facts = truth(layer, narrow)
    check_within(single.lse.astype(np.float64), facts.lse, single.error.astype(np.float64), facts.rounding)
    assert (single.error <= 0.01).all()


def test_answers_unpack_as_their_first_two_and_stay_whole_elsewhere() -> None:
    engine = hl.compile(LAYERS["plain"], delta=0)
    top = engine.topk(HIDDEN, 10)
    log_probs, ids = top
    assert log_probs is top.log_probs and ids is top.ids
    again = pickle.loads(pickle.dumps(top))  # noqa: S301  # just made here
    for whole in (copy.deepcopy(top), again, top._replace(ids=top.ids), type(top)(**top._asdict())):
        assert type(whole) is hl.TopK and (whole.lse == top.lse).all() and whole.cost.path == top.cost.path
    lse, error = engine.lse(HIDDEN)
    ids, log_probs = engine.sample(HIDDEN, 2, seed=1)
    assert lse.shape == error.shape == (12,) and ids.shape == log_probs.shape == (12, 2)
    assert engine.sample(HIDDEN, seed=1, eps=np.inf).log_probs is None


@pytest.mark.parametrize("scale", [0.02, 1.0, 4.0])
@pytest.mark.parametrize("kind", KINDS)
def test_entropies_are_within_their_bound(kind: str, layer: hl.Layer, scale: float) -> None:
    engine, rows = KINDS[kind](layer), HIDDEN * scale
    allowed = np.flatnonzero(RNG.random(VOCAB) < 0.4)
    for limits, live in (({}, None), ({"allowed": allowed}, np.isin(np.arange(VOCAB), allowed))):
        found, p = engine.entropy(rows, **limits), np.exp(truth(layer, rows, live).log_probs)
        exact = -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=1)
        check_within(found.entropy, exact, found.error, 1e-9)
        assert (found.error <= 0.01).all()


@pytest.mark.parametrize("kind", KINDS)
def test_variances_of_the_surprisal_are_within_their_bound(kind: str, layer: hl.Layer) -> None:
    engine, allowed = KINDS[kind](layer), np.arange(0, VOCAB, 3)
    for rows in (HIDDEN * 0.1, HIDDEN, HIDDEN * 5, np.zeros((1, DIM)), HIDDEN[:0]):
        for limits, live in (({}, None), ({"allowed": allowed}, np.isin(np.arange(VOCAB), allowed))):
            found = engine.entropy(rows, moments=True, **limits)
            log_probs = truth(layer, rows, live).log_probs
            p, own = np.exp(log_probs), np.where(np.isneginf(log_probs), 0.0, log_probs)
            exact = -(p * own).sum(axis=1)
            check_within(found.entropy, exact, found.error, 1e-12)
            check_within(found.variance, (p * (own + exact[:, None]) ** 2).sum(axis=1), found.variance_error, 1e-12)
            assert (found.error <= 1e-6).all() and (found.variance_error <= 1e-6).all()
    single = engine.entropy(HIDDEN.astype(np.float32), moments=True)
    assert single.variance.dtype == single.variance_error.dtype == np.float32 and single.cost.dense.all()
    assert engine.entropy(HIDDEN).variance is None
    with pytest.raises(OptionError, match="moments is 2; expected True or False"):
        engine.entropy(HIDDEN, moments=2)


@pytest.mark.parametrize("kind", KINDS)
def test_rankings_are_the_sorted_order_and_begin_every_topk(kind: str, layer: hl.Layer) -> None:
    engine, rows = KINDS[kind](layer), HIDDEN[:3]
    ranks = list(zip(range(700), engine.ranked(rows), strict=False))
    ids, log_probs = (np.stack([one[part] for _, one in ranks], axis=1) for part in (0, 1))
    facts = truth(layer, rows)
    assert (ids == np.argsort(-facts.logits, axis=1, kind="stable")[:, :700]).all()
    for k in (1, 10, 16, 17, 300):
        top = engine.topk(rows, k)
        assert (top.ids == ids[:, :k]).all()
        assert (np.abs(top.log_probs - log_probs[:, :k]) <= 2 * top.error[:, None] + 1e-9).all()
    some = np.array([5, 8, 2999])
    left = list(engine.ranked(rows, allowed=some))
    assert len(left) == 3 and all(set(row) == set(some) for row in np.stack([ids for ids, _ in left], axis=1).tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_among_allowed_classes(kind: str, layer: hl.Layer) -> None:
    allowed = np.arange(0, VOCAB, 3)
    ids = np.tile([0, 1, 2999 - 2999 % 3], (12, 1))
    found = KINDS[kind](layer).log_prob(HIDDEN, ids, allowed=allowed)
    facts = truth(layer, HIDDEN, np.isin(np.arange(VOCAB), allowed))
    assert np.isneginf(found.log_probs[:, 1]).all()
    inside = [0, 2]
    check_within(found.log_probs[:, inside], np.take_along_axis(facts.log_probs, ids, 1)[:, inside], found.error[:, None], 1e-9)


def test_ties_at_the_kth_place_are_kept_by_id_or_all() -> None:
    weight = np.eye(6, dtype=np.float32)[[0, 1, 1, 1, 2, 3]]
    engine, hidden = hl.compile(hl.Layer(weight)), np.array([[3.0, 2.0, 1.0, 0.0, 0.0, 0.0]])
    assert engine.sample(hidden, seed=0, top_k=2, support=True).support.ids.tolist() == [0, 1]
    assert engine.sample(hidden, seed=0, top_k=2, ties="all", support=True).support.ids.tolist() == [0, 1, 2, 3]
    with pytest.raises(OptionError, match="ties is 'none'; choose from ids, all"):
        engine.sample(hidden, ties="none")
    with pytest.raises(ShapeError, match=r"seed has shape \[2\]; expected one number, or 1, one per row"):
        engine.sample(hidden, seed=[1, 2])
