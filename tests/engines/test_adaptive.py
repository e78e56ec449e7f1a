"""AdaptiveSoftmax: held against a plain statement of it; its constants; every level; its options."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import headlong as hl
from headlong import native
from headlong.engines.base import Engine
from headlong.engines.methods.adaptive import Reader, Rules, fitted, keys_of, normaliser_eps
from headlong.engines.reference.gumbel import gumbels
from headlong.errors import NonFiniteError, OptionError
from oracle import truth
from thinned import ENDS

EPS = math.log(1.3)
Doubles = NDArray[np.float64]


def longer(m: int) -> int:
    """16, 24, 36, 54, 81, 122, 183, 274, ...: 16 * 1.5^i, rounded up only where it is read."""
    return next(size for i in range(60) if (size := math.ceil(16 * 1.5**i)) > m)


@pytest.fixture
def layer(rng: np.random.Generator) -> hl.Layer:
    weight = rng.standard_normal((400, 96)) * np.linspace(2, 0.1, 96)
    return hl.Layer(weight.astype(np.float32), rng.standard_normal(400).astype(np.float32))


@pytest.fixture
def hidden(rng: np.random.Generator) -> NDArray[np.float32]:
    return rng.standard_normal((12, 96)).astype(np.float32)


def compiled(layer: hl.Layer, **options: object) -> Engine:
    return hl.compile(layer, method="adaptive", eps=EPS, delta=0.1, threads=1, **options)


def reader_of(engine: Engine) -> Reader:
    assert isinstance(engine.reader, Reader)
    return engine.reader


# ---- the authors' steps ----


class Case(NamedTuple):
    """One query of a small layer; ``width``: the variance bound, a quarter of which the race tries first."""

    weight: Doubles
    x: Doubles
    shares: list[float]
    keys: list[float]
    ids: list[int]
    width: float
    rules: Rules


class Stated(NamedTuple):
    """``looks``: the prefix lengths and classes of warm-up, race and winner, in order; then what is left of every class."""

    looks: list[tuple[int, tuple[int, ...]]]
    winner: int
    pulls: list[int]
    estimates: list[float]
    lse: float


def authors(case: Case) -> Stated:
    """The algorithm as its authors' code runs it, one number at a time: warm-up, best arm, exact value, normaliser."""
    vocab, size, eps = len(case.weight), len(case.ids), case.rules.eps
    stage = case.rules.delta / 2
    log_classes = math.log(6 * vocab / stage)
    est, var, read = [0.0] * vocab, [math.inf] * vocab, [0] * vocab
    looks: list[tuple[int, tuple[int, ...]]] = []

    def look(i: int, m: int) -> None:
        est[i] = var[i] = 0.0
        for place in range(m):
            q = 1 - math.exp(-math.exp(case.shares[place] - case.keys[m])) if m < size else 1.0
            term = float(case.weight[i, case.ids[place]]) * float(case.x[case.ids[place]])
            est[i] += term / q
            var[i] += term * term * (1 - q) / q**2
        read[i] = m

    def grow(classes: list[int], target: float, multiplier: float, cap: int) -> None:
        m = max(read[i] for i in classes)
        while m < cap and multiplier * max(var[i] for i in classes) > target:
            m = min(cap, longer(m))
            looks.append((m, tuple(classes)))
            for i in classes:
                look(i, m)

    grow(list(range(vocab)), 1 / (17 * log_classes), case.rules.sum, math.floor(case.rules.warm * size))
    survivors, target = list(range(vocab)), case.width / 4
    while len(survivors) > 1:
        grow(survivors, target, case.rules.arm, size)
        ci = {i: math.sqrt(2 * case.rules.arm * var[i] * math.log(6 * vocab * math.log(size) / stage)) for i in survivors}
        best = max(survivors, key=lambda i: est[i])
        keep = [i for i in survivors if est[i] + ci[i] >= est[best] - ci[best]]
        if len(keep) <= 1:
            break
        survivors, target = keep, target / 2
    winner = max(survivors, key=lambda i: est[i])
    est[winner], var[winner], read[winner] = float(case.weight[winner] @ case.x), 0.0, size

    low = [est[i] - math.sqrt(2 * log_classes * case.rules.sum * var[i]) for i in range(vocab)]
    alpha, gamma = [math.exp(value) for value in low], [math.exp(value / 2) for value in low]
    c1 = 16 * math.sqrt(2) * log_classes / eps * sum(gamma) ** 2 / sum(alpha)
    c2 = 16 * math.log(12 / stage) / eps**2
    for i in range(vocab):
        wanted = min(sum(gamma) / (c1 * gamma[i]), sum(alpha) / (c2 * alpha[i]))
        while read[i] < size and case.rules.sum * var[i] > wanted:
            look(i, min(size, longer(int(read[i]))))
    return Stated(looks, winner, read, est, math.log(sum(math.exp(value) for value in est)))


def layer_of(seed: int, vocab: int = 40, dim: int = 300) -> tuple[hl.Layer, Doubles]:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((vocab, dim)) * np.linspace(1.5, 0.2, dim) / math.sqrt(dim)
    x = rng.standard_normal(dim) + 4 * weight[seed % vocab]
    return hl.Layer(weight.astype(np.float32)), x.astype(np.float32).astype(np.float64)


def case_of(seed: int, rules: Rules) -> Case:
    layer, x = layer_of(seed)
    weight = np.asarray(layer.weight, np.float64)
    heavy = np.abs(weight).sum(axis=0) * np.abs(x)
    shares = np.log(heavy / heavy.sum())
    keys = shares + gumbels(0, int(keys_of(x[None])[0]), 0, np.arange(len(x)))
    order = np.argsort(-keys)
    return Case(weight, x, shares[order].tolist(), keys[order].tolist(), order.tolist(), 40.0, rules)


def test_the_cases_tell_the_authors_order_from_others() -> None:
    """Every stage has something to do in them: a race that goes on behind the warm-up, and classes that are refined."""
    raced = refined = 0
    for seed in range(5):
        case = case_of(seed, Rules(published=True, arm=0.05, sum=0.02))
        stated = authors(case)
        first, *later = stated.looks
        assert first[0] == 16 and len(first[1]) == len(case.weight)
        raced += any(len(classes) < len(case.weight) for _, classes in later)
        refined += max(stated.pulls[i] for i in range(len(case.weight)) if i != stated.winner) > max(m for m, _ in stated.looks)
    assert raced >= 2 and refined >= 1


@ENDS
def test_an_engine_is_the_authors_algorithm(level: str) -> None:
    """From the layer to the answer: column weights, the variance bound, the order; natively in float32."""
    for seed in range(5):
        layer, x = layer_of(seed)
        reader = reader_of(compiled(layer, published=True, arm=0.05, sum=0.02))
        _, ids, lse, pulls, _, _, estimates = reader.search(x[None], 1, None, 1, estimates=True)
        width = float(reader.arrays["spread"][0]) * float(np.abs(x).sum()) ** 2
        stated = authors(case_of(seed, reader.rules)._replace(width=width))
        assert ids[0, 0] == stated.winner
        assert pulls[0] == sum(stated.pulls)
        np.testing.assert_allclose(estimates[0], stated.estimates, atol=1e-4)
        assert lse[0] == pytest.approx(stated.lse, abs=1e-4)


# ---- every level, and what is asked for ----


@pytest.mark.parametrize("level", native.levels()[2:])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_level_and_type_of_weights_is_read_alike(
    layer: hl.Layer, hidden: NDArray[np.float32], dtype: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among them blocks of 16 classes of which none takes part, and groups of 64 that are not full."""
    part = hl.Layer(layer.weight.astype(dtype), layer.bias)
    mask = (np.arange(400) % 7 > 2) & ((np.arange(400) < 100) | (np.arange(400) >= 150))
    found = {}
    for name in (level, "portable"):
        monkeypatch.setenv("HEADLONG_ISA", name)
        reader = reader_of(compiled(part, sum=0.2, arm=0.2))
        found[name] = reader.search(hidden.astype(np.float64), 2, mask[None].astype(np.uint8), 1)
    ours, slow = found[level], found["portable"]
    assert (ours.ids == slow.ids).mean() > 0.95
    assert np.abs(ours.pulls - slow.pulls).max() <= 0.02 * slow.pulls.max()
    np.testing.assert_allclose(ours.lse, slow.lse, atol=0.02)


def test_a_full_warm_up_with_strict_multipliers_is_exact(layer: hl.Layer, hidden: NDArray[np.float32]) -> None:
    engine = compiled(layer, warm=1.0, arm=1e6, sum=1e6)
    found, exact = engine.topk(hidden, 1), truth(layer, hidden)
    assert (found.ids[:, 0] == exact.logits.argmax(axis=1)).all()
    np.testing.assert_allclose(found.lse, exact.lse, atol=1e-4)
    searched = reader_of(engine).search(hidden.astype(np.float64), 1, None, 1)
    assert (searched.pulls == searched.full).all()  # every class was read in full
    assert engine.promise.delta == 1 and not found.proved.any() and np.isinf(found.error).all()


def test_it_counts_fewer_entries_than_a_full_read(rng: np.random.Generator) -> None:
    weight = rng.standard_normal((50, 4096)).astype(np.float32) / 64
    spread = hl.Layer(weight)
    hidden = weight[:4] * 8 + rng.standard_normal((4, 4096)).astype(np.float32) * 0.1
    engine = compiled(spread)
    _, ids, _, pulls, full, rows, _ = reader_of(engine).search(hidden.astype(np.float64), 1, None, 1)
    assert (ids[:, 0] == np.arange(4)).all()
    assert (rows == 1).all() and (full == 50 * 4096).all()
    assert (pulls < full / 2).all()
    assert (engine.topk(hidden, 1).cost.bytes == 4 * pulls).all(), "each entry once, four bytes each"


def test_the_smallest_multiplier_is_found() -> None:
    needs = 10.0 ** np.linspace(-3, -1, 21)
    asked: list[int] = []

    def failing(f: float, rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        return np.asarray(needs[rows] > f)

    assert fitted(failing, 21, 3) == pytest.approx(needs[-4], rel=0.03), "three of them fail there"
    assert sum(asked) < 4 * 21, "those that are sure are not asked again"
    assert fitted(lambda f, rows: np.ones(len(rows), bool), 9, 3) == 1.0
    assert fitted(lambda f, rows: np.zeros(len(rows), bool), 9, 3) == 1e-6


def test_multipliers_are_fitted_on_calibration_vectors(layer: hl.Layer, rng: np.random.Generator) -> None:
    engine = compiled(layer, calibration=rng.standard_normal((60, 96)))
    arm, total = engine.plan.arrays["multipliers"] if engine.plan.arrays else (0, 0)
    assert 1e-6 <= arm <= 1 and 1e-6 <= total <= 1
    assert compiled(layer, calibration=rng.standard_normal((60, 96)), arm=0.5, sum=0.25).plan.arrays["multipliers"][1] == 0.25


@ENDS
def test_nothing_to_search(
    layer: hl.Layer, hidden: NDArray[np.float32], level: str
) -> None:
    """No queries, no classes that may be answered, a hidden vector of zeros."""
    engine = compiled(layer)
    assert engine.topk(hidden[:0], 2).ids.shape == (0, 2)
    none = engine.topk(hidden[:2], 2, allowed=np.empty(0, int))
    assert (none.ids == -1).all() and np.isneginf(none.log_probs).all() and np.isneginf(none.lse).all()
    with pytest.raises(NonFiniteError, match="too long for sums in float32"):
        engine.topk(1e30 * hidden[:1], 1)
    zero = engine.topk(np.zeros_like(hidden[:1]), 1)
    assert layer.bias is not None
    assert zero.ids[0, 0] == layer.bias.argmax()
    np.testing.assert_allclose(zero.lse, truth(layer, np.zeros_like(hidden[:1])).lse, atol=1e-5)


@ENDS
def test_a_race_of_ties_ends(level: str) -> None:
    """Two rows of zeros are the best, and no further read tells them apart."""
    weight = np.zeros((70, 96), np.float32)
    weight[2:] = -1
    found = compiled(hl.Layer(weight)).topk(np.ones((2, 96)), 1)
    assert (found.ids == 0).all() and (found.logits == 0).all()


def test_samples_and_masks(layer: hl.Layer, hidden: NDArray[np.float32]) -> None:
    engine = compiled(layer)
    drawn = engine.sample(hidden, 4, seed=1, top_p=0.9, exclude=np.arange(0, 400, 2))
    assert (drawn.ids % 2 == 1).all() and not drawn.proved.any()
    assert (engine.topk(hidden, 2, exclude=np.arange(0, 400, 2)).ids % 2 == 1).all()


def test_it_knows_temperatures_only(rng: np.random.Generator, hidden: NDArray[np.float32]) -> None:
    weight = rng.standard_normal((40, 96)).astype(np.float32)
    with pytest.raises(OptionError, match="temperatures only"):
        compiled(hl.Layer(weight, link=hl.SoftCap(5.0)))
    engine = compiled(hl.Layer(weight, link=hl.Affine(0.5, 1.0)), warm=1.0, arm=1e6, sum=1e6)
    exact = truth(engine.layer, hidden)
    found = engine.topk(hidden, 1)
    np.testing.assert_allclose(found.logits[:, 0], exact.logits.max(axis=1), rtol=1e-6)
    np.testing.assert_allclose(found.lse, exact.lse, atol=1e-4)


@ENDS
def test_the_k_best_are_found_by_sound_constants_alone(level: str) -> None:
    """One class far ahead: as published nobody else is told apart from it."""
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((300, 512)).astype(np.float32) / 20
    hidden = rng.standard_normal((20, 512)) + 40 * weight[0]
    layer, right = hl.Layer(weight), {}
    exact = np.sort(hidden @ weight.T.astype(np.float64), axis=1)[:, ::-1]
    for published in (False, True):
        found = compiled(layer, published=published).topk(hidden, 5)
        right[published] = (np.abs(found.logits - exact[:, :5]) < 1e-4).all(axis=1).mean()
    assert right[False] == 1.0 and right[True] < 0.9


def test_probabilities_are_within_eps_on_both_sides(rng: np.random.Generator) -> None:
    """Z within eps' = eps / (1 + eps) keeps p within 1 - eps and 1 + eps, which eps itself does not."""
    sound, published = Rules(eps=0.3), Rules(eps=0.3, published=True)
    assert 1 / (1 - normaliser_eps(sound)) == pytest.approx(1.3)
    assert 1 / (1 - normaliser_eps(published)) > 1.4
    layer, hidden = hl.Layer(rng.standard_normal((500, 64)).astype(np.float32) / 4), rng.standard_normal((200, 64))
    found, exact = compiled(layer).topk(hidden, 1), truth(layer, hidden)
    assert (np.abs(np.expm1(exact.lse - found.lse)) <= 0.3).mean() >= 0.9
    assert compiled(layer, published=True).topk(hidden, 1).cost.bytes.mean() < found.cost.bytes.mean()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delta": 0.0}, "0 < delta < 1"), ({"eps": math.inf}, "finite eps"), ({"delta": 1.5}, "delta"),
        ({"warm": 0.0}, "warm"), ({"arm": 0.0}, "arm"), ({"widths": "sure"}, "adaptive has no option 'widths'"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(layer: hl.Layer, options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        hl.compile(layer, method="adaptive", **options)


def test_a_damaged_estimate_is_drawn_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was not verified may hold numbers that are none; the draw is then some class, and no foreign exception."""
    layer = hl.Layer(np.random.default_rng(0).standard_normal((50, 16)).astype(np.float32))
    search = Reader.search

    def damaged(self: Reader, *args: object, **more: object) -> native.FoundByCoordinates:
        found = search(self, *args, **more)  # type: ignore[arg-type]
        return found._replace(estimates=np.full_like(found.estimates, np.nan))

    monkeypatch.setattr(Reader, "search", damaged)
    draw = hl.compile(layer, "adaptive").sample(np.ones((2, 16)), 3, top_p=0.9, seed=1)
    assert ((draw.ids >= 0) & (draw.ids < 50)).all()
