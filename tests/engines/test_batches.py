"""Many queries side by side, flat and peaked: no answer knows its batch, no query runs away or costs more than alone."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import headlong as hl
from bounded import clustered
from children import in_limits
from headlong import native
from headlong.answers import named_fields
from headlong.engines.base import Engine
from headlong.engines.method import METHODS, Running
from headlong.layers.matrix import Layer
from kinds import STILL, codes
from made_layers import decaying
from oracle import check_topk, check_within, truth
from rates import check_rate
from structured_layers import made
from thinned import NATIVE

WAYS: dict[str, Callable[..., Any]] = {
    **STILL, "svd": lambda layer, **options: hl.compile(layer, "svd", **options),
    "proved codes": lambda layer, **options: codes(layer, delta=0.0, **options),
}  # fmt: skip
ROWS = 62
ALLOWED = [np.sort(np.random.default_rng(row).choice(700, 1 + row**2 // 6, replace=False)) for row in range(ROWS)]
"""Of each row its own: from one class to nearly all of the smallest layer."""


def mixed(places: np.ndarray) -> dict[str, Any]:
    """Seeds, positions that do not count up, and rules of each row its own."""
    return {
        "seed": places + 3, "position": 7 * places, "temperature": 0.6 + places % 3 / 2, "top_k": 20 + places % 90,
        "top_p": 1 - places % 4 / 10, "min_p": places % 2 / 50,
    }  # fmt: skip


VERBS: dict[str, Callable[[Any, np.ndarray, np.ndarray], Any]] = {
    "topk": lambda engine, rows, at: engine.topk(rows, 5, eps=0.1), "lse": lambda engine, rows, at: engine.lse(rows, eps=0.1),
    "ids": lambda engine, rows, at: engine.topk(rows, 5, eps=math.inf),
    "entropy": lambda engine, rows, at: engine.entropy(rows, eps=0.1),
    "moments": lambda engine, rows, at: engine.entropy(rows, moments=True, eps=0.1),
    "log_prob": lambda engine, rows, at: engine.log_prob(rows, [[3, 7]] * len(rows), eps=0.1),
    "draws": lambda engine, rows, at: engine.sample(rows, 2, seed=3, position=at, eps=math.inf),
    "nucleus": lambda engine, rows, at: engine.sample(rows, 2, seed=3, top_p=0.9, position=at, eps=0.1),
    "mixed": lambda engine, rows, at: engine.sample(rows, eps=0.1, **mixed(at)),
    "best allowed": lambda engine, rows, at: engine.topk(rows, 4, eps=0.1, allowed=[ALLOWED[one] for one in at]),
    "draws allowed": lambda engine, rows, at: engine.sample(
        rows, 3, seed=5, position=at, top_p=0.8, temperature=0.7, eps=0.1, allowed=[ALLOWED[one] for one in at]
    ),
}  # fmt: skip


def alike(size: float) -> Callable[[int, int], tuple[Layer, np.ndarray]]:
    """Rows that are all the same, or nothing: each query is finished by a full scan."""

    def made(vocab: int, dim: int) -> tuple[Layer, np.ndarray]:
        rng = np.random.default_rng(11)
        rows = np.tile(size * rng.standard_normal((1, dim)), (vocab, 1)).astype(np.float16)
        return Layer(rows, np.zeros(vocab, np.float32)), rng.standard_normal((60, dim)).astype(np.float32)

    return made


def flat(vocab: int, dim: int) -> tuple[Layer, np.ndarray]:
    """Logits within a few nats: normalisers are estimated from rows that are drawn."""
    rng = np.random.default_rng(3)
    rows, hidden = ((rng.standard_normal((count, dim)) / 3).astype(np.float32) for count in (vocab, 60))
    return Layer(rows), hidden


SIZES = (1, 2, 9, 17, ROWS)


def check_rows(
    asked: Any, first: dict[str, Any], rows: np.ndarray, verbs: Iterable[str], only: tuple[str, ...] = (), sizes: Any = SIZES
) -> None:
    """Each row has the fields that it has among all, in batches of some sizes; ``first``: of all, as far as they were asked."""
    for verb in verbs:
        whole = first.setdefault(verb, VERBS[verb](asked, rows, np.arange(ROWS)))
        for size in sizes:
            at = 5 * size % (ROWS - size + 1) + np.arange(size)
            for name, one in named_fields(VERBS[verb](asked, rows[at], at)).items():
                if one is not None and name not in ("cost", "support") and (not only or name in only):
                    np.testing.assert_array_equal(one, getattr(whole, name)[at], err_msg=f"{verb}: {name}, {size} rows")


@pytest.mark.one_of("link", "dtype")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("link", [hl.Affine(1.0), hl.SoftCap(20.0), hl.Gss(1.19, 7.0)])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("of", [clustered, alike(1.0), alike(0.0), flat], ids=["centres", "equal", "zeros", "flat"])
def test_a_row_does_not_know_its_batch(of: Any, way: str, link: Any, dtype: Any) -> None:
    layer, hidden = of(3000, 40)
    rows = np.concatenate([hidden * 3, np.zeros((2, 40))]).astype(dtype)
    whole: dict[str, Any] = {}
    for threads in (1, 3):
        check_rows(WAYS[way](hl.Layer(layer.weight, layer.bias, link), threads=threads), whole, rows, VERBS)


@pytest.mark.parametrize("way", ["full", "codes", "svd"])
def test_nor_does_it_at_any_level(way: str, level: str) -> None:
    """But for a normaliser of the reference, which draws for a batch together."""
    layer, hidden = clustered(3000, 40)
    only = ("ids", "logits", "score") if level == native.REFERENCE else ()
    check_rows(WAYS[way](layer), {}, np.concatenate([hidden, hidden[:2]]).astype(np.float64), ("topk", "nucleus"), only)


@pytest.mark.parametrize("kind", ["tree", "bands", "differentiated", "experts", "mos"])
def test_nor_does_a_row_of_a_structured_layer(kind: str) -> None:
    whole: dict[str, Any] = {}
    case = made(kind, 16, 700, ROWS)
    for threads in (1, 2):
        check_rows(hl.compile(case.layer, delta=0.0, threads=threads), whole, case.hidden, VERBS)


def test_rows_beyond_those_that_are_answered_at_once_keep_their_own_excluded_classes() -> None:
    """Queries of 2,048 coordinates are answered in batches of some 2,000."""
    rng = np.random.default_rng(5)
    engine = hl.compile(hl.Layer(rng.standard_normal((300, 2048)).astype(np.float32)), "codes", threads=2)
    hidden, excluded = rng.standard_normal((2_100, 2048)), rng.integers(0, 300, (2_100, 3))
    whole, end = engine.topk(hidden, 5, exclude=excluded), engine.topk(hidden[1_900:], 5, exclude=excluded[1_900:])
    for field in ("ids", "logits", "log_probs", "lse", "error"):
        np.testing.assert_array_equal(getattr(whole, field)[1_900:], getattr(end, field))
    assert not (whole.ids[:, :, None] == excluded[:, None, :]).any()


VOCAB = 9001
BLOCKS = (4, 5, 8, 9, 15, 24, 47, 64, 70)


def built(eps: float, layer: Layer, hidden: np.ndarray, **options: object) -> Engine:
    chosen: dict[str, Any] = {"threads": 2, "blocks": False, **options}
    engine = hl.compile(layer, "codes", eps=eps, calibration=hidden[100:], **chosen)
    assert isinstance(engine, Engine)
    return engine


def check(engine: Engine, hidden: np.ndarray, k: int, eps: float, within: float | None = None) -> None:
    found, exact = engine.topk(hidden, k), truth(engine.layer, hidden)
    for b, reference in enumerate(exact.logits):
        check_topk(reference, found.ids[b], found.logits[b], float(exact.rounding[b]))
    if math.isinf(eps):
        assert np.isnan(found.lse).all() and np.isinf(found.error).all()
        return
    assert (found.error <= (eps if within is None else within)).all()
    assert (np.abs(found.lse - exact.lse) <= found.error).mean() > 0.99


@pytest.mark.parametrize("eps", [0.02, math.inf])
@NATIVE
def test_blocks_of_every_size(level: str, eps: float) -> None:
    layer, hidden = decaying(VOCAB, 64, 1.5)
    engine = built(eps, layer, hidden)
    for count in BLOCKS if level != "portable" else (8, 70):
        check(engine, hidden[:count], 10, eps)
    check(engine, hidden[:16], 1, eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@NATIVE
def test_types_links_and_odd_dimensions(level: str, dtype: type) -> None:
    layer, hidden = decaying(VOCAB, 60, 1.5, seed=1)
    layer = Layer(layer.weight.astype(dtype), layer.bias, hl.Affine(0.7, 3.0))
    check(built(0.02, layer, hidden), hidden[:20], 5, 0.02)


@NATIVE
def test_rows_without_codes_and_ties(level: str) -> None:
    layer, hidden = decaying(VOCAB, 64, 1.5, seed=2)
    weight = layer.weight.copy()
    weight[[5, 700, 9000]] *= 1e18
    weight[1000:1100] = weight[17]
    for eps in (0.05, math.inf):
        check(built(eps, Layer(weight, layer.bias), hidden), hidden[:20], 10, eps, math.inf)


@NATIVE
def test_a_normaliser_of_huge_logits_is_within_its_error(level: str) -> None:
    """Logits that float32 rounds by more than exponentials reach."""
    rng = np.random.default_rng(0)
    layer, energy = Layer(rng.standard_normal((VOCAB, 200), dtype=np.float32)), np.arange(1.0, 201) ** -1.5
    hidden = rng.standard_normal((600, 200)) * energy
    some, engine = 1e21 * hidden[:64], built(math.inf, layer, hidden)
    found, exact = engine.topk(some, 1, eps=1e30), truth(layer, some)
    check_within(found.lse, exact.lse, found.error, exact.rounding)


def test_a_large_delta_is_kept() -> None:
    """One in ten may fail, over seeds: far fewer do, and the mean of what is off is a small part of eps."""
    layer, hidden = decaying(VOCAB, 64, 0.7, seed=5)
    engine = built(0.02, layer, hidden, delta=0.1)
    exact, failures, off = truth(layer, hidden[:64]), 0, []
    for seed in range(20):
        again = Engine(layer, engine.method, engine.plan, engine.norms, engine.promise, Running(1, seed))
        found = again.topk(hidden[:64], 5)
        failures += int((np.abs(found.lse - exact.lse) > 0.02).sum())
        off.append(found.lse - exact.lse)
    check_rate(failures, 20 * 64, 0.1)
    assert abs(np.mean(off)) < 0.05 * 0.02 and np.std(off) > 1e-6  # a bet that ends when it is won leans a little


FORKS = "fork" in multiprocessing.get_all_start_methods()


@NATIVE
@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("apart", ["threads", "forks"] if FORKS else ["threads"])
def test_callers_at_once(apart: str) -> None:
    """On one pool of three threads, or forked after it was there: then a child grows threads of its own."""
    layer, hidden = clustered(3000, 40)
    rows = np.concatenate([hidden, hidden[:2]]).astype(np.float64)
    context: Any = multiprocessing.get_context("fork" if FORKS else None)
    for method, dtype in itertools.product(METHODS, (np.float32, ml_dtypes.bfloat16)):
        engine = hl.compile(Layer(layer.weight.astype(dtype), layer.bias), method, eps=0.05, threads=3)
        asked: Any = engine, {}, rows, ("topk", "log_prob", "nucleus"), (), (1, 9)
        check_rows(*asked)
        if apart == "threads":
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda _, asked=asked: check_rows(*asked), range(4)))
            continue
        children = [context.Process(target=check_rows, args=asked) for _ in range(3)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: what is tested here
            for child in children:
                child.start()
        for child in children:
            child.join(120)
        assert [child.exitcode for child in children] == [0, 0, 0]


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
    "spread-12": Case(12, seed=3), "spread-16": Case(16, seed=3), "spread-25": Case(25, seed=1),
    "spread-60": Case(60, batch=64, seed=0), "plain": Case(60, vocab=20_011, calibrated=False, seed=0),
    "bias": Case(3, bias=1e3, seed=5), "narrow-promise": Case(6, batch=128, eps=1e-4, seed=0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_batch_ends_and_costs_no_more_than_its_queries_alone(name: str) -> None:
    case = CASES[name]
    outcome = in_limits(play, case)
    assert outcome.right == 1
    assert (outcome.error <= case.eps).all() and (outcome.off <= case.eps).all()
    assert outcome.bytes <= 1.1 * outcome.alone
    assert outcome.rows < case.batch * case.vocab * 1.1


@pytest.mark.parametrize("spread", [80, 1_000, 8_000])
def test_normalisers_that_nobody_asked_for_are_no_numbers_and_cost_no_rows(spread: float) -> None:
    case = Case(spread, batch=64, vocab=9_000, eps=math.inf, norms=0.0)
    outcome = in_limits(play, case)
    assert outcome.right == 1
    assert np.isnan(outcome.off).all() and np.isnan(outcome.best).all() and np.isinf(outcome.error).all()
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
        assert math.isinf(eps) or (np.abs(top.lse - exact) <= top.error)[[2, 5]].all()
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


CLASSES, WIDE = 12_000, 256

KINDS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "a normaliser that many rows decide": lambda rng: rng.standard_normal((CLASSES, WIDE)) / WIDE**0.5,
    "two rows and noise": lambda rng: (
        rng.standard_normal((2, WIDE))[rng.integers(0, 2, CLASSES)] + 1e-3 * rng.standard_normal((CLASSES, WIDE))
    ),
    "two rows": lambda rng: rng.standard_normal((2, WIDE))[rng.integers(0, 2, CLASSES)],
    "zeros": lambda rng: np.zeros((CLASSES, WIDE)),
}


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("kind", KINDS)
@NATIVE
def test_codes_are_all_that_is_read_in_vain(kind: str, batch: int, level: str) -> None:
    rng = np.random.default_rng(3)
    layer = hl.Layer(KINDS[kind](rng).astype(np.float32))
    hidden = rng.standard_normal((batch, WIDE))
    eps = 1e-4 if "many rows" in kind else 0.02  # all classes together are bounded well
    engine = hl.compile(layer, "codes", eps=eps, delta=0.0, threads=2)
    top = engine.topk(hidden, 10)
    assert top.cost.dense.all() and top.proved.all() and (top.error <= eps).all()
    found = truth(layer, hidden)
    for b in range(batch):
        check_topk(found.logits[b], top.ids[b], top.logits[b], 2 * found.rounding[b])
    plain = hl.compile(layer, "full", threads=2).topk(hidden, 10, eps=eps)
    rows = top.cost.rows - plain.cost.rows
    assert rows.max() <= CLASSES // 4
    codes = 0 if engine.plan.codes is None else engine.plan.codes.tiles.nbytes + engine.plan.codes.rotation.nbytes
    assert (top.cost.bytes - plain.cost.bytes - rows * layer.row_bytes).mean() < 1.1 * codes / batch + 1


@NATIVE
def test_rows_that_are_nearly_one_row_are_told_apart_by_codes_of_what_differs(level: str) -> None:
    rng = np.random.default_rng(3)
    layer = hl.Layer((rng.standard_normal((1, WIDE)) + 1e-3 * rng.standard_normal((CLASSES, WIDE))).astype(np.float32))
    hidden = rng.standard_normal((3, WIDE))
    found = truth(layer, hidden)
    for row in range(3):
        top = hl.compile(layer, "codes", eps=0.02, delta=0.0, threads=2).topk(hidden[row : row + 1], 10)
        assert not top.cost.dense.any() and top.proved.all() and (top.error <= 0.02).all()
        check_topk(found.logits[row], top.ids[0], top.logits[0], 2 * found.rounding[row])
