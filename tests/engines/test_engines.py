"""One contract for every engine: all registered methods, on every level of the CPU, on layers built to break them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import headlong as hl
from adversarial import CASES, Case, build
from headlong import native
from headlong.answers import Answer
from headlong.compile import BUILT_IN
from headlong.engines.base import Engine
from headlong.engines.method import METHODS
from headlong.engines.reference.gumbel import gumbels
from headlong.errors import InputError, NonFiniteError
from headlong.question import Filters, Question
from kinds import KINDS
from layers import DTYPES
from oracle import Truth, check_draw, check_topk, check_within, truth
from thinned import in_turn

CALIBRATED, BLOCKS = "codes, calibrated", "codes, blocks"
READERS = [*(name for name in METHODS if name != "adaptive"), CALIBRATED, BLOCKS]  # test_adaptive.py: it promises nothing
"""Every registered method, and codes twice more, with calibration vectors, and behind blocks."""
OF_PARTS = ["shards", "changed"]
PROVING = [name for name in READERS if name != "svd"]
FLOAT64 = 2.0**-50
assert {method.name for method in BUILT_IN} <= set(METHODS)
FILTERS: list[dict[str, Any]] = [
    {}, {"temperature": 0.5}, {"temperature": 3.0, "top_k": 5}, {"top_p": 0.7}, {"top_p": 0.3, "temperature": 2.0},
    {"min_p": 0.2}, {"top_k": 12, "min_p": 0.6, "temperature": 2.5},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.05, "temperature": 1.3},
]  # fmt: skip


@pytest.fixture(params=READERS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def compiled(layer: hl.Layer, method: str, calibration: NDArray[Any], **options: Any) -> Engine:
    if method in OF_PARTS:
        return KINDS[method](layer, delta=0.0, **options)  # type: ignore[no-any-return]
    if method == BLOCKS and native.isa() == native.REFERENCE:
        pytest.skip("the reference has no blocks")
    if method in (CALIBRATED, BLOCKS):
        options |= {"calibration": calibration} | ({"blocks": True} if method == BLOCKS else {})
    if method.startswith("codes"):  # proved, as the others are without being asked
        options.setdefault("delta", 0.0)
    return hl.compile(layer, method.split(",")[0], **options)


@functools.cache
def noise_of(case_vocab: int, seed: int, row: int, draw: int) -> NDArray[np.float64]:
    return gumbels(seed, row, draw, np.arange(case_vocab, dtype=np.int64))


def thinned(level: str, name: str, calls: Iterable[Any]) -> list[Any]:
    """The reference takes a third of the calls of each layer, in turn: it is slow, and other tests hold it against float64."""
    return in_turn(3 if level == native.REFERENCE else 1, list(CASES).index(name), calls)


def rounding_of(case: Case, exact: Truth) -> NDArray[np.float64]:
    """What float64 and the oracle itself can be off by in a log-probability."""
    lse = np.where(np.isfinite(exact.lse), np.abs(exact.lse), 0.0)
    return np.asarray(case.layer.link.steepest * exact.rounding * 2 + (lse + case.layer.vocab) * FLOAT64)


@pytest.mark.parametrize("method", [*READERS, "adaptive"])
def test_readers_answer_every_question_with_one_record(level: str, method: str) -> None:
    """All fields in float64, whatever was asked: what was not is empty."""
    layer, hidden = hl.Layer(np.eye(70, 20, dtype=np.float32)), np.ones((3, 20))
    reader = compiled(layer, method, hidden.repeat(9, axis=0)).reader
    filters, ids = Filters(2, 1.0, 0, 1.0, 0.0, 7, 0), np.zeros((3, 4), np.int64)
    asked = {
        "best": Question("best", 5), "given": Question("given", ids=ids), "normaliser": Question("normaliser", eps=0.1),
        "draw": Question("draw", filters=filters),
    }  # fmt: skip
    shapes = {"best": ((3, 5), "ids"), "given": ((3, 4), "logits"), "normaliser": ((3,), "lse"), "draw": ((3, 2), "score")}
    for verb, question in asked.items():
        found, (shape, name) = reader.ask(hidden, question), shapes[verb]
        assert type(found) is Answer and getattr(found, name).shape == shape and found.rows.shape == (3,) and found.path
        kinds = {field: getattr(found, field).dtype for field in Answer._fields[:-1]}
        whole = {"ids": np.int64, "rows": np.int64, "proved": np.bool_, "full": np.bool_}
        assert all(len(getattr(found, f)) == 0 or kind == whole.get(f, np.float64) for f, kind in kinds.items())


@pytest.mark.skipif(native.module() is None, reason="the native module is not installed")
def test_native_code_reads_the_fields_of_a_question_in_their_order() -> None:
    assert native.loaded().question_fields() == (list(Question._fields), list(Filters._fields))


@pytest.mark.one_of("dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", PROVING)
def test_topk_is_proved(level: str, method: str, name: str, dtype: str) -> None:
    case = build(name, dtype)
    engine = compiled(case.layer, method, case.hidden, eps=0.1)
    exact = truth(case.layer, case.hidden)
    asked = itertools.product(sorted({1, min(10, case.layer.vocab), case.layer.vocab}), (None, 1e-3, math.inf))
    for k, eps in thinned(level, name, asked):
        found = engine.topk(case.hidden, k, eps=eps)
        assert found.cost.path == f"{engine.method.name}/{level}"
        assert found.ids.shape == (len(case.hidden), k)
        assert found.proved.all(), f"k {k}, eps {eps}"
        for b, reference in enumerate(exact.logits):
            check_topk(reference, found.ids[b], found.logits[b], 0.0 if case.exact else float(exact.rounding[b]))
        check_answer(case, exact, found, 0.1 if eps is None else eps)


def check_answer(case: Case, exact: Truth, found: hl.TopK, eps: float) -> None:
    """The normaliser lies in its interval, the interval is as narrow as promised, and log-probabilities follow."""
    if math.isinf(eps):  # log-probabilities were not asked for
        assert np.isnan(found.lse).all() and np.isnan(found.log_probs).all() and np.isposinf(found.error).all()
        return
    slack = rounding_of(case, exact)
    check_within(found.lse, exact.lse, found.error, slack)
    assert (found.error <= eps + 4 * slack).all(), f"error {found.error} beyond eps {eps}"
    with np.errstate(invalid="ignore"):
        expected = case.layer.link(found.logits) - found.lse[:, None]
    there = found.ids >= 0
    size = 1 + np.abs(found.lse[:, None]) + np.abs(np.where(there, case.layer.link(np.where(there, found.logits, 0)), 0))
    assert (np.abs(np.where(there, found.log_probs - expected, 0)) <= 4 * FLOAT64 * size).all()


@pytest.mark.one_of("dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_lse_and_log_prob(level: str, method: str, name: str, dtype: str) -> None:
    case = build(name, dtype)
    engine = compiled(case.layer, method, case.hidden, eps=0.1)
    exact = truth(case.layer, case.hidden)
    slack = rounding_of(case, exact)
    found = engine.lse(case.hidden)
    check_within(found.lse, exact.lse, found.error, slack)
    ids = np.random.default_rng(0).integers(0, case.layer.vocab, (len(case.hidden), 3))
    given = engine.log_prob(case.hidden, ids)
    check_within(given.lse, exact.lse, given.error, slack)
    reference = np.take_along_axis(exact.logits, ids, axis=1)
    assert (np.abs(given.logits - reference) <= exact.rounding[:, None]).all()
    size = 1 + np.abs(given.lse[:, None]) + np.abs(case.layer.link(given.logits))
    assert (np.abs(given.log_probs - (case.layer.link(given.logits) - given.lse[:, None])) <= 4 * FLOAT64 * size).all()
    if method in PROVING:
        assert (found.error <= 0.1 + 4 * slack).all() and (given.error <= 0.1 + 4 * slack).all()


@pytest.mark.one_of("dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", PROVING)
def test_samples_are_the_dense_argmax(level: str, method: str, name: str, dtype: str) -> None:
    case = build(name, dtype)
    engine = compiled(case.layer, method, case.hidden)
    exact = truth(case.layer, case.hidden)
    for seed, filters in thinned(level, name, enumerate(FILTERS)):
        eps = math.inf if method == BLOCKS else None  # else a scan of all codes has what blocks would have found
        found = engine.sample(case.hidden, 3, seed=seed, position=11 + np.arange(len(case.hidden)), eps=eps, **filters)
        temperature = filters.get("temperature", 1.0)
        cut = filters.get("top_k", 0), filters.get("top_p", 1.0), filters.get("min_p", 0.0)
        bet = engine.promise.delta > 0 and cut[0] == 0 and cut[1] < 1  # a sample may decide the nucleus's boundary
        assert (found.proved.all() or bet) and found.ids.dtype == np.int64
        for b, draw in np.ndindex(found.ids.shape):
            noise = noise_of(case.layer.vocab, seed, 11 + b, draw)
            if not np.isfinite(exact.exponents[b]).all() or exact.rounding[b] > 1e-10:
                continue  # the oracle's own rounding decides such rows
            won = int(found.ids[b, draw]), float(found.score[b, draw])
            check_draw(exact.logits[b], exact.exponents[b] / temperature, noise, cut, *won)


@pytest.mark.parametrize("class0", [0, 3])
def test_hundreds_of_draws_are_those_of_one_by_one(class0: int) -> None:
    """Draws share what was scored: most classes have been, when the last ones come."""
    rng = np.random.default_rng(4)
    layer = hl.Layer(0.3 * rng.standard_normal((2100, 12)).astype(np.float32), rng.standard_normal(2100).astype(np.float32))
    hidden, draws = rng.standard_normal((2, 12)), 500
    z = hidden @ layer.weight.astype(np.float64).T + layer.bias
    allowed = np.array([1, 5, 700, 2099])
    for method in ("full", "codes"):
        engine = hl.compile(layer, method)
        found = engine.sample(hidden, n=draws, seed=9, class0=class0)
        few = engine.sample(hidden, n=draws, seed=9, class0=class0, allowed=allowed)
        for row, draw in itertools.product(range(2), range(draws)):
            noise = gumbels(9, row, draw, np.arange(layer.vocab) + class0)
            assert found.ids[row, draw] == np.argmax(z[row] + noise)
            assert few.ids[row, draw] == allowed[np.argmax((z[row] + noise)[allowed])]
            assert few.score[row, draw] == pytest.approx((z[row] + noise)[allowed].max(), abs=1e-12)


@pytest.mark.one_of("dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", [name for name in READERS if name != BLOCKS])
def test_levels_agree_with_the_reference(monkeypatch: pytest.MonkeyPatch, method: str, name: str, dtype: str) -> None:
    """Every native level against NumPy on the same plan: ids, exact logits, samples; normalisers within both errors."""
    case = build(name, dtype)
    monkeypatch.setenv("HEADLONG_ISA", native.REFERENCE)
    built = compiled(case.layer, method, case.hidden, eps=0.05)
    k = min(7, case.layer.vocab)
    expected = built.topk(case.hidden, k), built.sample(case.hidden, 4, top_p=0.6, seed=5), built.lse(case.hidden)
    exact = truth(case.layer, case.hidden)
    slack, clear = rounding_of(case, exact), budget_is_clear(built, case)
    for isa in native.levels()[1:]:
        monkeypatch.setenv("HEADLONG_ISA", isa)
        engine = Engine(case.layer, built.method, built.plan, built.norms, built.promise)
        found = engine.topk(case.hidden, k), engine.sample(case.hidden, 4, top_p=0.6, seed=5), engine.lse(case.hidden)
        for b in range(len(case.hidden)):
            if not clear[b] or found[0].cost.dense[b] > expected[0].cost.dense[b]:
                continue  # a preview beyond float32 is finished densely: that is better than the reference, and said
            assert (np.abs(found[0].logits[b] - expected[0].logits[b]) <= exact.rounding[b]).all(), f"{isa}, row {b}"
            if case.exact:
                assert (found[0].ids[b] == expected[0].ids[b]).all(), f"{isa}, row {b}"
            if exact.rounding[b] < 1e-10:
                assert (found[1].ids[b] == expected[1].ids[b]).all(), f"{isa}, samples of row {b}"
        if method in PROVING:
            check_within(found[2].lse, expected[2].lse, found[2].error + expected[2].error, slack)
        else:
            same = clear & (found[2].cost.dense == expected[2].cost.dense)
            assert np.isfinite(found[2].lse).all() and np.isinf(found[2].error[same]).all()
            np.testing.assert_allclose(found[2].lse[same], expected[2].lse[same], rtol=1e-4, atol=1e-3)
        proved = expected[0].proved & (built.promise.delta == 0)  # the reference reads all rows
        assert (found[0].proved == (proved | found[0].cost.dense)).all()


def budget_is_clear(engine: Engine, case: Case) -> NDArray[np.bool_]:
    """Rows where float32 cannot change which classes a budget pays for: the preview's boundary is no tie."""
    preview = engine.plan.preview
    if preview is None or preview.rows >= case.layer.vocab:
        return np.ones(len(case.hidden), bool)
    x = case.hidden.astype(np.float64) @ preview.rotation
    best = -np.sort(-(preview.base[: case.layer.vocab] + x @ preview.columns.astype(np.float64).T))
    gap = best[:, preview.rows - 1] - best[:, preview.rows]
    return np.asarray(gap > np.maximum(1e-4 * np.abs(best).max(axis=1), 1e-30))


def small(method: str = "codes", dim: int = 24, vocab: int = 3000, **options: Any) -> tuple[Engine, NDArray[np.float32]]:
    rng = np.random.default_rng(7)
    weight = rng.standard_normal((vocab, dim)).astype(np.float32)
    bias = rng.standard_normal(vocab).astype(np.float32)
    hidden = rng.standard_normal((5, dim)).astype(np.float32)
    return compiled(hl.Layer(weight, bias), method, rng.standard_normal((200, dim)), **options), hidden


MASKS: dict[str, dict[str, Any]] = {
    "few for all": {"allowed": np.array([5, 17, 4, 2999])},
    "few for each": {"allowed": [[1, 2], [3], [2999, 7, 9, 11], [0, 1, 2, 3], [8]]},
    "few, one excluded": {"allowed": np.array([5, 17, 4]), "exclude": [17]},
    "most for all": {"exclude": np.arange(0, 3000, 7)},
    "most for each": {"exclude": [list(range(b, 3000, 5)) for b in range(5)]},
    "half": {"allowed": np.arange(1500)},
    "half, padded": {"allowed": np.stack([np.r_[np.arange(2000), [-1]]] * 5)},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("method", [*READERS, *OF_PARTS])
def test_masks_restrict_the_distribution(level: str, method: str, mask: str) -> None:
    engine, hidden = small(method, eps=0.05)
    live = np.zeros((5, 3000), bool)
    for b in range(5):
        allowed, exclude = (MASKS[mask].get(name, empty) for name, empty in (("allowed", np.arange(3000)), ("exclude", [])))
        allowed, exclude = (part[b] if len(part) and np.ndim(part[0]) else part for part in (allowed, exclude))
        live[b, [i for i in allowed if i >= 0]] = True
        live[b, exclude] = False
    exact = truth(small("full")[0].layer, hidden, live)
    found, normal = engine.topk(hidden, 6, **MASKS[mask]), engine.lse(hidden, **MASKS[mask])
    check_within(found.lse, exact.lse, found.error, 1e-9)
    check_within(normal.lse, exact.lse, normal.error, 1e-9)
    assert np.take_along_axis(live, np.maximum(found.ids, 0), axis=1)[found.ids >= 0].all()
    sure = method != "svd" or "few" in mask
    for b in range(5):
        missing = max(0, 6 - int(live[b].sum()))
        assert (found.ids[b, 6 - missing :] == -1).all() and np.isneginf(found.log_probs[b, 6 - missing :]).all()
        if sure:
            check_topk(exact.logits[b], found.ids[b], found.logits[b], 1e-10)
    for filters in ({"top_p": 0.8}, *in_turn(2, list(MASKS).index(mask), FILTERS)):
        drawn = engine.sample(hidden, 3, seed=2, **filters, **MASKS[mask])
        assert np.take_along_axis(live, drawn.ids, axis=1).all()
        cut = filters.get("top_k", 0), filters.get("top_p", 1.0), filters.get("min_p", 0.0)
        for b, draw in np.ndindex((5, 3)) if sure else ():
            won = int(drawn.ids[b, draw]), float(drawn.score[b, draw])
            exponents = exact.exponents[b] / filters.get("temperature", 1.0)
            check_draw(exact.logits[b], exponents, noise_of(3000, 2, b, draw), cut, *won)
    assert found.proved.all() == sure
    assert method in OF_PARTS or (found.cost.path == f"rows/{level}") == ("few" in mask)


def test_nothing_is_left(level: str, method: str) -> None:
    engine, hidden = small(method)
    for restricted in ({"allowed": []}, {"exclude": np.arange(3000)}):
        found = engine.topk(hidden, 2, **restricted)
        assert (found.ids == -1).all() and np.isneginf(found.log_probs).all() and np.isneginf(found.lse).all()
        assert np.isneginf(engine.lse(hidden, **restricted).lse).all()
        with pytest.raises(InputError, match="no class is left"):
            engine.sample(hidden, **restricted)


@pytest.mark.parametrize("size", [3e38, 1e30, 1e-30, 1e-40, 1e-45, 1e-160, 1e-300, 5e-324])
def test_hidden_vectors_of_every_size(level: str, method: str, size: float) -> None:
    """float64 entries whose squares, or which themselves, float32 cannot hold."""
    engine, _ = small(method)
    rows = np.random.default_rng(4).standard_normal((9, 24))
    rows *= size / np.abs(rows).max()
    exact = truth(engine.layer, rows)
    for hidden in (rows, rows[:1]):
        found = engine.topk(hidden, 3)
        for b in range(len(hidden) if method in PROVING else 0):
            check_topk(exact.logits[b], found.ids[b], found.logits[b], 2 * exact.rounding[b])
            check_within(found.lse[b], exact.lse[b], found.error[b], 2 * exact.rounding[b] + 1e-13)
        engine.sample(hidden, seed=1, top_p=0.9)
    with pytest.raises(NonFiniteError, match="beyond float32"):
        engine.topk(np.full((1, 24), 1e300))


@pytest.mark.parametrize("step", [4, 8, 16])
def test_products_that_float32_swallows_are_within_the_radius(level: str, step: int) -> None:
    """Every product behind the first is lost beside it, in the one of ``step`` sums that has them all."""
    row = np.zeros(4096, np.float32)
    row[::step], row[0] = 2.0**-12, 1.0
    other = np.zeros_like(row)
    other[0] = 1 + row[step:].astype(np.float64) @ row[step:] * 0.9  # less than the row's own product
    engine = hl.compile(hl.Layer(np.stack([other, row, np.zeros_like(row)])), "full")
    top, lse = engine.topk(row[None], 1), engine.lse(row[None])
    assert top.ids.tolist() == [[1]] and top.proved.all()
    logits = engine.layer.weight.astype(np.float64) @ row.astype(np.float64)
    assert np.abs(lse.lse - np.logaddexp.reduce(logits)) <= lse.error + 1e-12
