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

from adversarial import CASES, build
from headlong import native
from headlong.dtypes import HIDDEN
from headlong.engines.reference.gumbel import gumbels
from headlong.errors import KernelError, OptionError
from headlong.native import instruction_level, load_module
from layers import DTYPES


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


def test_without_the_native_module_nothing_falls_back_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (instruction_level, load_module):
        monkeypatch.setattr(file, "module", lambda: None)
    monkeypatch.delenv("HEADLONG_ISA", raising=False)
    with pytest.raises(KernelError, match="HEADLONG_ISA=numpy for the slow reference"):
        native.isa()
    with pytest.raises(KernelError, match="pip install"):
        native.gumbels(0, 0, range(1), np.arange(3))
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


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**31))
def test_native_noise_is_that_of_numpy(seed: int, row: int, draw: int, first: int) -> None:
    module = native.loaded()
    ids = np.arange(first, first + 9, dtype=np.int64)
    draws = range(draw, min(draw + 3, 2**31))
    expected = np.stack([gumbels(seed, row, each, ids) for each in draws])
    np.testing.assert_allclose(module.gumbels(seed, row, draw, len(draws), ids), expected, rtol=0, atol=1e-13)


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_a_few_vectors(level: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((333, 71)).astype(DTYPES[dtype])
    hidden = rng.standard_normal((5, 71))
    expected = hidden @ weight.astype(np.float64).T
    np.testing.assert_allclose(native.products(weight, hidden, 2), expected, rtol=1e-12, atol=1e-12)
