"""Rotated codes: what is read, how far off it can be, and that answers are the layer's own."""

from __future__ import annotations

import importlib.util
import itertools
import math
import platform
import shutil
import subprocess

import numpy as np
import pytest

import headlong as hl
from coded import SEGMENTS, awkward, gaussian, reader
from headlong import native
from headlong.encode.basis import basis_for
from headlong.encode.segments import by_water_filling
from headlong.encode.tiles import STEP, codes_of, packed, quantised, shared
from headlong.engines.promise_failures import limits
from headlong.engines.reference.codes import kappa_of, unpacked
from headlong.plan import CODE_BITS, Segment

LEVELS = [level for level in native.levels() if level != native.REFERENCE]


def truth(layer: hl.Layer, hidden: np.ndarray) -> np.ndarray:
    logits = hidden @ layer.weight.astype(np.float64).T
    return logits if layer.bias is None else logits + layer.bias


def lse_of(logits: np.ndarray) -> np.ndarray:
    top = logits.max(axis=1)
    return top + np.log(np.exp(logits - top[:, None]).sum(axis=1))


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
    exact = truth(layer, hidden)
    for seed in range(6):
        native_reader, _, _ = reader(layer, (Segment(0, 64, bits),), native.levels()[-1], seed)
        for kappa in (0.0, kappa_of(2.0 * exact.size, 1e-6)):
            est, radius = (part[:, : layer.vocab].astype(np.float64) for part in native_reader.estimates(hidden, kappa, seed))
            assert (np.abs(est - exact) <= radius + 2e-6 * np.abs(exact)).all(), (name, seed, kappa)


def test_errors_are_as_large_as_sigma_says() -> None:
    layer, hidden = gaussian(2000, 96, 4, steep=3.0)
    exact, shares = truth(layer, hidden), []
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
    largest = 2 * 2 * 64 * 4 + 64 * 4 + 2 * 64 * 4  # behind codes, scales, bases and shares
    tiles[:, largest : largest + 4] = (tiles[:, largest : largest + 4].copy().view(np.float32) / 8).view(np.uint8)
    _, _, rows = reader(layer, (Segment(0, 64, 2),), native.levels()[-1])
    est, radius = native.code_reader(rows, codes._replace(tiles=tiles), native.levels()[-1]).estimates(hidden, 5.0, 0)
    assert (np.abs(est[:, :600] - truth(layer, hidden)) > radius[:, :600]).any()


def test_codes_of_a_row_depend_on_that_row_alone() -> None:
    rng = np.random.default_rng(6)
    v = rng.standard_normal((8, 40)).astype(np.float32)
    other = v.copy()
    other[1:] *= rng.uniform(0.01, 100, (7, 1)).astype(np.float32)
    for bits in CODE_BITS:
        for mine, theirs in zip(quantised(v, bits), quantised(other, bits), strict=True):
            np.testing.assert_array_equal(mine[0], theirs[0])


@pytest.mark.parametrize("bits", CODE_BITS)
def test_native_coding_is_the_statement_in_numpy(bits: int) -> None:
    v = np.random.default_rng(bits).standard_normal((150, 45)).astype(np.float32)
    v[3], v[7] = 0, v[7] * np.float32(1e-6)
    u, scale, error, length = quantised(v, bits)
    tiles = np.full((3, 7 + 2 * bits * 256), 9, np.uint8)
    mine = native.code_tiles(v, bits, STEP[bits] / 2, int(bits == 8), tiles, 7, 2)
    codes = packed(u, bits).reshape(3, -1)
    np.testing.assert_array_equal(tiles[:2, 7:], codes[:2])
    assert (tiles[:, :7] == 9).all()
    for ours, theirs in zip(mine, (scale, error, length), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=3e-4, atol=1e-12)


def test_scaled_codes_are_off_at_a_right_angle() -> None:
    v = np.random.default_rng(7).standard_normal((50, 48)).astype(np.float32)
    for bits in CODE_BITS:
        u, scale, error, length = quantised(v, bits)
        q = 2.0 * u - (2**bits - 1)
        e = scale[:, None] * q - v
        assert np.abs((e * v).sum(axis=1)).max() < 1e-4 * np.abs(v).max() ** 2 * 48
        assert (np.linalg.norm(e, axis=1) <= error).all()
        np.testing.assert_allclose(length, np.linalg.norm(q, axis=1), rtol=1e-5)
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
    exact = truth(layer, hidden)
    order, lse = np.argsort(-exact, axis=1, kind="stable"), lse_of(exact)
    for k in (1, 10, 300):
        top = engine.topk(hidden, k)
        np.testing.assert_array_equal(top.ids, order[:, :k])
        assert (np.abs(top.lse - lse) <= np.minimum(top.error, 0.01) + 1e-9).all()
        assert (top.proved >= (delta == 0)).all()
    assert (np.abs(engine.lse(hidden).lse - lse) <= 0.01).all()
    ids = engine.topk(hidden, 5, eps=math.inf)
    assert (np.isinf(ids.error) != ids.cost.dense).all()


@pytest.mark.parametrize("delta", [0.1, 0.01])
def test_ids_fail_no_more_often_than_promised(delta: float) -> None:
    """Over rotations; near ties all around, so that whatever can be lost is lost as often as it may be."""
    rng = np.random.default_rng(11)
    weight, failed, asked = rng.standard_normal((3000, 32)).astype(np.float32), 0, 0
    hidden = rng.standard_normal((8, 32))
    layer = hl.Layer(weight)
    best = np.argsort(-truth(layer, hidden), axis=1, kind="stable")[:, :10]
    for seed in range(80):
        native_reader, _, _ = reader(layer, (Segment(0, 32, 1),), native.levels()[-1], seed)
        ids = native_reader.topk(hidden, 10, math.inf, None, 1, delta, seed)[1]
        failed += int((ids != best).any(axis=1).sum())
        asked += len(hidden)
    assert limits(failed, asked)[0] <= delta


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="counts one processor's instructions")
def test_the_built_scans_still_ask_for_codes_ahead() -> None:
    """A compiler may drop calls of functions that only prefetch: the answers stay, and the time goes."""
    objdump, module = shutil.which("objdump"), importlib.util.find_spec("headlong._native")
    if objdump is None or module is None or module.origin is None:
        pytest.skip("objdump, or the built module, is not here")
    said = subprocess.run([objdump, "-d", "--no-show-raw-insn", module.origin], capture_output=True, text=True, check=True)
    assert said.stdout.count("prefetcht1") > 100, "those of rows alone are a handful"
