"""Many queries side by side, flat and peaked: no answer knows its batch, no query runs away or costs more than alone."""

from __future__ import annotations

import math
import multiprocessing
import warnings
from collections.abc import Callable
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
from made_layers import decaying
from oracle import check_topk, check_within, truth
from rates import check_rate

WAYS: dict[str, dict[str, Any]] = {
    "full": {"method": "full"}, "codes": {"method": "codes"}, "proved codes": {"method": "codes", "delta": 0.0},
    "blocks": {"method": "codes", "blocks": True}, "svd": {"method": "svd"}, "changed": {"method": "codes"},
}  # fmt: skip
VERBS: dict[str, Callable[[Any, np.ndarray, int], Any]] = {
    "topk": lambda engine, rows, start: engine.topk(rows, 5), "lse": lambda engine, rows, start: engine.lse(rows),
    "entropy": lambda engine, rows, start: engine.entropy(rows),
    "moments": lambda engine, rows, start: engine.entropy(rows, moments=True),
    "log_prob": lambda engine, rows, start: engine.log_prob(rows, [[3, 7]] * len(rows)),
    "sample": lambda engine, rows, start: engine.sample(rows, 2, seed=3, top_p=0.9, position=start + np.arange(len(rows))),
}  # fmt: skip


def alike(size: float) -> Callable[[int, int], tuple[Layer, np.ndarray]]:
    """Rows that are all the same, or nothing: each query is finished by a full scan."""

    def made(vocab: int, dim: int) -> tuple[Layer, np.ndarray]:
        rng = np.random.default_rng(11)
        rows = np.tile(size * rng.standard_normal((1, dim)), (vocab, 1)).astype(np.float16)
        return Layer(rows, np.zeros(vocab, np.float32)), rng.standard_normal((60, dim)).astype(np.float32)

    return made


@pytest.mark.one_of("link")
@pytest.mark.parametrize("link", [hl.Affine(1.0), hl.SoftCap(20.0)])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("of", [clustered, alike(1.0), alike(0.0)], ids=["centres", "equal", "zeros"])
def test_a_row_does_not_know_its_batch(of: Any, way: str, link: Any) -> None:
    layer, hidden = of(3000, 40)
    rows = np.concatenate([hidden.astype(np.float64) * 3, np.zeros((2, 40))])
    layer = hl.Layer(layer.weight, layer.bias, link)
    calibration = {"calibration": rows[:50].repeat(10, axis=0)} if way == "blocks" else {}
    whole: dict[str, Any] = {}
    for threads in (1, 2, 3):
        engine: Any = hl.compile(layer, threads=threads, **WAYS[way], **calibration)
        if way == "changed":
            engine = engine.with_rows(layer.weight[:200], bias=layer.bias[:200]).without([4, 5])
        for verb, ask in VERBS.items():
            first = whole.setdefault(verb, ask(engine, rows, 0))
            for size in (1, 2, 9, 17, len(rows)):
                start = 5 * size % (len(rows) - size + 1)
                part = ask(engine, rows[start : start + size], start)
                for name, one in named_fields(part).items():
                    if one is not None and name not in ("cost", "support"):
                        other = getattr(first, name)[start : start + size]
                        np.testing.assert_array_equal(one, other, err_msg=f"{verb}: {name}")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("link", [hl.SoftCap(30.0), hl.Gss(1.19, 7.0)])
@pytest.mark.parametrize("method", ["codes", "full"])
def test_a_draw_does_not_know_its_batch_where_positions_do_not_count_up(method: str, link: Any, dtype: type) -> None:
    layer, hidden = decaying(2000, 16)
    engine, rows = hl.compile(Layer(layer.weight, None, link), method), hidden[:8].astype(dtype)
    for how in ({"temperature": 0.6}, {"temperature": 0.6, "top_p": 0.9}):
        batch = engine.sample(rows, seed=1, position=np.arange(8) * 7, **how)
        for row in range(8):
            alone = engine.sample(rows[row : row + 1], seed=1, position=7 * row, **how)
            for name in ("ids", "logits", "log_probs", "kept", "error"):
                np.testing.assert_array_equal(getattr(alone, name)[0], getattr(batch, name)[row])


def test_rows_beyond_those_that_are_answered_at_once_keep_their_own_excluded_classes() -> None:
    """Queries of 2,048 coordinates are answered in batches of some 2,000."""
    rng = np.random.default_rng(5)
    engine = hl.compile(hl.Layer(rng.standard_normal((300, 2048)).astype(np.float32)), "codes", threads=2)
    hidden, excluded = rng.standard_normal((2_100, 2048)), rng.integers(0, 300, (2_100, 3))
    whole, end = engine.topk(hidden, 5, exclude=excluded), engine.topk(hidden[1_900:], 5, exclude=excluded[1_900:])
    for field in ("ids", "logits", "log_probs", "lse", "error"):
        np.testing.assert_array_equal(getattr(whole, field)[1_900:], getattr(end, field))
    assert not (whole.ids[:, :, None] == excluded[:, None, :]).any()


LEVELS = native.levels()[1:]
VOCAB = 9001
BLOCKS = (4, 5, 8, 9, 15, 24, 47, 64, 70)


def built(patch: pytest.MonkeyPatch, level: str, eps: float, layer: Layer, hidden: np.ndarray, **options: object) -> Engine:
    patch.setenv("HEADLONG_ISA", level)
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


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("eps", [0.02, math.inf])
def test_blocks_of_every_size(monkeypatch: pytest.MonkeyPatch, level: str, eps: float) -> None:
    layer, hidden = decaying(VOCAB, 64, 1.5)
    engine = built(monkeypatch, level, eps, layer, hidden)
    for count in BLOCKS if level != "portable" else (8, 70):
        check(engine, hidden[:count], 10, eps)
    check(engine, hidden[:16], 1, eps)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_types_links_and_odd_dimensions(monkeypatch: pytest.MonkeyPatch, level: str, dtype: type) -> None:
    layer, hidden = decaying(VOCAB, 60, 1.5, seed=1)
    layer = Layer(layer.weight.astype(dtype), layer.bias, hl.Affine(0.7, 3.0))
    check(built(monkeypatch, level, 0.02, layer, hidden), hidden[:20], 5, 0.02)


@pytest.mark.parametrize("level", LEVELS)
def test_rows_without_codes_and_ties(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    layer, hidden = decaying(VOCAB, 64, 1.5, seed=2)
    weight = layer.weight.copy()
    weight[[5, 700, 9000]] *= 1e18
    weight[1000:1100] = weight[17]
    for eps in (0.05, math.inf):
        check(built(monkeypatch, level, eps, Layer(weight, layer.bias), hidden), hidden[:20], 10, eps, math.inf)


@pytest.mark.parametrize("level", LEVELS)
def test_a_normaliser_of_huge_logits_is_within_its_error(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Logits that float32 rounds by more than exponentials reach."""
    rng = np.random.default_rng(0)
    layer, energy = Layer(rng.standard_normal((VOCAB, 200), dtype=np.float32)), np.arange(1.0, 201) ** -1.5
    hidden = rng.standard_normal((600, 200)) * energy
    some, engine = 1e21 * hidden[:64], built(monkeypatch, level, math.inf, layer, hidden)
    found, exact = engine.topk(some, 1, eps=1e30), truth(layer, some)
    check_within(found.lse, exact.lse, found.error, exact.rounding)


@pytest.mark.parametrize("level", LEVELS[-1:])
def test_a_large_delta_is_kept(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """One in ten may fail, over seeds: far fewer do, and the mean of what is off is a small part of eps."""
    layer, hidden = decaying(VOCAB, 64, 0.7, seed=5)
    engine = built(monkeypatch, level, 0.02, layer, hidden, delta=0.1)
    exact, failures, off = truth(layer, hidden[:64]), 0, []
    for seed in range(20):
        again = Engine(layer, engine.method, engine.plan, engine.norms, engine.promise, Running(1, seed))
        found = again.topk(hidden[:64], 5)
        failures += int((np.abs(found.lse - exact.lse) > 0.02).sum())
        off.append(found.lse - exact.lse)
    check_rate(failures, 20 * 64, 0.1)
    assert abs(np.mean(off)) < 0.05 * 0.02 and np.std(off) > 1e-6  # a bet that ends when it is won leans a little


CALLERS = 6


def engines(threads: int | None = None) -> list[Engine]:
    """Every method over a float32 and a bfloat16 layer."""
    rng = np.random.default_rng(3)
    layers = [
        hl.Layer(rng.standard_normal((5000, 70)).astype(np.float32), rng.standard_normal(5000).astype(np.float32)),
        hl.Layer(rng.standard_normal((3001, 33)).astype(ml_dtypes.bfloat16)),
    ]
    return [hl.compile(layer, method, eps=0.05, threads=threads) for layer in layers for method in METHODS]


def hidden(engine: Engine, batch: int) -> Any:
    return np.random.default_rng(batch).standard_normal((batch, engine.layer.dim))


def answers(engine: Engine, batch: int) -> tuple[Any, ...]:
    """Everything that must not depend on who else is asking: ids, exact logits, samples."""
    rows = hidden(engine, batch)
    top, drawn = engine.topk(rows, 4), engine.sample(rows, 2, seed=1, top_p=0.9)
    given = engine.log_prob(rows, top.ids)
    assert (np.abs(given.lse - top.lse) <= given.error + top.error).all()
    return top.ids, top.logits, top.proved, drawn.ids, drawn.score, given.logits


def same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.fixture(params=native.levels()[1:])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADLONG_ISA", request.param)
    return str(request.param)


def test_callers_at_once(isa: str) -> None:
    built = engines(threads=3)
    asked = [(engine, batch) for engine in built for batch in (1, 5, 70)] * 4
    expected = [answers(*one) for one in asked[: len(asked) // 4]] * 4
    with ThreadPoolExecutor(CALLERS) as pool:
        found = list(pool.map(lambda one: answers(*one), asked))
    assert all(same(*pair) for pair in zip(found, expected, strict=True))


ASKED: list[Engine] = []


def ask_in_child(number: int) -> tuple[Any, ...]:
    return answers(ASKED[number], 5)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system has no fork")
def test_forked_processes_grow_threads_of_their_own(isa: str) -> None:
    ASKED[:] = engines(threads=3)
    expected = [answers(engine, 5) for engine in ASKED]  # the pool of this process has its threads now
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: what is tested here
        with multiprocessing.get_context("fork").Pool(3) as pool:
            found = pool.map_async(ask_in_child, list(range(len(ASKED))) * 2).get(timeout=120)
    assert all(same(*pair) for pair in zip(found, expected * 2, strict=True))


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


@pytest.fixture(params=[level for level in native.levels() if level != native.REFERENCE])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADLONG_ISA", request.param)
    return str(request.param)


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("kind", KINDS)
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


def test_rows_that_are_nearly_one_row_are_told_apart_by_codes_of_what_differs(level: str) -> None:
    rng = np.random.default_rng(3)
    layer = hl.Layer((rng.standard_normal((1, WIDE)) + 1e-3 * rng.standard_normal((CLASSES, WIDE))).astype(np.float32))
    hidden = rng.standard_normal((3, WIDE))
    found = truth(layer, hidden)
    for row in range(3):
        top = hl.compile(layer, "codes", eps=0.02, delta=0.0, threads=2).topk(hidden[row : row + 1], 10)
        assert not top.cost.dense.any() and top.proved.all() and (top.error <= 0.02).all()
        check_topk(found.logits[row], top.ids[0], top.logits[0], 2 * found.rounding[row])
