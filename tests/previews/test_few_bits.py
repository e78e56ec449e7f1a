"""Codes of few bits: packed and unpacked alike, radii that hold for every query, and every executor with the same answers."""

from __future__ import annotations

import math
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
from headlong.previews.few_bits import Planes, energy_of, filled, planes_plan, sampled
from headlong.previews.whitening import whiten
from oracle import truth
from plans import check_radii, decaying, state, strangers

BITS = (1, 2, 4, 8)


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
def test_radii_hold_for_every_query(bits: int, dim: int) -> None:
    layer, hidden = decaying(150, dim)
    basis = whiten(layer.weight, hidden.astype(np.float64))
    plan = planes_plan(layer, basis, Planes(((0, dim, (bits,)),), 6 if bits < 8 else 0), Dense())
    rng = np.random.default_rng(dim)
    assert check_radii(layer, plan, np.concatenate([hidden[:8], strangers(dim, rng)])) > 3000


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_no_violation_on_adversarial_layers(name: str, dtype: str) -> None:
    case = build(name, dtype)
    dim = case.layer.dim
    basis = whiten(case.layer.weight, np.zeros((1, dim)))
    for bits in (1, 4):
        check_radii(case.layer, planes_plan(case.layer, basis, Planes(((0, dim, (bits,)),)), Dense()), case.hidden)


@pytest.mark.parametrize("mean_bits", [0.4, 1.5, 3.3])
def test_bits_where_the_energy_is(mean_bits: float) -> None:
    """Groups fall from 8 bits to none, spend what was asked, and their radii hold."""
    layer, hidden = decaying(300, 200, 2.0)
    basis = whiten(layer.weight, hidden[:200].astype(np.float64))
    groups = filled(energy_of(sampled(layer, basis)), mean_bits)
    spent = [sum(bits) for _, _, bits in groups]
    assert spent == sorted(spent, reverse=True) and groups[0][0] == 0 and groups[-1][1] == 200
    assert abs(sum((stop - start) * sum(bits) for start, stop, bits in groups) / 200 - mean_bits) < 1.2
    for deeper in (0, 6):
        plan = planes_plan(layer, basis, Planes(groups, deeper), Dense())
        check_radii(layer, plan, np.concatenate([hidden[:8], strangers(200, np.random.default_rng(0))]))


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
    basis = whiten(layer.weight, hidden.astype(np.float64))
    plan = planes_plan(layer, basis, Planes(((0, 75, (bits,)),), 0), Dense(share=1.0))
    norms = native.row_norms(layer.weight)
    executor = native.executor(layer.weight, None, norms, layer.link.lowered(), plan._replace(budget=1), level)
    for vector in hidden[:6].astype(np.float64):
        query = state(layer, plan, vector.astype(np.float32))
        query.look(np.arange(400))
        estimate = query.estimate
        found = executor.topk(vector[None], 1, math.inf, None, False, 1)
        estimate[found[1][0, 0]] = found[0][0, 0]
        assert found[3][0] == pytest.approx(np.logaddexp.reduce(estimate), abs=2e-4)


def test_options_that_contradict() -> None:
    layer, _ = flat(100, 8)
    for options, match in (
        ({"bits": 9}, "bits is 9"),
        ({"few": False}, "cascade has no option 'few'; it has width, bits, blocks"),
    ):
        with pytest.raises(OptionError, match=match):
            hl.compile(layer, "cascade", **options)
    assert hl.compile(layer, "cascade", bits=2.5, delta=0.1).promise == hl.Promise(0.01, 0.1, 0.0)
