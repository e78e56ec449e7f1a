"""What a trainer and a server rely on, on a language model's head where its data are at hand, else on a made layer.

All rows, which takes some minutes, and says what it counted (results/serving.log)::

    HEADLONG_DATA=FOLDER HEADLONG_ROWS=all pytest -q -s -n 0 --timeout 0 tests/engines/test_serving.py
"""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import headlong as hl
from benchmarks.common import real_layers
from headlong.answers import named_fields
from headlong.encode.basis import basis_for, energy
from headlong.encode.segments import lead, led_by_eight
from headlong.encode.tiles import codes_of
from headlong.engines.base import Engine
from headlong.errors import DataError, MissingPackageError, OptionError, ShapeError
from kinds import changed, shards
from laws import chance
from oracle import check_within, kept, logsumexp, truth

ALL = os.environ.get("HEADLONG_ROWS") == "all"
FILTERS: dict[str, dict[str, float]] = {
    "top_k": {"top_k": 40}, "top_p": {"top_p": 0.9}, "min_p": {"min_p": 0.03},
    "temperature, top_p": {"temperature": 0.7, "top_p": 0.95},
    "all": {"temperature": 1.3, "top_k": 200, "top_p": 0.9, "min_p": 0.01},
}  # fmt: skip


class Asked(NamedTuple):
    name: str
    layer: hl.Layer
    rows: np.ndarray
    calibration: np.ndarray


def many(whole: int, few: int) -> int:
    return whole if ALL else few


@cache
def asked() -> Asked:
    try:
        one = real_layers.load("smollm2")
        return Asked(one.name, one.layer, one.valid, one.train)
    except (DataError, MissingPackageError):
        rng = np.random.default_rng(0)
        weight = (rng.standard_normal((9000, 96)) * np.geomspace(1, 0.2, 96)).astype(np.float32)
        rows = (rng.standard_normal((600, 96)) * rng.uniform(0.2, 1.2, (600, 1))).astype(np.float32)
        return Asked("made", hl.Layer(weight), rows[:300], rows[300:])


@cache
def coded(threads: int) -> Engine:
    """By rotated codes whatever the clock says: other machines are to see the same."""
    layer, calibration = asked().layer, asked().calibration.astype(np.float64)
    basis = basis_for(layer, calibration)
    codes = codes_of(layer, basis, led_by_eight(lead(energy(layer, basis, calibration)), [(layer.dim, 8)]), 0)
    plain = hl.compile(layer, "codes", threads=threads)
    return plain.with_plan(plain.plan._replace(codes=codes), plain.promise, "rotated codes")


def logits(rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """``place, logits [vocab]`` in float64, row by row; a layer without a bias and a link."""
    weight = np.asarray(asked().layer.weight, np.float64)
    for start in range(0, len(rows), 128):
        yield from enumerate(rows[start : start + 128].astype(np.float64) @ weight.T, start)


def say(what: str) -> None:
    if ALL:
        sys.stdout.write(f"{asked().name}: {what}\n")


def fields(answer: Any) -> dict[str, np.ndarray]:
    named = named_fields(answer)
    return {name: part for name, part in named.items() if isinstance(part, np.ndarray)}


def every_answer(engine: Engine, rows: np.ndarray, places: np.ndarray) -> dict[str, np.ndarray]:
    ids = (places[:, None] * 31 + np.arange(3)) % engine.layer.vocab
    mixed = {
        "temperature": 0.6 + places % 3 / 2,
        "top_k": 20 + places % 90,
        "top_p": 1 - places % 4 / 10,
        "min_p": places % 2 / 50,
    }
    answers = {
        "topk": engine.topk(rows, 10), "lse": engine.lse(rows), "log_prob": engine.log_prob(rows, ids),
        "entropy": engine.entropy(rows),
        "sample": engine.sample(rows, 2, seed=7, position=places),
        "filtered": engine.sample(rows, seed=places + 3, position=places, **mixed),
    }  # fmt: skip
    return {f"{verb} {name}": part for verb, answer in answers.items() for name, part in fields(answer).items()}


def test_every_field_of_a_row_is_the_same_in_any_batch_on_any_number_of_threads() -> None:
    rows = asked().rows[: many(1000, 40)]
    rng = np.random.default_rng(5)
    first = [every_answer(coded(1), rows[i : i + 1], np.array([i])) for i in range(len(rows))]
    alone = {name: np.concatenate([one[name] for one in first]) for name in first[0]}
    sizes = []
    for turn in range(many(50, 6)):
        order, size = rng.permutation(len(rows)), int(rng.choice([2, 3, 8, 16, 17, 64, 100, 333, 1000]))
        sizes.append(size)
        for start in range(0, len(rows), size):
            some = order[start : start + size]
            for name, part in every_answer(coded(1 + turn % 2), rows[some], some).items():
                np.testing.assert_array_equal(part, alone[name][some], err_msg=f"{name} in batches of {size}")
    say(f"{len(rows)} rows in {len(sizes)} compositions of batches of {min(sizes)} to {max(sizes)}, on 1 and 2 threads:")
    say(f"    equal to the bit: {', '.join(alone)}")


def test_draws_of_one_mixed_call_follow_their_own_distributions() -> None:
    rows = asked().rows[: many(32, 6)]
    count, places = len(rows), np.arange(len(rows))
    rules = {
        "temperature": np.array([0.7, 1.0, 1.5, 1.0])[places % 4], "top_k": np.array([50, 10**9, 400, 10**9])[places % 4],
        "top_p": np.array([0.9, 0.95, 1.0, 1.0])[places % 4], "min_p": np.array([0.0, 0.01, 0.0, 0.02])[places % 4],
    }  # fmt: skip
    ids = coded(2).sample(rows, many(4000, 500), seed=100 + places, position=places * 9, eps=0.05, **rules).ids
    values = []
    for place, z in logits(rows):
        temperature, k, p, least = (rule[place].item() for rule in rules.values())
        exponents = z / temperature
        among = kept(z, exponents, k if k < len(z) else 0, p, least)
        expected = np.zeros(len(z))
        expected[among] = np.exp(exponents[among] - logsumexp(exponents[among][None]))
        values.append(chance(np.bincount(ids[place], minlength=len(z)), expected))
    assert min(values) > 1e-6 and (np.array(values) < 0.01).mean() < 0.2
    say(f"{count} rows of one call, each by its own rules, {ids.shape[1]} draws: least p-value {min(values):.2g}")


def test_entropies_are_within_their_bound_of_float64() -> None:
    rows = asked().rows[: many(4096, 60)]
    found = coded(2).entropy(rows)
    off = np.empty(len(rows))
    for place, z in logits(rows):
        log_probs = z - logsumexp(z[None])
        off[place] = abs(found.entropy[place] + (np.exp(log_probs) * log_probs).sum())
    assert (off <= found.error).all() and (found.error <= 0.01).all()
    full, most = found.cost.dense.mean(), found.error.max()
    say(f"entropies of {len(rows)} rows: off by {off.max():.2g} at most, errors up to {most:.2g}; full scans {full:.2%}")


def test_rankings_are_the_sorted_order() -> None:
    rows, depth = asked().rows[: many(64, 8)], 1000
    found = np.stack([ids for _, (ids, _) in zip(range(depth), coded(2).ranked(rows), strict=False)], axis=1)
    for place, z in logits(rows):
        order = np.lexsort((np.arange(len(z)), -z))[:depth]
        np.testing.assert_array_equal(found[place], order)
    say(f"{len(rows)} rows ranked to depth {depth}: the sorted order")


@pytest.mark.parametrize("name", FILTERS)
def test_kept_mass_and_support_are_those_of_float64(name: str) -> None:
    rows = asked().rows[: many(2000, 25)]
    rules = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | FILTERS[name]
    found = coded(2).sample(rows, seed=1, support=True, **FILTERS[name])
    off, bounds = np.empty(len(rows)), found.support.offsets
    for place, z in logits(rows):
        exponents = z / rules["temperature"]
        among = kept(z, exponents, int(rules["top_k"]), rules["top_p"], rules["min_p"])
        np.testing.assert_array_equal(found.support.ids[bounds[place] : bounds[place + 1]], np.sort(among))
        off[place] = abs(found.kept[place] - (logsumexp(exponents[among][None]) - logsumexp(exponents[None]))[0])
    assert (off <= found.error).all() and (found.error <= 0.01 + 1e-9).all()
    most = found.error.max()
    say(f"{name}: support of {len(rows)} rows equal, kept mass off by {off.max():.2g} at most, errors up to {most:.2g}")


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


KINDS: dict[str, Any] = {
    "auto": lambda layer: hl.compile(layer, delta=0), "full": lambda layer: hl.compile(layer, "full"),
    "shards": lambda layer: shards(layer, 1000, method="auto", delta=0), "changed": lambda layer: changed(layer, delta=0),
}  # fmt: skip


@pytest.mark.parametrize("verb", ["topk", "lse", "log_prob", "entropy"])
def test_float32_comes_back_as_float32_within_its_error(verb: str, layer: hl.Layer) -> None:
    torch = pytest.importorskip("torch")
    engine = hl.compile(layer, delta=0)
    more = (np.arange(24).reshape(12, 2),) if verb == "log_prob" else ()
    narrow = HIDDEN.astype(np.float32)
    wide, single = (getattr(engine, verb)(rows, *more) for rows in (narrow.astype(np.float64), narrow))
    tensor = getattr(engine, verb)(torch.from_numpy(narrow), *more)
    for name in {"log_probs", "lse", "entropy", "error"} & set(named_fields(single)):
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
    again = [pickle.loads(pickle.dumps(top, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]  # noqa: S301
    for whole in (*again, copy.copy(top), copy.deepcopy(top), replace(top, ids=top.ids), hl.TopK(**named_fields(top))):
        assert type(whole) is hl.TopK and whole.cost.path == top.cost.path
        for name in named_fields(whole).keys() - {"cost"}:
            np.testing.assert_array_equal(getattr(whole, name), getattr(top, name), err_msg=name)
    lse, error = engine.lse(HIDDEN)
    ids, log_probs = engine.sample(HIDDEN, 2, seed=1)
    assert lse.shape == error.shape == (12,) and ids.shape == log_probs.shape == (12, 2)
    assert engine.sample(HIDDEN, seed=1, eps=np.inf).log_probs is None


@pytest.mark.parametrize("ask", ["topk", "log_prob", "lse", "entropy", "sample"])
def test_an_answer_is_a_frozen_record_and_no_tuple_that_something_could_rebuild_by_place(ask: str, layer: hl.Layer) -> None:
    torch, pytree = pytest.importorskip("torch"), pytest.importorskip("torch.utils._pytree")
    cloudpickle = pytest.importorskip("cloudpickle")  # how Ray and Spark send what a function gives
    engine = hl.compile(layer, delta=0)
    more = {"log_prob": (np.zeros((12, 1), np.int64),)}.get(ask, ())
    for rows in (HIDDEN, torch.from_numpy(HIDDEN)):
        answer = getattr(engine, ask)(rows, *more)  # by the native call where there is one
        assert not isinstance(answer, tuple) and not hasattr(answer, "__len__") and not hasattr(answer, "__getitem__")
        assert not hasattr(answer, "__dict__"), "a slot for each field, and for nothing else"
        for wrong in (lambda one=answer: setattr(one, "cost", 0), lambda one=answer: delattr(one, "cost")):
            with pytest.raises(FrozenInstanceError):
                wrong()
        assert len(list(answer)) == len(tuple(answer)) == len([*zip(answer, answer, strict=True)]) == 2
        leaves, form = pytree.tree_flatten({"answer": [answer]})
        assert leaves == [answer] and pytree.tree_unflatten(leaves, form)["answer"][0] is answer
        far = pickle.loads(cloudpickle.dumps([answer]))[0]  # noqa: S301
        assert type(far) is type(answer) and far.cost.path == answer.cost.path
        assert [field.name for field in dataclasses.fields(far)] == list(named_fields(answer))


FORMS: dict[str, Any] = {
    "list": list, "tuple": tuple, "array": lambda each: np.array(each, np.uint64),
    "NumPy's": lambda each: [np.uint64(one) if one >= 2**63 else np.int64(one) for one in each],
    "arrays of none": lambda each: [np.array(one, np.uint64) for one in each],
    "torch": lambda each: [sys.modules["torch"].tensor(one) if one < 2**63 else one for one in each],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["seed", "position"])
def test_seeds_and_positions_of_each_row_are_whole_numbers_in_every_form(name: str, form: str) -> None:
    pytest.importorskip("torch")
    engine = hl.compile(LAYERS["plain"])
    each = [2**63, 1, 2**64 - 1, 2**53 + 1, 2**63 - 1]
    rows, other = HIDDEN[: len(each)], {"seed": "position", "position": "seed"}[name]
    found = engine.sample(rows, 2, **{name: FORMS[form](each), other: 5})
    for row, one in enumerate(each):
        alone = engine.sample(rows[row : row + 1], 2, **{name: one, other: 5})
        assert (found.ids[row] == alone.ids[0]).all() and (found.score[row] == alone.score[0]).all(), f"{name} {one}"
    with pytest.raises(OptionError, match=f"{name} is {2**64}; expected a whole number from 0 to {2**64 - 1:,}"):
        engine.sample(HIDDEN[:2], **{name: [2**64, 1]})


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, list])
def test_positions_that_would_wrap_around_in_their_own_type_do_not_count_up(kind: Any) -> None:
    engine = hl.compile(LAYERS["plain"])
    last = 255 if kind is np.uint8 else 127
    places = [last, 0] if kind is list else np.array([last, 0], kind)
    found = engine.sample(HIDDEN[:2], 2, seed=5, position=places, eps=np.inf)
    assert (found.ids[1] == engine.sample(HIDDEN[1:2], 2, seed=5, position=0, eps=np.inf).ids[0]).all()
    if kind is np.int8:
        with pytest.raises(OptionError, match="position is -128"):
            engine.sample(HIDDEN[:2], seed=5, position=np.array([127, -128], kind), eps=np.inf)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("single", [False, True])
def test_the_least_eps_that_may_be_asked_is_asked_of_everything_behind(kind: str, single: bool, layer: hl.Layer) -> None:
    """Verbs that are made of others ask those for a part of eps, and nobody is told of a number that he never gave."""
    engine, rows = KINDS[kind](layer), HIDDEN[:3].astype(np.float32 if single else np.float64)
    every = engine.topk(rows, 40, eps=1e-300)
    assert np.isfinite(engine.entropy(rows, eps=1e-300).entropy).all() and np.isfinite(every.log_probs).all()
    found = list(engine.ranked(rows, eps=1e-300))
    assert (np.stack([ids for ids, _ in found[:40]], 1) == every.ids).all()
    engine.sample(rows, eps=1e-300, top_p=0.5, min_p=0.1, temperature=0.7)
    engine.log_prob(rows, every.ids, eps=1e-300, exclude=[5])
    for ask in (engine.entropy, engine.topk, engine.lse, lambda given, eps: next(engine.ranked(given, eps=eps))):
        with pytest.raises(OptionError, match="eps is 1e-301; expected a number from 1e-300 up"):
            ask(rows, eps=1e-301)


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
