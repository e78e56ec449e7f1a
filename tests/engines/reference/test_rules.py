"""Rules that are stated once in each language: NumPy, torch and C++ against each other and against a plain loop."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import headlong as hl
from headlong import native, plan
from headlong.engines.reference import nucleus, query
from headlong.links.base import FORMS

MASSES = hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(1e-6, 1.0)).map(lambda mass: np.sort(mass)[::-1].copy())
VECTORS = hnp.arrays(np.float64, st.integers(1, 70), elements=st.floats(-1e6, 1e6).map(lambda x: x if abs(x) > 1e-6 else 0.0))


def counted(mass: np.ndarray, top_p: float) -> int:
    """As the definition has it, one class after the other."""
    return sum(math.fsum(mass[:i]) < top_p * math.fsum(mass) for i in range(len(mass)))


def on_an_edge(mass: np.ndarray, top_p: float) -> bool:
    """Whether roundings may decide about a class."""
    before = np.concatenate([[0.0], np.cumsum(mass)])
    return bool((np.abs(before - top_p * mass.sum()) < 1e-9 * mass.sum()).any())


@given(MASSES, st.floats(1e-3, 0.999))
def test_a_nucleus_has_one_size(mass: np.ndarray, top_p: float) -> None:
    if on_an_edge(mass, top_p):
        return
    size = counted(mass, top_p)
    assert nucleus.nucleus_size(mass, top_p) == size
    assert nucleus.nucleus_size(mass, top_p, float(mass.sum())) == size


@pytest.mark.parametrize("level", native.levels())
@pytest.mark.parametrize("top_p", [0.1, 0.45, 0.83, 0.99])
def test_native_draws_come_from_that_nucleus(level: str, top_p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    mass = np.array([0.3, 0.2, 0.13, 0.11, 0.08, 0.07, 0.05, 0.03, 0.02, 0.01])
    layer = hl.Layer(np.log(mass).astype(np.float32)[:, None])
    ids = hl.compile(layer, "full").sample(np.ones((1, 1)), n=2000, top_p=top_p, seed=3).ids
    assert set(ids.ravel().tolist()) == set(range(nucleus.nucleus_size(mass, top_p)))


def module() -> Any:
    return pytest.importorskip("headlong._native", reason="the native module is not built")


@given(VECTORS)
@example(np.array([32512.0, 0.5, 1.5, -2.5, 127.5]))  # steps of one, and halves of them
def test_two_planes_are_the_same_numbers(x: np.ndarray) -> None:
    ours = query.two_planes(x)
    made, step = module().two_planes(x)
    np.testing.assert_array_equal(made, ours)
    assert np.abs(ours).max() <= plan.PLANES * step


@given(VECTORS)
@example(np.repeat([1000.0, 1e-3], [40, 160]))  # forty peaks would be best; so many are not tried
@example(np.repeat([1000.0, 1e-3], [20, 180]))
@example(np.repeat([1000.0, 1e-3], [2, 5]))
def test_peaks_are_split_alike(x: np.ndarray) -> None:
    ours, wide = query.split_peaks(x), math.sqrt(len(x) / 3)
    sizes = np.sort(np.abs(x))[::-1]
    most = min(plan.MOST_PEAKS, math.ceil(len(x) / 4))
    allowed = [(math.fsum(sizes[:m]), math.sqrt(math.fsum(sizes[m:] ** 2))) for m in range(most + 1)]
    least = min(peaks + wide * rest for peaks, rest in allowed)
    for peaks, rest in (ours, module().split_peaks(x)):
        assert peaks + wide * rest == pytest.approx(least, rel=1e-12)
        assert any(peaks == pytest.approx(p, rel=1e-12) and rest == pytest.approx(r, rel=1e-12) for p, r in allowed)


def native_names(file: str, name: str) -> list[str]:
    """A list of names in a C++ header, in its order."""
    source = (Path(__file__).resolve().parents[3] / "csrc" / file).read_text(encoding="utf-8")
    found = re.search(rf"{name}\[\] = {{([^}}]*)}}", source)
    assert found is not None
    return re.findall(r'"(\w+)"', found.group(1))


def test_kinds_of_terms_and_forms_of_links_are_numbered_alike() -> None:
    assert native_names("executor/plan.h", "kTermKinds") == list(plan.TERM_KINDS)
    assert native_names("kernels/kernels.h", "kLinkForms") == [*FORMS, "gss"]  # gss is for losses alone
