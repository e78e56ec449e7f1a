"""Codes of few bits: packed and unpacked alike, radii that hold for every query or at their rate over the rotation, and every
executor with the same answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from adversarial import CASES, DTYPES, build
from headlong import native
from headlong.engines.methods.cascade import Cascade
from headlong.errors import OptionError
from headlong.layers.matrix import Layer
from headlong.native.planes import few_bits
from headlong.plan import Dense, pack, row_bytes, unpack
from headlong.previews.few_bits import Planes, energy_of, filled, planes_of, planes_plan, sampled
from headlong.previews.int8 import mean_row
from headlong.previews.random_rotations import quantile, random_basis, tail
from headlong.previews.whitening import whiten
from oracle import truth
from plans import check_radii, decaying, state, strangers
from rates import check_rate

BITS = (1, 2, 3, 4, 8)


def flat(vocab: int, dim: int, seed: int = 0) -> tuple[Layer, np.ndarray]:
    rng = np.random.default_rng(seed)
    return Layer(rng.standard_normal((vocab, dim)).astype(np.float32)), rng.standard_normal((60, dim)).astype(np.float32)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 70), st.integers(0, 99))
def test_what_is_packed_comes_back(bits: int, count: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 2**bits, (3, count)).astype(np.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (3, row_bytes(count, bits))
    expected = codes.astype(int) - 128 if bits == 8 else 2 * codes.astype(int) - 2**bits + 1
    np.testing.assert_array_equal(unpack(packed, bits, count), expected)


@pytest.mark.parametrize(("bits", "loss"), [(1, 0.603), (2, 0.345), (4, 0.108)])
def test_codes_lose_what_the_best_step_for_a_gaussian_does(bits: int, loss: float) -> None:
    rows = np.random.default_rng(bits).standard_normal((200, 768)).astype(np.float32)
    codes, scale = few_bits(rows, bits, "gaussian", np.zeros(200, np.float32))
    gap = np.linalg.norm(rows - scale[:, None] * (2.0 * codes - 2**bits + 1), axis=1) / np.linalg.norm(rows, axis=1)
    assert abs(gap.mean() - loss) < 0.004


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [1, 2, 31, 65, 130])
def test_sure_radii_hold_for_every_query(bits: int, dim: int) -> None:
    layer, hidden = decaying(150, dim)
    basis = random_basis(dim, mean_row(layer.weight), 3)
    plan = planes_plan(layer, basis, Planes(((0, dim, planes_of(bits)),), 4 if bits < 8 else 0), Dense())
    rng = np.random.default_rng(dim)
    assert check_radii(layer, plan, np.concatenate([hidden[:8], strangers(dim, rng)])) > 3000


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_no_violation_on_adversarial_layers(name: str, dtype: str) -> None:
    case = build(name, dtype)
    dim = case.layer.dim
    for bits in (1, 3):
        basis = random_basis(dim, mean_row(case.layer.weight), 0)
        check_radii(case.layer, planes_plan(case.layer, basis, Planes(((0, dim, planes_of(bits)),)), Dense()), case.hidden)


@pytest.mark.parametrize("mean_bits", [0.4, 1.5, 3.3])
def test_bits_where_the_energy_is(mean_bits: float) -> None:
    """Groups fall from 8 bits to none, spend what was asked, and their radii hold."""
    layer, hidden = decaying(300, 200, 2.0)
    basis = whiten(layer.weight, hidden[:200].astype(np.float64))
    groups = filled(energy_of(sampled(layer, basis)), mean_bits)
    spent = [sum(bits) for _, _, bits in groups]
    assert spent == sorted(spent, reverse=True) and groups[0][0] == 0 and groups[-1][1] == 200
    assert abs(sum((stop - start) * sum(bits) for start, stop, bits in groups) / 200 - mean_bits) < 1.2
    for deeper in (0, 4, 6, 8):
        plan = planes_plan(layer, basis, Planes(groups, deeper), Dense())
        check_radii(layer, plan, np.concatenate([hidden[:8], strangers(200, np.random.default_rng(0))]))


@pytest.mark.parametrize(("rate", "dim", "e0"), [(1e-4, 768, 3.88), (1e-6, 768, 4.86), (2e-7, 768, 5.16), (1e-8, 768, 5.68),
                                                 (2e-7, 256, 5.08), (2e-7, 4096, 5.19)])  # fmt: skip
def test_the_tail_is_the_exact_one(rate: float, dim: int, e0: float) -> None:
    assert abs(quantile(dim - 1, rate) * math.sqrt(dim - 1) - e0) < 0.006
    assert tail(dim - 1, quantile(dim - 1, rate)) <= rate


def test_the_tail_in_few_dimensions() -> None:
    assert tail(3, 0.3) == pytest.approx(0.7), "Archimedes: uniform on the sphere"
    assert tail(2, 0.5) == pytest.approx(2 / 3) and tail(1, 0.5) == 1.0 and quantile(1, 0.1) == 1.0
    points = np.random.default_rng(0).standard_normal((200_000, 7))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    check_rate(int((np.abs(points[:, 0]) > quantile(7, 0.02)).sum()), 200_000, 0.0203)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_radii_over_the_rotation(bits: int) -> None:
    """300 independent rotations, 1e5 pairs and more: per pair and per query no more failures than the rate, and some."""
    layer, hidden = decaying(115, 24)
    exact = truth(layer, hidden[:3]).logits
    rate, rows, pairs, failed = 0.3, 0, 0, 0
    for seed in range(300):
        basis = random_basis(24, mean_row(layer.weight), seed)
        plan = planes_plan(layer, basis, Planes(((0, 24, planes_of(bits)),), 4, rate), Dense())
        for place, vector in enumerate(hidden[:3]):
            query = state(layer, plan, vector)
            query.look(np.arange(115))
            gap = np.abs(exact[place] - query.estimate)
            pairs += 115
            failed += int((gap > query.radius).sum())
            rows += int(place == 0 and (gap > query.radius).any())  # of one query: independent over the rotations
    assert pairs >= 100_000
    check_rate(rows, 300, rate)
    check_rate(failed, pairs, 1.2 * rate / 115)
    assert failed > 0.2 * pairs * rate / 115, "no wider than it has to be"


@pytest.mark.parametrize("level", native.levels())
@pytest.mark.parametrize(
    "options", [{"bits": 1}, {"bits": 2}, {"bits": 3}, {"bits": 4}, {"bits": 2.5}, {"bits": 8}]
)
def test_every_executor_answers_alike(monkeypatch: pytest.MonkeyPatch, level: str, options: dict[str, Any]) -> None:
    """Proved ids, exact logits, normalisers and samples, at every instruction set and batch size."""
    monkeypatch.setenv("HEADLONG_ISA", level)
    monkeypatch.setattr(Cascade, "deeper", options != {"bits": 8})
    layer, hidden = decaying(1300, 72, 2.0)
    count = 4 if level == native.REFERENCE else 40
    engine = hl.compile(layer, "cascade", eps=0.1, delta=0.0, threads=2, calibration=hidden[100:], **options)
    exact = truth(layer, hidden[:count])
    expected = np.argsort(-exact.logits, axis=1, kind="stable")[:, :5]
    for batch in (1, 3, count):
        found = engine.topk(hidden[:batch], 5)
        assert (found.ids == expected[:batch]).all() and found.proved.all()
        assert (np.abs(found.lse - exact.lse[:batch]) <= found.error).all() and (found.error <= 0.1).all()
    full = hl.compile(layer, "full", threads=2)
    assert (engine.sample(hidden[:count], 2, seed=5).ids == full.sample(hidden[:count], 2, seed=5).ids).all()


@pytest.mark.parametrize("level", native.levels()[1:])
@pytest.mark.parametrize("bits", BITS)
def test_native_estimates_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch, level: str, bits: int) -> None:
    """A budget's engine answers with the preview's own normaliser: native and NumPy read the same estimates."""
    monkeypatch.setenv("HEADLONG_ISA", level)
    layer, hidden = flat(400, 75)
    basis = random_basis(75, mean_row(layer.weight), 1)
    plan = planes_plan(layer, basis, Planes(((0, 75, planes_of(bits)),), 0), Dense(share=1.0))
    norms = native.row_norms(layer.weight)
    executor = native.executor(layer.weight, None, norms, layer.link.lowered(), plan._replace(budget=1), level)
    for vector in hidden[:6].astype(np.float64):
        query = state(layer, plan, vector.astype(np.float32))
        query.look(np.arange(400))
        estimate = query.estimate
        found = executor.topk(vector[None], 1, math.inf, None, False, 1)
        estimate[found[1][0, 0]] = found[0][0, 0]
        assert found[3][0] == pytest.approx(np.logaddexp.reduce(estimate), abs=2e-4)


def test_a_promise_over_the_rotation(tmp_path: Path) -> None:
    layer, hidden = flat(3000, 64)
    engine = hl.compile(layer, "cascade", eps=math.inf, delta_ids=0.05, threads=2, bits=2)
    assert engine.promise == hl.Promise(math.inf, 0.0, 0.05, frozenset({"rotation"}))
    exact = truth(layer, hidden)
    found = engine.topk(hidden, 5)
    assert (found.ids == np.argsort(-exact.logits, axis=1, kind="stable")[:, :5]).all()
    assert (found.proved == found.cost.dense).all()
    engine.save(tmp_path / "engine.safetensors")
    loaded = hl.load(tmp_path / "engine.safetensors")
    assert (loaded.topk(hidden, 5).ids == found.ids).all() and loaded.promise == engine.promise
    both = hl.compile(layer, "cascade", eps=0.05, delta=0.01, delta_ids=0.05, threads=2, bits=2)
    assert both.promise.over == {"rotation", "query"}
    assert (np.abs(both.lse(hidden[:20]).lse - exact.lse[:20]) <= 0.05).all()


def test_options_that_contradict() -> None:
    layer, _ = flat(100, 8)
    for options, match in (
        ({"bits": 9}, "bits is 9"),
        ({"few": False}, "cascade has no option 'few'; it has width, bits, rotation, blocks"),
    ):
        with pytest.raises(OptionError, match=match):
            hl.compile(layer, "cascade", delta_ids=0.1, eps=math.inf, **options)
    assert hl.compile(layer, "cascade", bits=2.5, delta_ids=0.1, eps=math.inf).promise.delta_ids == 0
    assert hl.compile(layer, "cascade", bits=2, over="rotation", delta_ids=0.1).promise == hl.Promise(0.01, 0.0, 0.0)
