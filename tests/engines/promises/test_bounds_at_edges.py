"""Bounds where numbers flush, saturate, tie or leave float32: each case beside float64, at every level.

What becomes 0 in float32 has to widen a bound: a mass of 0 with a wide radius is a wide gap, not none.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.plan import Segment
from headlong.randomness import stream
from made_layers import reader
from oracle import truth

pytestmark = pytest.mark.usefixtures("level")


def off(layer: hl.Layer, hidden: np.ndarray, found: hl.Lse, temperature: float = 1.0) -> np.ndarray:
    """How far normalisers are from those of float64, less what they say and the oracle's own rounding."""
    exponents = truth(layer, hidden).exponents / temperature
    top = exponents.max(axis=1)
    lse = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
    return np.abs(found.lse - lse) - found.error - 1e-12 * (1 + np.abs(exponents).max(axis=1))


def beside_a_rival(seed: int, scale: float = 1e6) -> tuple[hl.Layer, np.ndarray]:
    """Equal rows, one rival 50 nats above them whose radius is wide, and all others far below: logits reach ``scale``."""
    chance = np.random.default_rng(seed)
    base = chance.standard_normal(64)
    base /= np.linalg.norm(base)
    weight = chance.standard_normal((4096, 64)) * 0.3
    weight -= np.outer(weight @ base + 2, base)
    some = chance.permutation(4096)[:257]
    weight[some] = base
    own = chance.standard_normal(64)
    own -= (own @ base) * base
    weight[some[0]] = base * (1 + 50 / scale) + 3 * own / np.linalg.norm(own)
    return hl.Layer(weight.astype(np.float32)), (base * scale)[None]


def test_a_class_whose_mass_is_flushed_still_has_a_gap() -> None:
    for seed in range(100, 112):
        layer, hidden = beside_a_rival(seed)
        engine = hl.compile(layer, "codes", delta=0)
        assert (off(layer, hidden, engine.lse(hidden)) <= 0).all(), seed
        top = engine.topk(hidden, 2)
        assert (top.log_probs <= top.error).all(), seed
        found = engine.entropy(hidden)
        p = np.exp(truth(layer, hidden).log_probs)
        right = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
        assert (np.abs(found.entropy - right) <= found.error + 1e-6).all(), seed


@pytest.mark.parametrize("options", [{"segments": [[0, 128, 3], [128, 256, 2]]}, {"bits": 1}, {"bits": 2}, {"bits": 4}])
def test_calibration_has_no_part_in_what_is_proved(options: dict[str, object]) -> None:
    """Vectors of another scale choose a poor basis, never a wrong answer."""
    for seed in range(50, 53):
        chance = np.random.default_rng(seed)
        kinds = chance.standard_normal((35, 256))
        layer = hl.Layer(kinds[chance.integers(0, 35, 700)].astype(np.float16))
        hidden = (kinds[chance.integers(0, 35, 24)] * 66 / 256).astype(np.float32).astype(np.float64)
        far = 330 * kinds[0] / np.linalg.norm(kinds[0]) + 0.1 * chance.standard_normal((5, 256))
        engine = hl.compile(layer, "codes", delta=0, seed=seed, calibration=far, **options)
        assert (off(layer, hidden, engine.lse(hidden)) <= 0).all(), seed


@pytest.mark.parametrize("temperature", [1e-6, 1e-5, 1e-3, 1e3])
@pytest.mark.parametrize("kinds", [3, 8])
def test_draws_at_any_temperature_say_what_they_are(temperature: float, kinds: int) -> None:
    """Ties by the hundred: a temperature is a scale of logits."""
    for seed in range(4):
        chance = np.random.default_rng(seed)
        rows = np.eye(3)[:, :3] if kinds == 3 else chance.standard_normal((kinds, 3))
        layer = hl.Layer(np.tile(rows, (250, 1)).astype(np.float32))
        hidden = np.ones((2, 3)) * np.exp(chance.standard_normal((2, 1)))
        exponents = truth(layer, hidden).logits / temperature
        top = exponents.max(axis=1, keepdims=True)
        right = exponents - top - np.log(np.exp(exponents - top).sum(axis=1, keepdims=True))
        for filters in ({}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}):
            drawn = hl.compile(layer, "codes", seed=seed).sample(hidden, 3, temperature=temperature, seed=1, **filters)
            far = np.abs(drawn.log_probs - np.take_along_axis(right, drawn.ids, 1)).max(axis=1)
            assert (far <= drawn.error + 1e-12 * np.abs(exponents).max()).all(), (seed, filters)


def generators(seed: int) -> list[np.ndarray]:
    """A square of normal numbers from each of the commonest generators with this seed."""
    found = [np.random.default_rng(seed).standard_normal((256, 256)), np.random.RandomState(seed).standard_normal((256, 256))]
    torch = pytest.importorskip("torch")
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    found.append(torch.randn(256, 256, dtype=torch.float64).numpy())
    torch.random.set_rng_state(state)
    return found


def test_no_generator_of_a_callers_gives_our_rotation() -> None:
    """Rows and vectors that were turned by the orthogonal factor of somebody's first normal numbers."""
    fall = 1 / np.sqrt(1 + np.arange(256))
    for seed in range(2):
        for square in generators(seed):
            turn, triangle = np.linalg.qr(square)
            chance = np.random.default_rng(5)
            for turned in (turn, turn * np.where(np.diag(triangle) < 0, -1, 1)):
                rows, vectors = (chance.standard_normal((n, 256)) * fall @ turned.T for n in (2000, 60))
                layer = hl.Layer((rows / np.linalg.norm(rows, axis=1).mean()).astype(np.float32))
                hidden = 12 * vectors / np.linalg.norm(vectors, axis=1).mean()
                ids = hl.compile(layer, "codes", seed=seed).topk(hidden, 5).ids
                assert (ids == np.argsort(-truth(layer, hidden).logits, 1, kind="stable")[:, :5]).all(), seed


def test_two_purposes_never_share_a_stream() -> None:
    drawn = {
        (purpose, seed, fact): stream(purpose, seed, fact).integers(2**63)
        for purpose in ("rotation", "stand-ins")
        for seed in (0, 1)
        for fact in ("", "1")
    }
    drawn["joined"] = stream("rotation", 0, "1", "").integers(2**63)
    assert len(set(drawn.values())) == len(drawn)
    assert stream("rotation", 0).standard_normal() == stream("rotation", 0).standard_normal()


@pytest.mark.parametrize("kind", ["full", "codes", "blocks"])
@pytest.mark.parametrize("biases", ["none", "tiny", "zeros of both signs", "subnormal"])
def test_equal_logits_come_in_the_order_of_their_ids(kind: str, biases: str) -> None:
    """Equal after they were rounded once: rows that differ by a part of 1e-14, biases far below a logit's last digit."""
    options = {"blocks": True, "eps": math.inf} if kind == "blocks" else {}
    for seed in range(8):
        chance = np.random.default_rng(seed)
        weight = np.tile(chance.standard_normal((1, 4)), (96, 1)).astype(np.float32)
        sizes = {"none": None, "tiny": 1e-31, "zeros of both signs": 0.0, "subnormal": 1e-42}[biases]
        bias = None if sizes is None else (chance.standard_normal(96) * sizes).astype(np.float32)
        layer = hl.Layer(weight, bias)
        hidden = chance.standard_normal((2, 4))
        engine = hl.compile(layer, "full" if kind == "full" else "codes", delta=0, **options)
        for k in (5, 16, 17):
            assert engine.topk(hidden, k).ids.tolist() == [list(range(k))] * 2, (seed, k)


def test_nearly_equal_rows_are_ordered_by_their_rounded_logits() -> None:
    """A large common part, and differences of a few units of float64's last place of the logit."""
    for seed in range(8):
        chance = np.random.default_rng(seed)
        weight = np.zeros((80, 8), np.float32)
        weight[:, 0], weight[:, 1:] = 1.0, chance.standard_normal((80, 7)) * 1e-14
        hidden = np.concatenate([[1.0], chance.standard_normal(7) / 8])[None]
        layer = hl.Layer(weight)
        rows = [[Fraction(float(w)) * Fraction(float(h)) for w, h in zip(row, hidden[0], strict=True)] for row in weight]
        exact = np.array([float(sum(row)) for row in rows])
        right = np.lexsort((np.arange(80), -exact))
        engine = hl.compile(layer, "codes", delta=0)
        for k in (3, 16, 17):
            assert engine.topk(hidden, k).ids[0].tolist() == right[:k].tolist(), (seed, k)


@pytest.mark.parametrize("method", ["full", "codes"])
def test_exponents_beyond_float32_are_those_of_float64(method: str) -> None:
    weight = np.zeros((3, 1 if method == "full" else 2), np.float32)
    weight[:, 0] = 1.0, 1.5, 2.0
    hidden = np.full((1, weight.shape[1]), -1e25)
    engine = hl.compile(hl.Layer(weight, None, hl.Affine(1e14, 0.0)), method, delta=0)
    assert engine.lse(hidden).lse[0] == pytest.approx(-1e39)
    assert engine.topk(hidden, 1).ids.tolist() == [[0]]
    assert engine.topk(hidden, 1).log_probs[0, 0] <= 0
    for temperature in (1e-6, 1.0, 1e6):
        drawn = engine.sample(hidden, 2, seed=1, temperature=temperature)
        assert drawn.ids.tolist() == [[0, 0]]
        assert (np.abs(drawn.log_probs) <= drawn.error + 1e-9).all()


@pytest.mark.parametrize("size", [1e-11, 1e-10, 1e-5, 1.0, 1e5, 1e10])
@pytest.mark.parametrize("length", [1e-11, 1e-10, 1.0, 1e10])
def test_ids_at_any_scale(size: float, length: float) -> None:
    """Radii are roots of squares, which have to be scaled before float32 holds them."""
    chance = np.random.default_rng(0)
    layer = hl.Layer((chance.standard_normal((1000, 64)) * size).astype(np.float32))
    hidden = (chance.standard_normal((40, 64)) * length).astype(np.float32).astype(np.float64)
    right = np.argsort(-truth(layer, hidden).logits, 1, kind="stable")[:, :5]
    assert (hl.compile(layer, "codes").topk(hidden, 5, eps=math.inf).ids == right).all()


def test_radii_hold_at_any_scale_and_where_rows_differ_in_size(level: str) -> None:
    """Both radii of :mod:`csrc/codes/rotated.h` beside float64; the likely one at twelve standard deviations."""
    if level == native.REFERENCE:
        pytest.skip("the reference has no radii in float32")
    for seed, (size, length) in enumerate([(1e-11, 1e-11), (1e-9, 1e6), (1.0, 1.0), (1e10, 1e-8), (1e6, 1e5)]):
        chance = np.random.default_rng(seed)
        weight = chance.standard_normal((300, 96)) * size * 10.0 ** chance.integers(-9, 1, (300, 1))
        hidden = chance.standard_normal((3, 96)) * length * 10.0 ** chance.integers(-6, 1, (1, 96))
        layer = hl.Layer(weight.astype(np.float32))
        exact = hidden @ layer.weight.astype(np.float64).T
        codes, _, _ = reader(layer, (Segment(0, 32, 4), Segment(32, 96, 2)), level, seed)
        for kappa in (0.0, 12.0):
            est, radius = (part[:, :300].astype(np.float64) for part in codes.estimates(hidden, kappa, seed))
            assert (np.abs(est - exact) <= radius + 1e-7 * np.abs(est)).all(), (seed, kappa)
            assert (radius <= 40 * size * length * 96).all(), "and say something"


def test_one_class_one_dimension_and_zeros() -> None:
    """What has nothing to compare: lse is the logit, or the logarithm of how many there are."""
    for vocab, dim, method in ((1, 1, "full"), (1, 4, "codes"), (2, 2, "codes"), (65, 2, "codes"), (65, 1, "auto")):
        layer = hl.Layer(np.zeros((vocab, dim), np.float32))
        hidden = np.array([np.zeros(dim), np.full(dim, 5e-324), np.full(dim, -0.0), np.full(dim, 1e30)])
        engine = hl.compile(layer, method, delta=0)
        found = engine.topk(hidden, 1)
        assert found.ids.tolist() == [[0]] * 4
        assert (np.abs(engine.lse(hidden).lse - math.log(vocab)) <= engine.lse(hidden).error + 1e-12).all()
        assert (engine.sample(hidden, 4, seed=3).ids >= 0).all()


@pytest.mark.parametrize("kind", ["full", "codes"])
def test_filters_cut_equal_logits_by_their_ids(kind: str) -> None:
    """Rows that are permutations of one another tie, whichever way their sums were rounded, also where every logit is read."""
    chance = np.random.default_rng(3)
    row = chance.standard_normal(24).astype(np.float32)
    layer = hl.Layer(np.stack([chance.permutation(row) for _ in range(200)]))
    engine = hl.compile(layer, kind)
    for k in (20, 101):
        drawn = engine.sample(np.ones((1, 24)), 300, seed=1, top_k=k)
        assert drawn.ids.max() < k, k


def test_a_draw_ends_where_exponents_have_no_numbers(level: str) -> None:
    """A scale that leaves float64: some class that is there, and no loop."""
    if level == native.REFERENCE:
        pytest.skip("the reference has no rounds of questions")
    layer = hl.Layer(np.full((70, 4), 1e3, np.float32), None, hl.Affine(1e300, 0.0))
    for filters in ({"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 5}, {}):
        with np.errstate(all="ignore"):
            drawn = hl.compile(layer, "codes").sample(np.full((1, 4), 100.0), temperature=1e-6, seed=1, eps=math.inf, **filters)
        assert (drawn.ids < 70).all()
