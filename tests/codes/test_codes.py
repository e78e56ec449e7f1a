"""Codes and their encoders: bounds, sums, normalisers, entropies and draws beside float64; and plans that the clock chooses."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.dtypes import Doubles
from headlong.encode.basis import basis_for
from headlong.encode.blocks.coding import Encoded, Group, Groups, encode
from headlong.encode.segments import by_water_filling
from headlong.encode.tiles import codes_of, packed, quantised, shared
from headlong.encode.whitening import Basis, whiten
from headlong.engines import contest
from headlong.engines.methods import codes as codes_method
from headlong.engines.promise_failures import limits
from headlong.engines.reference.codes import kappa_of, unpacked
from headlong.layers.matrix import Layer
from headlong.links import SIGSOFTMAX, Link, SoftCap
from headlong.plan import CODE_BITS, Segment, TileLayout
from headlong.question import Question
from layers import DTYPES
from made_layers import SEGMENTS, awkward, decaying, entropies, gaussian, reader
from oracle import check_within, logsumexp, truth
from thinned import NATIVE

LEVELS = [level for level in native.levels() if level != native.REFERENCE]


@pytest.mark.parametrize("bits", CODE_BITS)
def test_codes_unpack_to_what_was_packed(bits: int) -> None:
    u = np.random.default_rng(bits).integers(0, 2**bits, (130, 70)).astype(np.uint8)
    again = unpacked(packed(u, bits), bits).reshape(192, -1)
    np.testing.assert_array_equal(again[:130, :70], u)
    assert not again[130:].any() and not again[:, 70:].any()


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8, 13])
def test_every_level_has_the_estimates_of_the_plain_loops_to_the_bit(segments: tuple[Segment, ...], batch: int) -> None:
    layer, hidden = gaussian(203, 100, 0)
    plain = reader(layer, segments, "portable")[0].estimates(hidden[:batch], 3.0, 7)[0]
    for level in LEVELS:
        est, radius = reader(layer, segments, level)[0].estimates(hidden[:batch], 3.0, 7)
        np.testing.assert_array_equal(est, plain, err_msg=level)
        one = np.concatenate([reader(layer, segments, level)[0].estimates(hidden[i : i + 1], 3.0, 7)[0] for i in range(batch)])
        np.testing.assert_array_equal(est, one, err_msg=f"{level}: a batch is not a loop")
        assert (radius[:, :203] > 0).all()


@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("kappa", [0.0, 4.0])
def test_the_statement_in_numpy_has_the_same_estimates_and_radii(segments: tuple[Segment, ...], kappa: float) -> None:
    layer, hidden = gaussian(203, 100, 1)
    native_reader, twin, _ = reader(layer, segments, native.levels()[-1])
    est, radius = (part[:, :203] for part in native_reader.estimates(hidden, kappa, 11))
    own, wide = twin.estimates(hidden, kappa, 11)
    size = np.linalg.norm(hidden, axis=1)[:, None] * np.linalg.norm(layer.weight, axis=1).max()
    assert (np.abs(est - own) <= 2e-5 * size).all()
    np.testing.assert_allclose(radius, wide, rtol=4e-3, atol=1e-4 * float(size.max()))


@pytest.mark.parametrize(("name", "layer", "hidden"), awkward(), ids=[name for name, _, _ in awkward()])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_no_radius_is_broken_on_layers_made_to_break_it(name: str, layer: hl.Layer, hidden: np.ndarray, bits: int) -> None:
    exact = truth(layer, hidden).logits
    for seed in range(6):
        native_reader, _, _ = reader(layer, (Segment(0, 64, bits),), native.levels()[-1], seed)
        for kappa in (0.0, kappa_of(2.0 * exact.size, 1e-6)):
            est, radius = (part[:, : layer.vocab].astype(np.float64) for part in native_reader.estimates(hidden, kappa, seed))
            assert (np.abs(est - exact) <= radius + 2e-6 * np.abs(exact)).all(), (name, seed, kappa)


def test_errors_are_as_large_as_sigma_says() -> None:
    layer, hidden = gaussian(2000, 96, 4, steep=3.0)
    exact, shares = truth(layer, hidden).logits, []
    for seed in range(12):
        native_reader, _, _ = reader(layer, (Segment(0, 32, 4), Segment(32, 96, 2)), native.levels()[-1], seed)
        est, sigma = (part[:, : layer.vocab] for part in native_reader.estimates(hidden, 1.0, seed))
        shares.append((est - exact) / sigma)
    assert 0.8 < np.std(shares) < 1.05
    assert abs(np.mean(shares)) < 0.05


def test_a_planted_error_norm_is_noticed() -> None:
    layer, hidden = gaussian(600, 64, 5)
    codes = codes_of(layer, basis_for(layer, None), (Segment(0, 64, 2),), 0)
    assert codes is not None
    tiles = codes.tiles.copy()
    largest = TileLayout.of(codes.segments).largest
    tiles[:, largest : largest + 4] = (tiles[:, largest : largest + 4].copy().view(np.float32) / 8).view(np.uint8)
    _, _, rows = reader(layer, (Segment(0, 64, 2),), native.levels()[-1])
    est, radius = native.code_reader(rows, codes._replace(tiles=tiles), native.levels()[-1]).estimates(hidden, 5.0, 0)
    assert (np.abs(est[:, :600] - truth(layer, hidden).logits) > radius[:, :600]).any()


def test_tiles_that_a_file_put_at_any_byte_are_read_where_float32_may_be() -> None:
    layer, hidden = gaussian(200, 64, 5)
    codes = codes_of(layer, basis_for(layer, None), (Segment(0, 64, 2),), 0)
    assert codes is not None
    moved = np.empty(codes.tiles.nbytes + 1, np.uint8)[1:].reshape(codes.tiles.shape)
    moved[:] = codes.tiles
    assert moved.ctypes.data % 4 == 1
    level = native.levels()[-1]
    _, _, rows = reader(layer, (Segment(0, 64, 2),), level)
    there, here = (
        native.code_reader(rows, codes._replace(tiles=one), level).estimates(hidden, 5.0, 0) for one in (codes.tiles, moved)
    )
    np.testing.assert_array_equal(here, there)


def test_codes_of_a_row_depend_on_that_row_alone() -> None:
    rng = np.random.default_rng(6)
    v = rng.standard_normal((8, 40)).astype(np.float32)
    other = v.copy()
    other[1:] *= rng.uniform(0.01, 100, (7, 1)).astype(np.float32)
    for bits in CODE_BITS:
        for mine, theirs in zip(quantised(v, bits), quantised(other, bits), strict=True):
            np.testing.assert_array_equal(mine[0], theirs[0])


def test_scaled_codes_are_off_at_a_right_angle() -> None:
    v = np.random.default_rng(7).standard_normal((50, 48)).astype(np.float32)
    for bits in CODE_BITS:
        u, scale, error, length = quantised(v, bits)
        q = 2.0 * u - (2**bits - 1)
        e = scale[:, None] * q - v
        assert np.abs((e * v).sum(axis=1)).max() < 1e-4 * np.abs(v).max() ** 2 * 48
        assert (np.linalg.norm(e, axis=1) <= error).all()
        assert (np.linalg.norm(q, axis=1) <= length).all()
        np.testing.assert_allclose(length, np.linalg.norm(q, axis=1), rtol=2e-4)
    u, scale, error, _ = quantised(np.zeros((1, 16), np.float32), 3)
    assert scale[0] == 0 and error[0] >= 0


def test_a_share_of_the_largest_of_its_tile_is_no_less_than_the_number() -> None:
    numbers = np.random.default_rng(1).lognormal(0, 3, (4, 200)).astype(np.float32)
    numbers[:, 64:128] = 0
    share, largest = shared(numbers)
    most = largest.T.repeat(64, axis=1)[:, :200]
    assert (share.astype(np.float64) * most >= numbers).all() and (share <= 1 + 1e-6).all()
    loose = np.abs(share * most - numbers).min(axis=0) > 1e-6 * numbers.max(axis=0)
    assert (share >= 0.25).all() and (share[loose] < 0.26).all()


def test_water_filling_spends_its_budget_where_the_energy_is() -> None:
    energy = np.geomspace(1e4, 1, 576)
    for bits in (1.5, 2.6, 4.5, 7.0):
        found = by_water_filling(energy, bits)
        assert [one.start for one in found] == [0, *(one.stop for one in found[:-1])] and found[-1].stop == 576
        assert all(a.bits >= b.bits for a, b in itertools.pairwise(found))
        assert 0.8 * bits <= sum((one.stop - one.start) * one.bits for one in found) / 576 <= bits + 0.6
        assert all(one.stop - one.start >= 16 for one in found)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("bits", [2.0, 4.5, 8.0])
@pytest.mark.parametrize("steep", [1.0, 30.0])
def test_ids_and_log_probabilities_are_the_layers_own(delta: float, bits: float, steep: float) -> None:
    layer, hidden = gaussian(3001, 80, 8, steep)
    engine = hl.compile(layer, "codes", bits=bits, delta=delta)
    exact = truth(layer, hidden).logits
    order, lse = np.argsort(-exact, axis=1, kind="stable"), logsumexp(exact)
    for k in (1, 10, 300):
        top = engine.topk(hidden, k)
        np.testing.assert_array_equal(top.ids, order[:, :k])
        assert (np.abs(top.lse - lse) <= np.minimum(top.error, 0.01) + 1e-9).all()
        assert (top.proved >= (delta == 0)).all()
    assert (np.abs(engine.lse(hidden).lse - lse) <= 0.01).all()
    ids = engine.topk(hidden, 5, eps=math.inf)
    assert np.isinf(ids.error).all()


@pytest.mark.parametrize("delta", [0.1, 0.01])
def test_ids_fail_no_more_often_than_promised(delta: float) -> None:
    """Over rotations; near ties all around, so that whatever can be lost is lost as often as it may be."""
    rng = np.random.default_rng(11)
    weight, failed, asked = rng.standard_normal((3000, 32)).astype(np.float32), 0, 0
    hidden = rng.standard_normal((8, 32))
    layer = hl.Layer(weight)
    best = np.argsort(-truth(layer, hidden).logits, axis=1, kind="stable")[:, :10]
    for seed in range(80):
        native_reader, _, _ = reader(layer, (Segment(0, 32, 1),), native.levels()[-1], seed, delta)
        ids = native_reader.ask(hidden, Question("best", 10)).ids
        failed += int((ids != best).any(axis=1).sum())
        asked += len(hidden)
    assert limits(failed, asked)[0] <= delta


EPS = 0.01


def exact(layer: hl.Layer, hidden: np.ndarray, live: np.ndarray | None = None) -> np.ndarray:
    log_probs = truth(layer, hidden, live).log_probs
    p = np.exp(log_probs)
    return -np.sum(p * np.where(p > 0, log_probs, 0.0), axis=1)


@pytest.mark.parametrize("level", [level for level in native.levels() if level != native.REFERENCE])
@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_entropies_are_within_their_error(segments: tuple, level: str, delta: float) -> None:
    layer, hidden = gaussian(6000, 100, 8, steep=4.0)
    ask = entropies(layer, segments, level)
    live = np.random.default_rng(1).random(6000) < 0.5
    for scale in (0.02, 0.1, 0.3, 1.0):
        for mask in (None, live):
            rows = hidden * scale
            given = None if mask is None else mask[None].astype(np.uint8)
            found = ask(rows, EPS, given, delta, 3)
            check_within(found.value, exact(layer, rows, mask), found.error, 1e-9)
            assert (found.error <= EPS).all()
            assert (np.abs(found.lse - truth(layer, rows, mask).lse) <= 0.1).all()


def test_rows_are_drawn_where_intervals_leave_an_entropy_open() -> None:
    layer, hidden = gaussian(40_000, 100, 9)
    ask = entropies(layer, SEGMENTS[2], native.levels()[-1])
    rows = hidden * 0.35
    found = ask(rows, 0.05, None, 1e-6, 0)
    assert found.full.mean() < 0.2 and (found.rows[~found.full] > 200).all()
    check_within(found.value, exact(layer, rows), found.error, 1e-9)
    many = [ask(rows, 0.05, None, 0.3, seed) for seed in range(25)]
    misses = [np.abs(one.value - exact(layer, rows)) > one.error for one in many]
    assert np.mean(misses) < 0.3  # what was promised; it is far fewer


@pytest.mark.parametrize(("name", "layer", "hidden"), awkward(), ids=[name for name, _, _ in awkward()])
def test_layers_made_to_break_a_bound(name: str, layer: hl.Layer, hidden: np.ndarray) -> None:
    ask = entropies(layer, (Segment(0, 64, 6),), native.levels()[-1])
    for delta in (1e-6, 0.0):
        found = ask(hidden, EPS, None, delta, 0)
        check_within(found.value, exact(layer, hidden), found.error, 1e-9)
        assert (found.error <= EPS).all()


@pytest.mark.parametrize("link", [hl.Affine(0.7, 0.2), hl.SoftCap(8.0)])
def test_a_full_scan_says_entropies_in_float64(link: hl.Affine | hl.SoftCap) -> None:
    layer, hidden = gaussian(3000, 100, 11)
    bent = hl.Layer(layer.weight, layer.bias, link)
    engine = hl.compile(bent, "full")
    found = engine.entropy(np.concatenate([hidden, np.zeros((1, 100))]), eps=1e-7)
    assert found.cost.dense.all() and (found.error < 1e-7).all()
    check_within(found.entropy, exact(bent, np.concatenate([hidden, np.zeros((1, 100))])), found.error, 1e-9)


@NATIVE
@pytest.mark.parametrize("dim", [256, 508, 512, 516, 1024, 1540])
def test_rows_that_lie_along_the_query(level: str, dim: int) -> None:
    signs = np.where(np.random.default_rng(dim).random((8, dim)) < 0.5, -1.0, 1.0).astype(np.float32)
    weight = np.concatenate([np.tile(signs * step, (16, 1)) for step in (1.0, -1.0, 0.5)])  # +-127 in every coordinate
    engine = hl.compile(hl.Layer(weight), "codes", eps=1e-3, delta=0.0)
    logits = signs.astype(np.float64) @ weight.T.astype(np.float64)
    for rows in (signs[:1], signs[:3], signs):
        found = engine.topk(rows, 16)
        np.testing.assert_array_equal(found.logits[:, 0], logits[: len(rows)].max(axis=1))
        np.testing.assert_array_equal(np.take_along_axis(logits[: len(rows)], found.ids, 1), found.logits)
        assert found.proved.all() and (found.logits == dim).all()


VOCAB, DIM = 5003, 48
LINKS: dict[str, Link | None] = {"none": None, "softcap": SoftCap(8.0), "sigsoftmax": SIGSOFTMAX}
FILTERS = {
    "all": {}, "top_p": {"top_p": 0.9}, "little": {"top_p": 0.2, "temperature": 1.7}, "min_p": {"min_p": 0.05},
    "top_k": {"top_k": 40, "top_p": 0.8}, "several": {"n": 3, "top_p": 0.95, "min_p": 0.01},
}  # fmt: skip


def made(link: Link | None, delta: float = 1e-6, bias: bool = True) -> tuple[hl.Engine, np.ndarray]:
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((VOCAB, DIM)).astype(np.float32)
    offset = (0.3 * rng.standard_normal(VOCAB)).astype(np.float32) if bias else None
    layer = hl.Layer(weight, offset, link) if link is not None else hl.Layer(weight, offset)
    return hl.compile(layer, "codes", bits=8.0, delta=delta), 0.5 * rng.standard_normal((24, DIM))


def logits(engine: hl.Engine, hidden: np.ndarray) -> np.ndarray:
    layer = engine.layer
    return hidden @ layer.weight.astype(np.float64).T + (0 if layer.bias is None else layer.bias.astype(np.float64))


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_draws_are_those_of_every_logit(link: Link | None, filters: dict[str, float], delta: float) -> None:
    engine, hidden = made(link, delta)
    dense = hl.compile(engine.layer, "full")
    allowed = np.arange(0, VOCAB, 3)
    for among in ({}, {"allowed": allowed}):
        found, true = (one.sample(hidden, seed=9, eps=np.inf, **filters, **among) for one in (engine, dense))
        np.testing.assert_array_equal(found.ids, true.ids)
        np.testing.assert_array_equal(found.logits, true.logits)
        assert (found.proved == (delta == 0)).all() or found.cost.dense.any()


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
def test_normalisers_are_within_their_errors_under_every_link(link: Link | None) -> None:
    engine, hidden = made(link)
    exponents = logits(engine, hidden) if link is None else link(logits(engine, hidden))
    most = exponents.max(axis=1)
    true = most + np.log(np.exp(exponents - most[:, None]).sum(axis=1))
    found = engine.topk(hidden, 5)
    assert (np.abs(found.lse - true) <= found.error).all() and (found.error <= 0.0101).all()
    alone = np.concatenate([engine.lse(row[None]).lse for row in hidden])
    np.testing.assert_array_equal(found.lse, alone)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95])
def test_what_a_nucleus_keeps_is_within_the_error(temperature: float, top_p: float) -> None:
    """Nuclei of a few classes, and of thousands, whose mass is bounded by that of the first ones."""
    engine, hidden = made(None)
    found = engine.sample(hidden, seed=2, top_p=top_p, temperature=temperature)
    scaled = logits(engine, hidden) / temperature
    share = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    order = np.argsort(-share, axis=1, kind="stable")
    falling = np.take_along_axis(share, order, axis=1)
    above = np.cumsum(falling, axis=1) - falling
    sizes = (above < top_p).sum(axis=1)
    for row, size in enumerate(sizes):
        assert found.ids[row, 0] in order[row, :size]
        assert abs(found.kept[row] - np.log(falling[row, :size].sum())) <= found.error[row]
        assert abs(found.log_probs[row, 0] - np.log(share[row, found.ids[row, 0]])) <= found.error[row]
    assert (found.error <= 0.0101).all()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(contest.VARIABLE, raising=False)


def layer_of(vocab: int = 4096, dim: int = 96) -> tuple[hl.Layer, np.ndarray]:
    rng = np.random.default_rng(0)
    return hl.Layer(rng.standard_normal((vocab, dim)).astype(np.float32)), rng.standard_normal((200, dim))


def test_codes_are_taken_where_they_were_faster(clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict follows the times: here they are planted."""
    layer, hidden = layer_of()
    times = {2: (1.0, 1.0, 1.0), 6: (0.4, 0.9, 1.1)}  # by all batches: a normaliser does not depend on its own

    def planted(engines: Any, vectors: Any, batches: Any) -> np.ndarray:
        widths = [None if one.plan.codes is None else {segment.bits for segment in one.plan.codes.segments} for one in engines]
        return np.array([(1.0,) * 3 if bits is None else times[6 if 6 in bits else 2] for bits in widths])

    monkeypatch.setattr(contest, "_asking", lambda engine, k: engine)
    monkeypatch.setattr(contest, "timed", planted)
    engine = hl.compile(layer, calibration=hidden, delta=0.0)
    assert engine.plan.codes is not None and 6 in np.array(engine.plan.codes.segments)
    assert "us a query, 1, 8, 64 at once: all rows 1000000, 125000, 15625; " in engine.reason
    times[2], times[6] = (0.99,) * 3, (2.0,) * 3
    assert hl.compile(layer, calibration=hidden, delta=0.0).name == "full"


def test_the_clock_asks_vectors_that_no_plan_was_made_of(clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of few bits reads few rows for the vectors that it was made of, and ten times as many for others."""
    layer, hidden = layer_of()
    asked: list[np.ndarray] = []
    made: list[np.ndarray] = []

    def planted(engines: Any, vectors: Any, batches: Any) -> np.ndarray:
        asked.append(vectors)
        return np.ones((len(engines), len(batches)))

    def fitted(layer: Any, vectors: Any) -> Any:
        made.append(vectors)
        return basis_for(layer, vectors)

    monkeypatch.setattr(contest, "_asking", lambda engine, k: engine)
    monkeypatch.setattr(contest, "timed", planted)
    monkeypatch.setattr(codes_method, "basis_for", fitted)
    hl.compile(layer, calibration=hidden, delta=0.0)
    of_clock, of_plans, given = ({row.tobytes() for array in arrays for row in array} for arrays in (asked, made, [hidden]))
    assert of_clock and of_plans and not of_clock & of_plans and of_clock | of_plans <= given


def test_who_may_not_be_kept_loses_a_contest_and_a_busy_turn_is_held_against_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "_asking", lambda engine, k: engine)
    busy = iter((1.0, 10.0, 1.0))
    monkeypatch.setattr(contest, "timed", lambda asks, vectors, batches: next(busy) * np.array([[float(ask)] for ask in asks]))
    field: Any = [("slow", 4), ("false", 1), ("fast", 2)]
    found, chosen = contest.fastest(field, np.zeros((1, 1)), 1, (1,), lambda name, _: name != "false")
    assert chosen == 2 and found.fastest == "fast" and found.seconds[:, 0].tolist() == [4, 1, 2]


def test_a_real_contest_ends_and_answers_right(clock: None, tmp_path) -> None:
    layer, hidden = layer_of()
    engine = hl.compile(layer, calibration=hidden, delta=0.0)
    exact = hidden @ layer.weight.astype(np.float64).T
    order = np.argsort(-exact, axis=1, kind="stable")[:, :10]
    for batch in (1, 8, 64):
        np.testing.assert_array_equal(engine.topk(hidden[:batch]).ids, order[:batch])
    engine.save(tmp_path / "engine.safetensors")
    again = hl.load(tmp_path / "engine.safetensors")
    assert (again.plan.codes is None) == (engine.plan.codes is None)
    np.testing.assert_array_equal(again.topk(hidden).ids, order)


def test_every_contender_is_timed_on_every_batch() -> None:
    layer, hidden = layer_of(2100, 128)
    engines = [hl.compile(layer, name, delta=1e-6) for name in ("full", "codes")]
    seconds = contest.timed([engine.topk for engine in engines], hidden[:64])
    assert seconds.shape == (2, 3) and (seconds > 0).all()


GROUPS: dict[int, Groups] = {
    1: (Group(0, 1, True),),
    7: (Group(0, 3, True), Group(3, 7, False)),
    65: (Group(0, 33, True), Group(33, 65, True)),
    130: (Group(0, 30, True), Group(30, 96, False), Group(96, 120, True), Group(120, 130, False)),
    300: (Group(0, 32, True), Group(32, 300, True)),
}
"""By the number of coordinates: groups that end anywhere."""


def awkward_layer(dim: int, dtype: str = "float32") -> Layer:
    rng = np.random.default_rng(dim)
    weight = rng.standard_normal((197, dim)) * np.exp(rng.standard_normal((197, 1)))
    weight[5], weight[66] = 0.0, weight[67]
    weight[100] *= 1e-4
    if dtype != "float16":
        weight[3], weight[130] = weight[3] * 1e25, weight[130] * 1e-25
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return Layer(weight.astype(kind), rng.standard_normal(197).astype(np.float32))


def whitened(layer: Layer) -> Basis:
    vectors = np.random.default_rng(1).standard_normal((400, layer.dim))
    return whiten(layer.weight, vectors * np.arange(1, layer.dim + 1) ** -0.5)


def read(found: Encoded, groups: Groups, vocab: int) -> Doubles:
    """What the codes mean, ``[vocab, dim]``."""
    total, codes = np.zeros((vocab, groups[-1].stop)), iter(zip(found.codes, found.scale.astype(np.float64), strict=True))
    for start, stop, coded in groups:
        if coded:
            own, scale = next(codes)
            total[:, start:stop] = scale[:, None] * own
    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", GROUPS)
def test_nothing_is_lost_beyond_what_is_said(dtype: str, dim: int) -> None:
    """Against the rows in float64, rotated in float64."""
    layer, groups = awkward_layer(dim, dtype), GROUPS[dim]
    basis = whitened(layer)
    found = encode(layer, basis, groups)
    rows = layer.weight.astype(np.float64) - basis.centre
    assert (np.flatnonzero(found.uncoded) == ([] if dtype == "float16" else [3])).all()
    meant = read(found, groups, layer.vocab)
    rotated = np.where(found.uncoded[:, None], 0.0, rows @ basis.back)
    for g, group in enumerate(groups):
        part = slice(group.start, group.stop)
        lost = np.linalg.norm((rotated - meant)[:, part], axis=1)
        assert (lost <= found.lost[g] + 1e-13 * np.linalg.norm(rotated[:, part], axis=1)).all()
        if dim > 1:  # where a code is off by no more than roundings are
            assert np.median(lost) >= 0.8 * np.median(found.lost[g]), "and no more is claimed than that"
    assert (np.linalg.norm(meant, axis=1) <= found.size * (1 + 1e-12)).all()
    assert (np.linalg.norm(rows, axis=1) <= found.length)[~found.uncoded].all()
    base = rows @ basis.mean + layer.bias
    np.testing.assert_allclose(found.base[~found.uncoded], base[~found.uncoded], rtol=1e-6, atol=1e-12)


def test_the_first_groups_alone_are_coded_as_with_all_others() -> None:
    layer = awkward_layer(130, "float16")
    basis = whitened(layer)
    whole = (Group(0, 17, True), Group(17, 64, True), Group(64, 130, False))
    all_, first = encode(layer, basis, whole), encode(layer, basis, whole[:2])
    for mine, theirs in zip(all_.codes, first.codes, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for name in ("scale", "base", "length", "uncoded"):
        np.testing.assert_allclose(getattr(all_, name), getattr(first, name), rtol=1e-6, err_msg=name)


CALIBRATIONS: dict[str, Any] = {
    "plenty": lambda rng, dim: rng.standard_normal((300, dim)) * np.arange(1, dim + 1) ** -0.5 + 1,
    "one": lambda rng, dim: rng.standard_normal((1, dim)),
    "all equal": lambda rng, dim: np.ones((20, dim)) * 3,
    "zeros": lambda rng, dim: np.zeros((5, dim)),
    "fewer than coordinates": lambda rng, dim: rng.standard_normal((max(1, dim // 3), dim)),
    "one direction": lambda rng, dim: rng.standard_normal((50, 1)) * rng.standard_normal(dim),
    "tiny": lambda rng, dim: rng.standard_normal((50, dim)) * 1e-30,
    "huge": lambda rng, dim: rng.standard_normal((50, dim)) * 1e30,
}


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("dim", [1, 7, 65])
def test_products_in_the_basis(calibration: str, dim: int) -> None:
    """``A (hidden - mean) = B x'`` within what the basis says is lost, and little is."""
    rng = np.random.default_rng(dim)
    weight = rng.standard_normal((90, dim)).astype(np.float32)
    basis = whiten(weight, CALIBRATIONS[calibration](rng, dim))
    rows = weight.astype(np.float64) - basis.centre
    vectors = rng.standard_normal((30, dim)) - basis.mean * (np.abs(basis.mean) < 1e6)
    rotated = (rows @ basis.back) @ (vectors @ basis.rotation.astype(np.float64)).T
    bound = basis.lost * np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(vectors, axis=1)
    assert (np.abs(rows @ vectors.T - rotated) <= bound).all()
    assert basis.lost < 1e-8 and np.isfinite(basis.rotation).all()


def test_the_basis_whitens_and_sorts() -> None:
    layer, hidden = decaying(500, 40)
    hidden = hidden[:300]
    basis = whiten(layer.weight, hidden.astype(np.float64))
    vectors = (hidden - basis.mean) @ basis.rotation
    covariance = vectors.T @ vectors / len(vectors) / basis.scale**2
    np.testing.assert_allclose(covariance, np.eye(40), atol=0.02)
    energy = (((layer.weight - basis.centre) @ basis.back) ** 2).sum(axis=0)
    assert (np.diff(energy) <= 1e-6 * energy[0]).all()


def test_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = decaying(300, 20)
    whole = whiten(layer.weight, hidden.astype(np.float64))
    monkeypatch.setattr("headlong.encode.whitening.PIECE", 1)
    parts = whiten(layer.weight, hidden.astype(np.float64))
    np.testing.assert_allclose(np.abs(whole.back), np.abs(parts.back), rtol=1e-3, atol=1e-3 * np.abs(whole.back).max())


def test_products_in_float64_where_float32_will_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = decaying(300, 40, 1.0)
    wide, real, asked = hidden.astype(np.float64), np.linalg.cholesky, []

    def first_fails(matrix: np.ndarray) -> np.ndarray:
        asked.append(matrix)
        if len(asked) == 1:
            raise np.linalg.LinAlgError("not positive definite")
        return real(matrix)

    usual = whiten(layer.weight, wide)
    monkeypatch.setattr(np.linalg, "cholesky", first_fails)
    again = whiten(layer.weight, wide)
    np.testing.assert_allclose(asked[0], asked[1], rtol=1e-4, atol=1e-5)
    assert (asked[0] != asked[1]).any()
    np.testing.assert_allclose(again.scale, usual.scale, rtol=1e-5)
