"""The door to the native module: levels, threads, and the offline passes against their NumPy twins."""

from __future__ import annotations

import math
import platform
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from adversarial import CASES, DTYPES, build
from headlong import native
from headlong.dtypes import HIDDEN
from headlong.engines.reference.gumbel import gumbels
from headlong.errors import HeadlongError, KernelError, OptionError
from headlong.links import Table
from headlong.native import instruction_level
from headlong.native.planes import eight_bits
from headlong.plan import deinterleave


@pytest.fixture(params=native.levels()[1:])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADLONG_ISA", request.param)
    return str(request.param)


def test_levels_start_with_the_reference_and_the_best_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.levels()[:2] == ["numpy", "portable"]
    monkeypatch.delenv("HEADLONG_ISA", raising=False)
    assert native.isa() == native.levels()[-1]
    monkeypatch.setenv("HEADLONG_ISA", "portable")
    assert native.isa() == "portable"


def test_a_level_is_offered_where_the_processor_has_all_of_it() -> None:
    facts = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not facts.is_file():
        pytest.skip("what the processor has is read from /proc/cpuinfo of x86-64")
    flags = set(next(line for line in facts.read_text().splitlines() if line.startswith("flags")).split())
    avx2 = {"avx2", "avx", "fma", "f16c", "sse4_2", "popcnt"}
    avx512 = {*avx2, *(f"avx512{part}" for part in ("f", "bw", "dq", "vl", "_vnni"))}
    assert ("avx2" in native.levels()) == (avx2 <= flags)
    assert ("avx512vnni" in native.levels()) == (avx512 <= flags)


def test_a_level_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLONG_ISA", "avx1024")
    with pytest.raises(KernelError, match=r"'avx1024', which is not available here; choose from numpy, portable"):
        native.isa()


def test_without_the_native_module_nothing_falls_back_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_level, "module", lambda: None)
    monkeypatch.delenv("HEADLONG_ISA", raising=False)
    with pytest.raises(KernelError, match="HEADLONG_ISA=numpy for the slow reference"):
        native.isa()
    with pytest.raises(KernelError, match="pip install"):
        native.bandwidth(1 << 20, 1, 1)
    monkeypatch.setenv("HEADLONG_ISA", "numpy")
    assert native.isa() == "numpy" and native.levels() == ["numpy"]


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADLONG_THREADS", raising=False)
    assert native.threads() >= 1 and native.threads(3) == 3
    monkeypatch.setenv("HEADLONG_THREADS", "5")
    assert native.threads() == 5 and native.threads(2) == 2
    for wrong in ("0", "-1", "two", "1.5", "99999"):
        monkeypatch.setenv("HEADLONG_THREADS", wrong)
        with pytest.raises(OptionError, match="HEADLONG_THREADS is"):
            native.threads()
    for bad in (0, True, 1.0, "2"):
        with pytest.raises(OptionError, match="threads is"):
            native.threads(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_codes_agree_with_numpy(isa: str, name: str, dtype: str) -> None:
    weight = build(name, dtype).layer.weight
    expected, found = native.encode_rows(weight), native.encode_int8(weight, 2)
    for field in ("codes", "scale", "peak"):
        np.testing.assert_array_equal(getattr(found, field), getattr(expected, field), err_msg=field)
    for field in ("error", "size"):
        # sums may round differently in the last bit of float64, hence by one float32 step
        np.testing.assert_allclose(getattr(found, field), getattr(expected, field), rtol=2.0**-22, atol=3e-45, err_msg=field)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_norms_are_rounded_up(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = build(name, dtype).layer.weight
    exact = np.linalg.norm(weight.astype(np.float64), axis=1)
    for level in native.levels():
        monkeypatch.setenv("HEADLONG_ISA", level)
        norms = native.row_norms(weight, 2).astype(np.float64)
        assert (norms >= exact).all() and (norms <= exact * (1 + 2.0**-21) + 3e-45).all(), level


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_have_no_norm(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.ones((130, 9), np.float32)
    weight[77, 8] = wrong
    for level in native.levels():
        monkeypatch.setenv("HEADLONG_ISA", level)
        assert np.flatnonzero(np.isnan(native.row_norms(weight))).tolist() == [77], level


finite = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 70), st.integers(1, 9)),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


@given(finite)
def test_no_code_of_a_rounded_up_step_is_cut(weight: np.ndarray) -> None:
    most = np.abs(weight).max(axis=1)
    step = native.rows.int8_step(most).astype(np.float64)
    coded = step > 0
    assert (most.astype(np.float64) <= 127 * step)[coded].all() and (most[~coded] <= 128 * np.finfo(np.float32).tiny).all()
    below = np.nextafter(step[coded].astype(np.float32), np.float32(0)).astype(np.float64)
    assert (127 * below < most[coded]).all(), "and it is the least such step"


def test_both_encoders_have_one_step_and_one_rounding(isa: str) -> None:
    """Rows as they are, in float64, and planes of rotated rows, in float32: halves, in values that neither rounds."""
    rng = np.random.default_rng(0)
    weight = rng.integers(-254, 255, (64, 40)).astype(np.float32) / 2
    weight[:, 0] = 127.0
    weight *= 2.0 ** rng.integers(-60, 60, (64, 1)).astype(np.float32)
    rows, (planes, scale) = native.encode_int8(weight), eight_bits(weight)
    codes = deinterleave(rows.codes, 64)[:, :40]
    np.testing.assert_array_equal(codes, planes)
    np.testing.assert_array_equal(rows.scale[:64], scale)
    np.testing.assert_array_equal(codes.astype(np.int16) - 128, np.rint(weight / scale[:, None]))
    odd = rng.standard_normal((64, 40)).astype(np.float32)
    np.testing.assert_array_equal(native.encode_int8(odd).scale[:64], eight_bits(odd)[1])


@given(finite)
def test_what_codes_lost_is_never_understated(weight: np.ndarray) -> None:
    for codes in (native.encode_rows(weight), native.encode_int8(weight)):
        whole = deinterleave(codes.codes, len(weight))[:, : weight.shape[1]].astype(np.float64) - 128
        gap = np.abs(weight.astype(np.float64) - whole * codes.scale[: len(weight), None].astype(np.float64))
        assert np.abs(whole).max() <= 127
        rounding = 1 + 2.0**-50
        assert (np.sqrt((gap**2).sum(axis=1)) <= codes.error[: len(weight)].astype(np.float64) * rounding).all()
        assert (gap.max(axis=1) <= codes.peak[: len(weight)]).all()


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**31))
def test_native_noise_is_that_of_numpy(seed: int, row: int, draw: int, first: int) -> None:
    module = native.loaded()
    ids = np.arange(first, first + 9, dtype=np.int64)
    draws = range(draw, min(draw + 3, 2**31))
    expected = np.stack([gumbels(seed, row, each, ids) for each in draws])
    np.testing.assert_allclose(module.gumbels(seed, row, draw, len(draws), ids), expected, rtol=0, atol=1e-13)


@given(
    hnp.arrays(np.uint32, 70, elements=st.integers(0, 2**32 - 1) | st.integers(2**32 - 9000, 2**32 - 1) | st.integers(0, 9000))
)
def test_no_noise_is_above_what_its_high_word_allows(words: np.ndarray) -> None:
    """The largest noise of a word is that of the low word 2^32 - 1: its distance from one is that of both words inverted."""
    gap = ((2.0**32 - 1 - words) * 2.0**32 + 0.5) * 2.0**-64
    most = -np.log(-np.log1p(-np.minimum(gap, 1 - 2.0**-53)))
    for level in native.levels()[1:]:
        upper = native.loaded().most_keys(level, words).astype(np.float64)
        assert (upper >= most).all(), level
        usual = (words > 2**32 // 10) & (words < 2**32 - 2**12)
        assert (upper - most)[usual].max(initial=0) < 0.25, level


@given(
    est=hnp.arrays(np.float32, 70, elements=st.floats(-12, 12, width=32)),
    rad=hnp.arrays(np.float32, 70, elements=st.floats(0, 4, width=32)),
    slopes=st.lists(st.floats(0.0625, 8), min_size=2, max_size=12),
    beta=st.floats(0.5, 2),
)
def test_no_term_is_further_from_its_middle_than_its_gap(
    est: np.ndarray, rad: np.ndarray, slopes: list[float], beta: float
) -> None:
    """Of a table that bends either way: downwards may be farther. Gaps go by its own slopes, not by the steepest."""
    rises = np.array([slopes[0], *slopes, slopes[-1]], np.float32)
    values = np.cumsum([0.0, *rises[1:-1].astype(np.float64)]) / 2
    link = Table(-2.5, 0.5, values, float(rises[0]), float(rises[-1]))
    base = np.concatenate([[values[0] - rises[0] / 2], values]).astype(np.float32)
    z, r = est.astype(np.float64), rad.astype(np.float64)
    shift = float(np.float32(link(z).max() * beta))
    low, at, high = (np.exp(np.clip(link(ends) * beta - shift, -87, 80)) for ends in (z - r, z, z + r))
    slop = 2.0**-10  # float32 of exponents up to some hundreds
    for level in native.levels()[1:]:
        table = ("table", -2.5, 0.5, base, rises)
        middle, gap = native.loaded().gaps(level, est, rad, table, beta, shift, slop)
        np.testing.assert_allclose(middle, at, rtol=slop, atol=1e-37)
        far = np.maximum(high - middle, middle - low)
        assert (gap >= far * (1 - 2.0**-20) - slop * at - 1e-37).all(), level
        steep = at * np.expm1(np.minimum(rises.max() * r * beta, 100))
        assert (gap <= np.maximum(high - at, np.minimum(steep, at)) * (1 + slop) + slop * (high + at) + 1e-37).all(), level


@given(st.integers(0, 2**31), st.floats(-30, 8), st.floats(0.0, 5.0))
def test_what_bounds_classes_together(seed: int, edge: float, wide: float) -> None:
    """Within float32's roundings, and the bend of no class below what it is: ``q (e^r - 1 - r) / r²``."""
    rng = np.random.default_rng(seed)
    rad, other = (rng.random((2, 512)) * wide).astype(np.float32)
    mass = np.exp(rng.uniform(-100, 8, 512)).astype(np.float32) * (rng.random(512) < 0.9)
    mass, high = mass.astype(np.float32), (mass * np.exp(rad) * (1 + 2.0**-12)).astype(np.float32)
    bar = np.float32(np.exp(edge))
    q, r, b, up = (part[high < bar].astype(np.float64) for part in (mass, rad, other, high))
    there = q >= np.float32(1e-36)
    bent = (q * np.where(r < 1e-3, 0.5, (np.expm1(r) - r) / np.maximum(r, 1e-9) ** 2))[there].max(initial=0.0)
    sums = q[there].sum(), (q[there] ** 2).sum(), (q * b)[there].sum() + up[~there].sum(), (b[there] ** 2).sum()
    for level in native.levels()[1:]:
        found = native.loaded().below(level, mass, high, rad, other, bar)
        np.testing.assert_allclose(found[:4], sums, rtol=1e-5, atol=1e-37)
        assert bent * (1 - 1e-5) <= found[4] <= bent * 1.4 + 1e-37


def test_bandwidth_is_a_speed(isa: str) -> None:
    assert 0.01 < native.bandwidth(1 << 20, 1, 3) < 10_000


def test_every_refusal_is_one_of_ours() -> None:
    assert issubclass(KernelError, HeadlongError)


@pytest.mark.parametrize("dtype", [*HIDDEN, np.dtype(">f4")])
@pytest.mark.parametrize("odd", [None, np.nan, -np.inf])
def test_vectors_are_widened_and_measured_alike(dtype: np.dtype, odd: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    every = (rng.standard_normal((9, 14)) * 10.0 ** rng.integers(-9, 4, (9, 14))).astype(dtype)
    if odd is not None:
        every[6, 3] = odd
    for rows in (every, every[::2, 1::2], every[:, :0], every[:0], np.asfortranarray(every)):
        wide, largest = native.widened(rows)
        with monkeypatch.context() as without:
            without.delitem(sys.modules, "headlong._native")
            numpy, size = native.widened(rows)
        assert wide.dtype == np.float64 and wide.flags.c_contiguous
        np.testing.assert_array_equal(wide, numpy)
        finite = np.isfinite(numpy).all()
        assert math.isfinite(largest) == math.isfinite(size) == finite
        assert not finite or largest == size == np.abs(numpy).max(initial=0.0)


@pytest.mark.parametrize("level", native.levels())
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_a_few_vectors(monkeypatch: pytest.MonkeyPatch, level: str, dtype: str) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((333, 71)).astype(DTYPES[dtype])
    hidden = rng.standard_normal((5, 71))
    expected = hidden @ weight.astype(np.float64).T
    np.testing.assert_allclose(native.products(weight, hidden, 2), expected, rtol=1e-12, atol=1e-12)
