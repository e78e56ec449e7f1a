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
from headlong import native
from headlong.engines.reference import nucleus
from headlong.links.base import FORMS

MASSES = hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(1e-6, 1.0)).map(lambda mass: np.sort(mass)[::-1].copy())


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


def test_forms_of_links_are_numbered_alike() -> None:
    source = (Path(__file__).resolve().parents[3] / "csrc/kernels/kernels.h").read_text(encoding="utf-8")
    found = re.search(r"kLinkForms\[\] = {([^}]*)}", source)
    assert found is not None
    assert re.findall(r'"(\w+)"', found.group(1)) == [*FORMS, "gss"]  # gss is for losses alone
