"""AdaptiveSoftmax: its estimators, the published search on both executors, and the race's intervals."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import headlong as hl
from headlong import native
from headlong.engines.adaptive.clopper_pearson import clopper_pearson
from headlong.engines.adaptive.columns import basis, hadamard_rotated, published_arrays, race_arrays
from headlong.engines.adaptive.multipliers import fitted
from headlong.engines.adaptive.published import PublishedSearch, Rules, order_of
from headlong.engines.adaptive.race import RaceQuery, Widths, odds_of
from headlong.engines.adaptive.reader import PublishedReader, RaceReader, keys_of
from headlong.engines.adaptive.variance import chances, horvitz_thompson, importance, serfling, uniform
from headlong.engines.base import Engine
from headlong.engines.reference.query import Matrix
from headlong.errors import MalformedFileError, OptionError
from headlong.plan import Plan
from headlong.store import open_file, write_file
from oracle import truth

EPS = math.log(1.3)
Doubles = NDArray[np.float64]


@pytest.fixture
def layer(rng: np.random.Generator) -> hl.Layer:
    weight = rng.standard_normal((400, 96)) * np.linspace(2, 0.1, 96)
    return hl.Layer(weight.astype(np.float32), rng.standard_normal(400).astype(np.float32))


@pytest.fixture
def hidden(rng: np.random.Generator) -> NDArray[np.float32]:
    return rng.standard_normal((12, 96)).astype(np.float32)


def published(layer: hl.Layer, **options: object) -> Engine:
    return hl.compile(layer, method="adaptive", eps=EPS, delta=0.1, delta_ids=0.1, published=True, threads=1, **options)


def reader_of(engine: Engine) -> PublishedReader:
    assert isinstance(engine._executor, PublishedReader)
    return engine._executor


# ---- estimators ----


def test_every_estimator_is_unbiased_and_knows_its_variance(rng: np.random.Generator) -> None:
    dim, m, draws = 60, 15, 4000
    terms = rng.standard_normal(dim) * np.linspace(3, 0.2, dim)
    weights = np.abs(terms) + 0.2
    shares = weights / weights.sum()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("replaced", "kept", "importance", "ht")}
    for _ in range(draws):
        found["replaced"].append(_one(uniform(terms[rng.integers(0, dim, m)][None], dim)))
        found["kept"].append(_one(uniform(terms[rng.permutation(dim)[:m]][None], dim, corrected=True)))
        chosen = rng.choice(dim, m, p=shares)
        found["importance"].append(_one(importance(terms[chosen][None], shares[chosen])))
        keys = np.log(shares) + rng.gumbel(size=dim)
        order = np.argsort(-keys)
        q = chances(np.log(shares[order[:m]]), float(keys[order[m]]))
        found["ht"].append(_one(horvitz_thompson(terms[order[:m]][None], q)))
    for name, pairs in found.items():
        values, variances = np.array(pairs).T
        error = values.std() / math.sqrt(draws)
        assert abs(values.mean() - terms.sum()) < 4 * error, name
        assert variances.mean() == pytest.approx(values.var(), rel=0.15), name


def _one(pair: tuple[Doubles, Doubles]) -> tuple[float, float]:
    return float(pair[0][0]), float(pair[1][0])


def test_a_full_read_has_no_variance(rng: np.random.Generator) -> None:
    terms = rng.standard_normal((3, 9))
    assert (horvitz_thompson(terms, chances(np.zeros(9), -math.inf))[1] == 0).all()
    assert (uniform(terms, 9, corrected=True)[1] == 0).all()
    assert (serfling(np.ones(3), np.ones(3), 9, 9, 0.1) == 0).all()


def test_serfling_covers_even_a_single_spike(rng: np.random.Generator) -> None:
    population = np.zeros(400)
    population[7] = 5.0
    missed = 0
    for _ in range(500):
        drawn = population[rng.permutation(400)[:100]]
        off = serfling(np.array([drawn.std()]), np.array([5.0]), 100, 400, 0.05)[0]
        missed += abs(drawn.mean() - population.mean()) > off
    assert missed == 0  # at most 25 are allowed; the range term pays for all of them


# ---- multipliers and rates ----


def test_the_smallest_multiplier_is_found() -> None:
    assert fitted(lambda f: 0 if f >= 0.02 else 9, 3) == pytest.approx(0.02, rel=0.03)
    assert fitted(lambda f: 9, 3) == 1.0
    assert fitted(lambda f: 0, 3) == 1e-6


def test_clopper_and_pearson() -> None:
    assert clopper_pearson(0, 300) == pytest.approx(1 - 0.05 ** (1 / 300), rel=1e-9)
    assert clopper_pearson(13, 800) == pytest.approx(0.0257, abs=2e-4)  # scipy.stats.beta.ppf(0.95, 14, 787)
    assert clopper_pearson(5, 5) == 1.0
    assert clopper_pearson(0, 200) > 0.01 > clopper_pearson(0, 300)  # 200 queries cannot certify 1 %


# ---- as published ----


def test_both_executors_search_alike(
    layer: hl.Layer, hidden: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = published(layer)
    rows = hidden.astype(np.float64)
    found = reader_of(fast).search(rows, 3, None, 1, estimates=True)
    monkeypatch.setenv("HEADLONG_ISA", "numpy")
    slow = reader_of(published(layer)).search(rows, 3, None, 1, estimates=True)
    # float32 may stop one growth earlier or later than float64 where a variance is at its target to the last digit
    assert (found[1] == slow[1]).mean() > 0.95
    assert np.abs(found[3] - slow[3]).max() <= 0.02 * slow[3].max()
    np.testing.assert_allclose(found[2], slow[2], atol=0.02)
    assert np.median(np.abs(found[7] - slow[7])) < 1e-4


@pytest.mark.parametrize("level", native.levels()[1:])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_level_reads_columns_as_they_are_stored(
    layer: hl.Layer, hidden: NDArray[np.float32], dtype: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among them blocks of 16 classes of which none takes part, and groups of 64 that are not full."""
    part = hl.Layer(layer.weight.astype(dtype), layer.bias)
    mask = (np.arange(400) % 7 > 2) & ((np.arange(400) < 100) | (np.arange(400) >= 150))
    found = {}
    for name in (level, "numpy"):
        monkeypatch.setenv("HEADLONG_ISA", name)
        reader = reader_of(published(part, sum=0.2, arm=0.2))
        found[name] = reader.search(hidden.astype(np.float64), 2, mask[None].astype(np.uint8), 1)
    assert reader.arrays["columns"].dtype == dtype
    assert (found[level][1] == found["numpy"][1]).mean() > 0.95
    assert np.abs(found[level][3] - found["numpy"][3]).max() <= 0.02 * found["numpy"][3].max()
    np.testing.assert_allclose(found[level][2], found["numpy"][2], atol=0.02)


def test_a_full_warm_up_with_strict_multipliers_is_exact(layer: hl.Layer, hidden: NDArray[np.float32]) -> None:
    engine = published(layer, warm=1.0, arm=1e6, sum=1e6)
    found, exact = engine.topk(hidden, 1), truth(layer, hidden)
    assert (found.ids[:, 0] == exact.logits.argmax(axis=1)).all()
    np.testing.assert_allclose(found.lse, exact.lse, atol=1e-4)
    values = reader_of(engine).search(hidden.astype(np.float64), 1, None, 1)
    assert (values[3] == values[4]).all()  # every class was read in full
    assert engine.promise.delta_ids == 1 and not found.proved.any() and np.isinf(found.error).all()


def test_published_counts_fewer_entries_than_a_full_read(rng: np.random.Generator) -> None:
    weight = rng.standard_normal((50, 4096)).astype(np.float32) / 64
    spread = hl.Layer(weight)
    hidden = weight[:4] * 8 + rng.standard_normal((4, 4096)).astype(np.float32) * 0.1
    engine = published(spread)
    _, ids, _, pulls, full, rows, _, _ = reader_of(engine).search(hidden.astype(np.float64), 1, None, 1)
    assert (ids[:, 0] == np.arange(4)).all()
    assert (rows == 1).all() and (full == 50 * 4096).all()
    assert (pulls < full / 2).all()


def test_the_order_is_one_per_query_and_leaves_out_what_weighs_nothing() -> None:
    x = np.array([0.0, 1.0, -2.0, 3.0])
    ids, shares, keys = order_of(x, np.array([1.0, 1.0, 0.0, 2.0]), 0, 5)
    assert sorted(ids) == [1, 3]
    assert np.exp(shares).sum() == pytest.approx(1)
    assert (np.diff(keys) <= 0).all()
    again = order_of(x, np.array([1.0, 1.0, 0.0, 2.0]), 0, 5)
    assert (again[0] == ids).all()


def test_each_class_stops_at_its_own_target(rng: np.random.Generator) -> None:
    columns = rng.standard_normal((64, 30)).astype(np.float32)
    x = rng.standard_normal(64)
    search = PublishedSearch(columns, np.zeros(30), x, order_of(x, np.ones(64), 0, 1))
    targets = np.where(np.arange(30) % 2, 1e9, 0.0)
    search.each(np.arange(30), targets, 1.0)
    assert set(search.pulls[::2]) == {64} and set(search.pulls[1::2]) == {16}
    np.testing.assert_allclose(search.estimate[::2], (x @ columns)[::2], rtol=1e-5)


def test_multipliers_are_fitted_on_calibration_vectors(layer: hl.Layer, rng: np.random.Generator) -> None:
    engine = published(layer, calibration=rng.standard_normal((60, 96)))
    arm, total = engine.plan.arrays["multipliers"] if engine.plan.arrays else (0, 0)
    assert 1e-6 <= arm <= 1 and 1e-6 <= total <= 1
    assert published(layer, calibration=rng.standard_normal((60, 96)), arm=0.5, sum=0.25).plan.arrays["multipliers"][1] == 0.25


def test_the_race_is_fitted_without_the_normaliser(layer: hl.Layer, rng: np.random.Generator) -> None:
    """The argmax's multiplier is that of a race of its own, so it does not depend on how far the warm-up may read."""
    calibration = rng.standard_normal((60, 96))
    arms = {published(layer, calibration=calibration, warm=warm).plan.arrays["multipliers"][0] for warm in (0.2, 0.5, 1.0)}
    assert len(arms) == 1


def test_hadamard_keeps_products(layer: hl.Layer, hidden: NDArray[np.float32], rng: np.random.Generator) -> None:
    signs = rng.choice([-1.0, 1.0], 128)
    left, right = (hadamard_rotated(np.asarray(part, np.float64), signs) for part in (layer.weight, hidden))
    np.testing.assert_allclose(left @ right.T, layer.weight.astype(np.float64) @ hidden.T, atol=1e-10)
    engine = published(layer, hadamard=True, warm=1.0, sum=1e6, arm=1e6)
    assert (engine.topk(hidden, 1).ids == hl.compile(layer, method="full").topk(hidden, 1).ids).all()
    assert published_arrays(layer, True, 0)["columns"].shape == (7, 128, 64)


@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("level", [native.REFERENCE, native.levels()[-1]])
def test_published_on_nothing(
    layer: hl.Layer, hidden: NDArray[np.float32], hadamard: bool, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No queries, no classes that may be answered, a hidden vector of zeros."""
    monkeypatch.setenv("HEADLONG_ISA", level)
    engine = published(layer, hadamard=hadamard, exact=not hadamard)
    assert engine.topk(hidden[:0], 2).ids.shape == (0, 2)
    none = engine.topk(hidden[:2], 2, allowed=np.empty(0, int))
    assert (none.ids == -1).all() and np.isneginf(none.log_probs).all() and np.isneginf(none.lse).all()
    zero = engine.topk(np.zeros_like(hidden[:1]), 1)
    assert layer.bias is not None
    assert zero.ids[0, 0] == layer.bias.argmax()
    np.testing.assert_allclose(zero.lse, truth(layer, np.zeros_like(hidden[:1])).lse, atol=1e-5)


@pytest.mark.parametrize("level", [native.REFERENCE, native.levels()[-1]])
def test_a_race_of_ties_ends(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of zeros are the best, and no further read tells them apart."""
    monkeypatch.setenv("HEADLONG_ISA", level)
    weight = np.zeros((70, 96), np.float32)
    weight[2:] = -1
    found = published(hl.Layer(weight)).topk(np.ones((2, 96)), 1)
    assert (found.ids == 0).all() and (found.logits == 0).all()


def test_published_samples_and_masks(layer: hl.Layer, hidden: NDArray[np.float32]) -> None:
    engine = published(layer)
    drawn = engine.sample(hidden, 4, seed=1, top_p=0.9, exclude=np.arange(0, 400, 2))
    assert (drawn.ids % 2 == 1).all() and not drawn.proved.any()
    assert (engine.topk(hidden, 2, exclude=np.arange(0, 400, 2)).ids % 2 == 1).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"published": True, "delta": 0.0}, "0 < delta < 1"),
        ({"published": True, "delta": 0.1, "widths": "sure"}, "leave one of the two out"),
        ({"widths": "bernstein"}, "may fail"),
        ({"widths": "calibrated", "delta_ids": 0.1}, "needs calibration vectors"),
        ({"widths": "wide"}, "expected one of sure, calibrated, bernstein"),
        ({"eps": 0.0}, "eps"),
        ({"eps": -1.0}, "eps"),
        ({"delta": 1.5}, "delta"),
        ({"warm": 0.0}, "warm"),
    ],
)
def test_options_that_make_no_sense(layer: hl.Layer, options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        hl.compile(layer, method="adaptive", **options)


def test_published_knows_temperatures_only(rng: np.random.Generator, hidden: NDArray[np.float32]) -> None:
    weight = rng.standard_normal((40, 96)).astype(np.float32)
    with pytest.raises(OptionError, match="temperatures only"):
        published(hl.Layer(weight, link=hl.SoftCap(5.0)))
    engine = published(hl.Layer(weight, link=hl.Affine(0.5, 1.0)), warm=1.0, arm=1e6, sum=1e6)
    exact = truth(engine.layer, hidden)
    found = engine.topk(hidden, 1)
    np.testing.assert_allclose(found.logits[:, 0], exact.logits.max(axis=1), rtol=1e-6)
    np.testing.assert_allclose(found.lse, exact.lse, atol=1e-4)


# ---- the race ----


def spiky(rng: np.random.Generator) -> tuple[hl.Layer, Doubles]:
    """Rows with all their weight on a coordinate or two, queries likewise: what few draws never see."""
    weight = rng.standard_normal((600, 160)) * 0.02
    weight[np.arange(600), rng.integers(0, 160, 600)] = rng.choice([-6.0, 6.0], 600)
    hidden = rng.standard_normal((25, 160)) * 0.1
    hidden[np.arange(25), rng.integers(0, 160, 25)] = 3.0
    return hl.Layer(weight.astype(np.float32)), hidden


def plain_arrays(layer: hl.Layer) -> dict[str, NDArray[np.float64]]:
    """The race's arrays without a rotation, which would hide the spikes."""
    arrays = race_arrays(layer, None)
    assert arrays is not None
    dim, vocab = layer.dim, layer.vocab
    columns = np.zeros_like(arrays["columns"])
    columns[:, :vocab] = layer.weight.T
    each = columns.reshape(-1, 16, columns.shape[1]).astype(np.float64) ** 2
    squares = each.sum(axis=1)
    return arrays | {
        "columns": columns, "back": np.eye(dim), "centre": np.zeros(dim), "lost": np.zeros(1),
        "column_weight": np.sqrt(squares[:, :vocab].mean(axis=1)), "squares": squares.astype(np.float32) * np.float32(1 - 1e-6),
        "size": np.sqrt(squares.sum(axis=0)).astype(np.float32) * np.float32(1 + 1e-6),
        "peak": np.sqrt(squares.max(axis=0)).astype(np.float32) * np.float32(1 + 1e-6),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["sure", "bernstein"])
@pytest.mark.parametrize("rotated", [True, False])
def test_intervals_hold_on_spiky_rows(rng: np.random.Generator, kind: str, rotated: bool) -> None:
    layer, hidden = spiky(rng)
    arrays = race_arrays(layer, None) if rotated else plain_arrays(layer)
    assert arrays is not None
    plan = Plan(None, None, None, None, (), arrays=arrays)
    matrix = Matrix(layer.weight, None, np.linalg.norm(layer.weight, axis=1).astype(np.float32) * 1.001, layer.link, plan)
    widths = Widths(kind, 1.0, odds_of(600, 10, 0.1))
    exact = truth(layer, hidden.astype(np.float32)).logits
    for row, logits, key in zip(hidden.astype(np.float32).astype(np.float64), exact, keys_of(hidden), strict=True):
        query = RaceQuery(matrix, row, np.ones(600, bool), arrays, widths, 0, int(key))
        for depth in range(len(query.looks)):
            query._read(depth, np.arange(600))
            assert (np.abs(query.estimate - logits) <= query.radius).all()


def test_bernstein_is_the_narrower_one_in_many_dimensions(rng: np.random.Generator) -> None:
    dim = 40_000
    layer = hl.Layer(rng.standard_normal((8, dim)).astype(np.float32) / 200)
    arrays = race_arrays(layer, None)
    assert arrays is not None
    matrix = Matrix(layer.weight, None, np.linalg.norm(layer.weight, axis=1).astype(np.float32), layer.link,
                    Plan(None, None, None, None, (), arrays=arrays))  # fmt: skip
    hidden = rng.standard_normal(dim)
    radii = {}
    for kind in ("sure", "bernstein"):
        query = RaceQuery(matrix, hidden, np.ones(8, bool), arrays, Widths(kind, 1.0, odds_of(8, dim // 16, 0.1)), 0, 3)
        query._read(len(query.looks) - 1, np.arange(8))
        assert (np.abs(query.estimate - layer.weight.astype(np.float64) @ hidden) <= query.radius).all()
        radii[kind] = query.radius.max()
    assert radii["bernstein"] < radii["sure"] / 2


def test_a_basis_keeps_products(layer: hl.Layer, hidden: NDArray[np.float32], rng: np.random.Generator) -> None:
    rows, centre = layer.weight.astype(np.float64), layer.weight.astype(np.float64).mean(axis=0)
    for calibration in (None, rng.standard_normal((500, 96)) * np.linspace(0.01, 3, 96)):
        forth, back, lost = basis(layer, centre, calibration)
        assert forth is not None and back is not None
        gap = np.abs(rows @ hidden.T - (rows @ forth) @ (hidden @ back).T)
        assert (gap <= lost * np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(hidden, axis=1)).all()


def test_a_calibrated_race_answers_like_the_full_softmax(rng: np.random.Generator) -> None:
    weight = rng.standard_normal((2000, 256)) * np.exp(-np.arange(256) / 30)
    layer = hl.Layer(weight.astype(np.float32), rng.standard_normal(2000).astype(np.float32))
    vectors = rng.standard_normal((1200, 256))
    engine = hl.compile(
        layer, method="adaptive", eps=EPS, delta=0.1, delta_ids=0.1, widths="calibrated", calibration=vectors[:1000], threads=1
    )
    assert engine.promise.over == {"calibration", "query"}
    found, exact = engine.topk(vectors[1000:], 5), truth(layer, vectors[1000:])
    wrong = (found.ids[:, 0] != exact.logits.argmax(axis=1)) | (np.abs(found.lse - exact.lse) > EPS)
    assert wrong.mean() <= 0.1
    assert found.cost.dense.mean() < 0.5
    assert (found.error <= EPS).all() and not found.proved[~found.cost.dense].any()


def test_the_sampled_normaliser_is_repeatable_and_within_its_error(rng: np.random.Generator) -> None:
    weight = rng.standard_normal((5000, 64)) * np.exp(-np.arange(64) / 6)
    layer = hl.Layer(weight.astype(np.float32))
    hidden = rng.standard_normal((60, 64))
    engine = hl.compile(layer, method="adaptive", eps=0.2, delta=0.05, threads=1, seed=3)
    first, second, exact = engine.lse(hidden), engine.lse(hidden), truth(layer, hidden)
    assert (first.lse == second.lse).all()
    assert (~first.cost.dense).any()
    assert (np.abs(first.lse - exact.lse) <= first.error).mean() >= 0.95


def test_it_is_saved_and_loaded(layer: hl.Layer, hidden: NDArray[np.float32], tmp_path: Path) -> None:
    for number, engine in enumerate((published(layer, arm=0.5), hl.compile(layer, method="adaptive"))):
        path = tmp_path / f"{number}.safetensors"
        engine.save(path)
        loaded = hl.load(path)
        assert type(loaded._executor) is type(engine._executor)
        assert isinstance(loaded._executor, PublishedReader | RaceReader)
        assert loaded.method == engine.method
        assert (loaded.topk(hidden, 3).ids == engine.topk(hidden, 3).ids).all()
        assert (loaded.topk(hidden, 3).lse == engine.topk(hidden, 3).lse).all()


@pytest.mark.parametrize("name", ["multipliers", "spread", "column_weight", "base"])
def test_a_file_with_other_numbers_is_refused(layer: hl.Layer, tmp_path: Path, name: str) -> None:
    path = tmp_path / "engine.safetensors"
    published(layer).save(path)
    file = open_file(path)
    tensors = {key: np.array(file.read(key)) for key in file.tensors}
    tensors[f"plan.arrays.{name}"] *= np.nan
    write_file(path, tensors, file.metadata)
    with pytest.raises(MalformedFileError, match=f"{name} holds NaN"):
        hl.load(path)
    del tensors[f"plan.arrays.{name}"]
    write_file(path, tensors, file.metadata)
    with pytest.raises(MalformedFileError, match=f"{name} is missing"):
        hl.load(path)


def test_rules_are_the_papers() -> None:
    assert Rules() == (0.3, 0.1, 0.1, True, True, 1.0, 1.0, 0.0)
