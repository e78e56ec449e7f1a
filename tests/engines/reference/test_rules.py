"""Rules that are stated once in each language: NumPy, torch and C++ against each other and against a plain loop."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
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
    torch = pytest.importorskip("torch")
    from headlong.engines.device.query import nucleus_size

    if on_an_edge(mass, top_p):
        return
    size = counted(mass, top_p)
    assert nucleus.nucleus_size(mass, top_p) == size
    assert nucleus.nucleus_size(mass, top_p, float(mass.sum())) == size
    assert nucleus_size(torch.from_numpy(np.stack([mass, mass])), top_p).tolist() == [size, size]


@pytest.mark.parametrize("level", native.levels())
@pytest.mark.parametrize("top_p", [0.1, 0.45, 0.83, 0.99])
def test_native_draws_come_from_that_nucleus(level: str, top_p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    mass = np.array([0.3, 0.2, 0.13, 0.11, 0.08, 0.07, 0.05, 0.03, 0.02, 0.01])
    layer = hl.Layer(np.log(mass).astype(np.float32)[:, None])
    ids = hl.compile(layer, "full").sample(np.ones((1, 1)), n=2000, top_p=top_p, seed=3).ids
    assert set(ids.ravel().tolist()) == set(range(nucleus.nucleus_size(mass, top_p)))


@given(VECTORS)
def test_two_planes_are_the_same_numbers(x: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    from headlong.engines.device.query import two_planes

    whole, step = (part.numpy() for part in two_planes(torch, torch.from_numpy(x[None])))
    ours = query.two_planes(x)
    assert np.abs(whole).max() <= query.PLANES
    for rounded in (ours, whole[0] * step[0]):
        assert np.abs(x - rounded).max() <= float(step[0]) / 2 * (1 + 1e-6)


@given(VECTORS)
def test_peaks_are_split_alike(x: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    from headlong.engines.device.query import split_peaks

    peaks, rest = (float(part[0]) for part in split_peaks(torch, torch.from_numpy(x[None])))
    ours = query.split_peaks(x)
    wide = math.sqrt(len(x) / 3)
    np.testing.assert_allclose(peaks + wide * rest, ours[0] + wide * ours[1], rtol=1e-9)


def native_names(file: str, name: str) -> list[str]:
    """A list of names in a C++ header, in its order."""
    source = (Path(__file__).resolve().parents[3] / "csrc" / file).read_text(encoding="utf-8")
    found = re.search(rf"{name}\[\] = {{([^}}]*)}}", source)
    assert found is not None
    return re.findall(r'"(\w+)"', found.group(1))


def test_kinds_of_terms_and_forms_of_links_are_numbered_alike() -> None:
    assert native_names("executor/plan.h", "kTermKinds") == list(plan.TERM_KINDS)
    assert native_names("kernels/kernels.h", "kLinkForms") == [*FORMS, "gss"]  # gss is for losses alone
