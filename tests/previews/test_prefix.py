"""The whitened prefix: exact products in its basis, radii that hold for all rows and queries, plans in files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from adversarial import CASES, DTYPES, build
from headlong import native
from headlong.costs import BUILT_IN
from headlong.engines.base import Engine
from headlong.errors import NonFiniteError, OptionError
from headlong.layers.matrix import Layer
from headlong.plan import Dense
from headlong.previews import first_look, prefix
from headlong.previews.few_bits import sampled
from headlong.previews.first_look import CANDIDATES, best_look
from headlong.previews.judges import apart, blended
from headlong.previews.look_costs import rows_to_bet
from headlong.previews.prefix import prefix_plan, spread
from headlong.previews.whitening import stored, whiten
from oracle import check_topk, check_within, truth
from plans import check_radii, decaying, state, strangers

SURE, IDS = hl.Promise(0.05, 0.0, 0.0), hl.Promise(math.inf, 0.0, 0.0)










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


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("width", [1, 3, 16, 17, 40, 65])
def test_no_violation_whatever_calibrates(calibration: str, width: int) -> None:
    rng = np.random.default_rng(width)
    layer, hidden = decaying(200, 65)
    basis = whiten(layer.weight, CALIBRATIONS[calibration](rng, 65))
    plan = prefix_plan(layer, basis, width, Dense())
    assert check_radii(layer, plan, np.concatenate([hidden[:8], strangers(65, rng)])) >= 5000


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_no_violation_on_adversarial_layers(name: str, dtype: str) -> None:
    case = build(name, dtype)
    rng = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        others = strangers(case.layer.dim, rng)
    for width in {1, max(1, case.layer.dim // 3), case.layer.dim}:
        basis = whiten(case.layer.weight, case.hidden.astype(np.float64))
        check_radii(case.layer, prefix_plan(case.layer, basis, width, Dense()), np.concatenate([case.hidden, others]))


def test_no_violation_in_many_pairs_and_tight_enough() -> None:
    """8e5 pairs of like and unlike vectors; for like ones the prefix leaves far fewer classes open than its bytes say."""
    layer, hidden = decaying(4000, 96, power=2.0)
    basis = whiten(layer.weight, hidden[:300].astype(np.float64))
    plan = prefix_plan(layer, basis, 24, Dense())
    assert check_radii(layer, plan, np.concatenate([hidden[300:370], strangers(96, np.random.default_rng(1))])) > 5e5
    left = []
    for vector in hidden[370:]:
        query = state(layer, plan, vector)
        query.look(np.arange(layer.vocab))
        exact = layer.weight.astype(np.float64) @ vector + layer.bias
        left.append((query.reach()[1] >= np.sort(exact)[-10]).sum())
        gap = np.abs(exact - query.estimate)
        assert (gap / query.radius).max() > 0.03
    assert np.median(left) < 400


def test_rows_beyond_float32_are_always_scored() -> None:
    weight = np.random.default_rng(0).standard_normal((130, 20)).astype(np.float32)
    weight[3] *= 1e25
    bias = np.zeros(130, np.float32)
    bias[66] = -3e38
    layer = Layer(weight, bias)
    plan = prefix_plan(layer, whiten(weight, np.random.default_rng(1).standard_normal((40, 20))), 8, Dense())
    for level in plan.levels:
        assert level.slack is not None and level.scale is not None
        assert np.flatnonzero(np.isinf(level.slack).any(axis=0)).tolist() == [3, 66]
        assert (level.scale[:, [3, 66]] == 0).all() and np.isfinite(level.scale).all()


def test_equal_and_zero_rows() -> None:
    """Rows that are all alike vanish once centred; half of them zero leave the others' radii alone."""
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((30, 12)).astype(np.float32)
    same = Layer(np.tile(rng.standard_normal((1, 12)), (70, 1)).astype(np.float32))
    check_radii(same, prefix_plan(same, whiten(same.weight, hidden.astype(np.float64)), 4, Dense()), hidden)
    weight = rng.standard_normal((200, 12)).astype(np.float32)
    full = Layer(weight.copy())
    weight[::2] = 0.0
    half = Layer(weight)
    plans = [prefix_plan(layer, whiten(layer.weight, hidden.astype(np.float64)), 6, Dense()) for layer in (full, half)]
    widths = []
    for layer, plan in zip((full, half), plans, strict=True):
        check_radii(layer, plan, hidden)
        query = state(layer, plan, hidden[0])
        query.look(np.arange(200))
        widths.append(np.median(query.radius[1::2]))
    assert widths[1] < 2 * widths[0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((64, 128, 2, 512), ((64, 128), (128, 256), (256, 512))),
        ((64, 128, 2, 5000), ((64, 128), (128, 256), (256, 512), (512, 5000))),
        ((0, 16, 4, 10), ((0, 10),)),
        ((0, 16, 4, 128), ((0, 16), (16, 64), (64, 128))),
        ((20, 40, 2, 20), ()),
        ((1, 2, 2, 2), ((1, 2),)),
    ],
)
def test_segments(arguments: tuple[int, int, int, int], expected: tuple[tuple[int, int], ...]) -> None:
    assert spread(*arguments) == expected


def test_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = decaying(300, 20)
    basis = whiten(layer.weight, hidden.astype(np.float64))
    whole = prefix_plan(layer, basis, 8, Dense())
    monkeypatch.setattr("headlong.previews.whitening.PIECE", 1)
    parts = prefix_plan(layer, basis, 8, Dense())
    for one, other in zip(whole.levels, parts.levels, strict=True):
        assert (one.codes == other.codes).mean() > 0.9999, "BLAS may add in another order"
        np.testing.assert_allclose(one.slack, other.slack, rtol=1e-5)
    check_radii(layer, parts, hidden[:5])


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
    check_radii(layer, prefix_plan(layer, again, 8, Dense()), hidden[:8])


def test_the_width_follows_the_spectrum() -> None:
    """Steep: a short prefix; flat: int8 of everything; a normaliser to be kept: a longer one than ids need."""
    found, free = {}, BUILT_IN._replace(level=0.0)  # of what a second level costs a layer as small as this
    for power in (0.0, 1.0, 3.0):
        layer, hidden = decaying(6000, 128, power)
        wide = hidden.astype(np.float64)
        basis = whiten(layer.weight, wide)
        for name, promise in (("ids", IDS), ("sure", SURE), ("bet", hl.Promise(0.01, 1e-3, 0.0))):
            look = best_look(layer, basis, sampled(layer, basis), wide, promise, 0.25, few_bits=False, costs=free)
            found[power, name] = look.width
    assert found[0.0, "ids"] is None
    assert found[3.0, "ids"] in CANDIDATES[:3]
    assert found[3.0, "ids"] <= found[3.0, "bet"]  # type: ignore[operator]


def test_few_bits_where_the_energy_falls_off_slowly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a machine whose memory is slow."""
    (tmp_path / "costs.json").write_text('{"memory": 0.4}')
    monkeypatch.setenv("HEADLONG_COSTS", str(tmp_path / "costs.json"))
    rng = np.random.default_rng(1)
    energy = (1 + np.arange(128)) ** -0.25
    layer = Layer((rng.standard_normal((60_000, 128)) * energy).astype(np.float32))
    hidden = 2.2 * rng.standard_normal((1000, 128)) * energy
    engine = hl.compile(layer, "cascade", calibration=hidden[:900], eps=math.inf)
    assert {bits for *_, bits in engine.plan.levels[0].layout} == {2, 4, 8} and engine.plan.levels[1].adds
    assert check_radii(layer, engine.plan, hidden[900:905]) > 0
    top, expected = engine.topk(hidden[900:], 10), truth(layer, hidden[900:])
    assert top.proved.all() and not top.cost.dense.any()
    for b in range(len(top.ids)):
        check_topk(expected.logits[b], top.ids[b], top.logits[b], 2 * expected.rounding[b])
    plain = hl.compile(layer, "cascade", calibration=hidden[:900], eps=math.inf, width=64)
    assert all(bits == 8 for *_, bits in plain.plan.levels[0].layout)
    ours, theirs = ([one.topk(row[None], 10).cost.bytes[0] for row in hidden[900:920]] for one in (engine, plain))
    assert np.mean(ours) < np.mean(theirs)


def test_rows_stand_in_for_calibration_vectors_where_ids_alone_are_asked_for() -> None:
    rng = np.random.default_rng(5)
    energy = (1 + np.arange(160)) ** -0.8
    layer = Layer((rng.standard_normal((20_000, 160)) * energy).astype(np.float32))
    hidden = rng.standard_normal((60, 160)) * energy + 2 * layer.weight[rng.integers(0, 20_000, 60)]
    engine, int8 = (hl.compile(layer, "cascade", eps=math.inf, width=width) for width in (None, 0))
    assert engine.plan.rotation is not None and int8.plan.rotation is None
    top, expected = engine.topk(hidden, 10), truth(layer, hidden)
    assert top.proved.all()
    for b in range(len(top.ids)):
        check_topk(expected.logits[b], top.ids[b], top.logits[b], 2 * expected.rounding[b])
    ours, theirs = (np.mean([one.topk(row[None], 10).cost.bytes[0] for row in hidden[:20]]) for one in (engine, int8))
    assert ours < 0.7 * theirs
    assert hl.compile(layer, "cascade").plan.rotation is None  # a normaliser wants queries to be judged by
    small = Layer(layer.weight[:10_000])
    assert hl.compile(small, "cascade", eps=math.inf).plan.rotation is None
    flat = Layer(rng.standard_normal((20_000, 160)).astype(np.float32))
    assert hl.compile(flat, "cascade", eps=math.inf).plan.rotation is None, "queries may open more"


def test_judges_are_no_part_of_the_basis_where_there_are_plenty() -> None:
    vectors, ids, proof = np.arange(1000.0)[:, None], hl.Promise(math.inf, 0.0, 0.0), hl.Promise(0.1, 0.0, 0.0)
    judges, others = apart(vectors, 5000, proof)
    assert 16 <= len(judges) <= 24 and len(judges) + len(others) == 1000 and not set(judges[:, 0]) & set(others[:, 0])
    assert 56 <= len(apart(vectors, 5000, ids)[0]) <= 64, "logits need no order"
    assert len(apart(vectors[:400], 5000, ids)[1]) == 375, "no more than leave the basis its vectors"
    assert (apart(vectors[:150], 5000, proof)[1] == vectors[:150]).all()
    assert len(apart(vectors, 2**22, ids)[0]) == 2, "of many classes few vectors judge"


def test_rows_to_bet() -> None:
    promise = hl.Promise(0.01, 1e-3, 0.0)
    lightest = np.cumsum(np.sort(np.r_[np.full(999, 1e-6), 1 - 999e-6]))
    assert rows_to_bet(lightest, 0.1, promise) < 10 < rows_to_bet(np.arange(1, 1001) / 1000, 0.1, promise) <= 1000
    assert math.isinf(rows_to_bet(lightest, 9.0, promise))


def engine_of(layer: Layer, hidden: np.ndarray, **options: Any) -> Engine:
    return hl.compile(layer, "cascade", calibration=hidden, threads=2, **options)


@pytest.mark.parametrize("level", native.levels())
def test_answers_are_the_reference(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    layer, hidden = decaying(3000, 70, 2.0)
    vectors = np.concatenate([hidden[380:], strangers(70, np.random.default_rng(2))])
    exact = truth(layer, vectors)
    for width in (16, 30, 70):
        engine = engine_of(layer, hidden[:380], width=width, eps=0.05, delta=0.0)
        assert len(engine.plan.levels) == (1 if width == 70 else 2)
        for eps in (0.05, math.inf):
            found = engine.topk(vectors, 10, eps=eps)
            assert found.proved.all() and (found.error <= eps).all()
            check_within(found.lse, exact.lse, found.error, 1e-9 * (1 + np.abs(exact.lse)))
            for b, reference in enumerate(exact.logits):
                check_topk(reference, found.ids[b], found.logits[b], float(exact.rounding[b]))


def test_files(tmp_path: Path) -> None:
    layer, hidden = decaying(900, 70, 2.0)
    saved = engine_of(layer, hidden, width=20)
    saved.save(tmp_path / "head.safetensors")
    loaded = hl.load(tmp_path / "head.safetensors", threads=2)
    assert loaded.method == saved.method and loaded.promise == saved.promise
    for one, other in zip(saved.plan.levels, loaded.plan.levels, strict=True):
        assert (one.layout, one.terms, one.adds) == (other.layout, other.terms, other.adds)
        for name in ("codes", "scale", "slack"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("mean", "rotation", "base", "centre"):
        np.testing.assert_array_equal(getattr(saved.plan, name), getattr(loaded.plan, name))
    assert (saved.topk(hidden[:9], 5).ids == loaded.topk(hidden[:9], 5).ids).all()


def test_options() -> None:
    layer, hidden = decaying(900, 70, 2.0)
    assert engine_of(layer, hidden, width=0).plan.rotation is None
    assert hl.compile(layer, "cascade").plan.rotation is None, "nothing calibrates"
    own = hl.compile(layer, "cascade", width=8)
    assert own.plan.levels[0].layout[0][:2] == (0, 8), "the layer's own directions"
    assert (own.topk(hidden[:9], 5).ids == truth(layer, hidden[:9]).logits.argsort(axis=1)[:, ::-1][:, :5]).all()
    with pytest.raises(OptionError, match="width is 71; expected a whole number from 0 to 70"):
        engine_of(layer, hidden, width=71)
    with pytest.raises(NonFiniteError, match="calibration reaches 1e\\+200, beyond float32's range"):
        engine_of(layer, hidden.astype(np.float64) * 0 + 1e200)


def test_auto_says_what_calibration_chose() -> None:
    layer, hidden = decaying(30_000, 64, 3.0)
    engine = hl.compile(layer, calibration=hidden, eps=math.inf)
    assert engine.plan.rotation is not None
    width = engine.plan.levels[0].layout[-1][1]
    assert f"calibration vectors choose the first look: a whitened prefix of {width} coordinates" in engine.reason
    assert engine.reason.endswith("by costs built in")
    engine = hl.compile(layer, calibration=hidden, eps=math.inf, width=0)
    assert "calibration vectors choose the first look: int8 codes of all coordinates" in engine.reason


def test_auto_says_what_it_reads_without_calibration() -> None:
    """Int8 codes of the rows as they are, or, for ids alone, what rows of the layer chose in the place of vectors."""
    layer, _ = decaying(20_000, 128, 2.5)
    plain, ids = hl.compile(layer, eps=0.2, delta=0), hl.compile(layer, eps=math.inf)
    assert plain.reason.endswith("codes prove ids from a fraction of the bytes: int8 codes of all coordinates")
    width = ids.plan.levels[0].layout[-1][1]
    assert ids.reason.endswith(f"fraction of the bytes: a whitened prefix of {width} coordinates, by costs built in")


def test_auto_says_how_many_bits() -> None:
    layer, hidden = decaying(4000, 96, 1.0)
    engine = hl.compile(layer, calibration=hidden, eps=math.inf, bits=2.5)
    parts = re.search(r"few bits of all coordinates \((.*)\), by costs built in$", engine.reason)
    assert parts is not None
    said = [tuple(map(int, part.split(" bits of "))) for part in parts[1].split(", ")]
    layout = engine.plan.levels[0].layout
    assert len(said) > 1 and sum(count for _, count in said) == 96
    assert sum(bits * count for bits, count in said) == sum(bits * (stop - start) for start, stop, bits in layout)


def test_the_trained_layer(trained: Layer, trained_hidden: np.ndarray) -> None:
    """Calibrated on one half of the text and asked on the other: proved top-10 from 7 % of float32's bytes."""
    engine = hl.compile(trained, calibration=trained_hidden[:4096], eps=math.inf, threads=1)
    hidden = trained_hidden[4096:8192:16]
    exact = truth(trained, hidden)
    bytes_read = []
    for b, reference in enumerate(exact.logits):
        found = engine.topk(hidden[b : b + 1], 10)
        assert found.proved.all()
        check_topk(reference, found.ids[0], found.logits[0], float(exact.rounding[b]))
        bytes_read.append(found.cost.bytes[0])
    assert np.mean(bytes_read) < 0.07 * trained.vocab * trained.dim * 4
    plan = engine.plan
    assert prefix.FIRST_SEGMENT < plan.levels[0].layout[-1][1] < 128
    size = sum(array.nbytes for level in plan.levels for array in (level.codes, level.scale, level.slack) if array is not None)
    assert size + plan.rotation.nbytes + plan.base.nbytes < 0.7 * trained.weight.nbytes  # type: ignore[union-attr]


def test_a_rotation_is_16_bits_wide_where_they_keep_it() -> None:
    rng = np.random.default_rng(0)
    plain = rng.standard_normal((40, 40))
    assert stored(plain).dtype == np.float16
    assert stored(plain * 1e5).dtype == np.float32, "beyond float16"
    assert stored(plain * np.geomspace(1e-7, 1, 40)).dtype == np.float32, "columns among float16's subnormals"
    assert stored(plain * np.geomspace(1e-7, 1, 40)[:, None]).dtype == np.float32, "rows"


@pytest.mark.parametrize("level", native.levels())
def test_a_rotation_of_either_width_is_read_alike(monkeypatch: pytest.MonkeyPatch, level: str, tmp_path: Path) -> None:
    """The same numbers in 32 bits, as older files hold them, give the same answers to the bit."""
    monkeypatch.setenv("HEADLONG_ISA", level)
    layer, hidden = decaying(900, 70, 2.0)
    engine = engine_of(layer, hidden, width=20)
    rotation = engine.plan.rotation
    assert rotation is not None and rotation.dtype == np.float16
    plan = engine.plan._replace(rotation=rotation.astype(np.float32))
    other = Engine(layer, engine.method, plan, engine.norms, engine.promise, threads=2)
    other.save(tmp_path / "wide.safetensors")
    loaded = hl.load(tmp_path / "wide.safetensors", threads=2)
    for rows in (hidden[:1], hidden[:5], hidden[:21]):
        for one, two, three in zip(*(e.topk(rows, 7)[:5] for e in (engine, other, loaded)), strict=True):
            np.testing.assert_array_equal(one, two)
            np.testing.assert_array_equal(one, three)


def test_queries_that_are_unlike_rows_are_thought_of() -> None:
    """Rows that are alike in fifties find each other at once: looks that suited them opened every class for other queries."""
    rng = np.random.default_rng(3)
    own, centres = rng.standard_normal((4500, 768), np.float32), rng.standard_normal((90, 768), np.float32)
    layer, hidden = Layer(0.6 * own + 0.8 * centres[rng.integers(90, size=4500)]), rng.standard_normal((16, 768))
    engine, int8 = hl.compile(layer, "cascade", eps=math.inf), hl.compile(layer, "cascade", eps=0.2, delta=0)
    ours, theirs = (np.mean([one.topk(x[None], 10, eps=math.inf).cost.bytes[0] for x in hidden]) for one in (engine, int8))
    assert ours < 1.1 * theirs
    blends = blended(layer, np.asarray(layer.weight[:32], np.float64))
    lengths = [np.linalg.norm(each, axis=1) for each in (blends, layer.weight)]
    assert np.allclose(lengths[0], lengths[1][:32], rtol=1e-5)
    assert np.abs(blends @ layer.weight.T / np.outer(*lengths)).max() < 0.4


@pytest.mark.parametrize(("alone", "batch", "stood_in", "taken"), [
    (0.5, 1.05, False, True), (0.5, 1.2, False, False), (1.2, 0.5, False, False), (0.95, 0.95, False, False),
    (0.5, 1.2, True, True),
])  # fmt: skip
def test_a_look_is_much_slower_neither_alone_nor_in_batches(
    monkeypatch: pytest.MonkeyPatch, alone: float, batch: float, stood_in: bool, taken: bool
) -> None:
    """Than int8 codes of all coordinates, beside which it saves a tenth on the whole; rows know too little of batches."""
    layer, hidden = decaying(4000, 96, 1.5, seed=2)
    basis = whiten(layer.weight, hidden.astype(np.float64))
    one = {None: first_look.Spent(1e9, 1e9), 32: first_look.Spent(1e9 * alone, 1e9 * batch)}
    monkeypatch.setattr(first_look, "expected", lambda layer, seen, width, *rest: one.get(width, first_look.Spent(4e9, 4e9)))
    judges, ids = hidden[:16].astype(np.float64), hl.Promise(math.inf, 0.0, 0.0)
    found = best_look(layer, basis, sampled(layer, basis), judges, ids, 0.25, few_bits=False, stood_in=stood_in)
    assert (found.width == 32) == taken
