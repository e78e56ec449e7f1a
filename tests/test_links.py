"""links.py: strictly increasing, bounded outward, plain to save."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlong.errors import MalformedFileError, OptionError
from headlong.links import IDENTITY, Affine, Link, SoftCap, link_from_dict

LINKS = [IDENTITY, Affine(0.0625), Affine(3.0, -2.0), Affine.temperature(0.7), Affine(1e-5, 1e5), SoftCap(30.0), SoftCap(0.5)]
logits = st.floats(-1e6, 1e6)


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_links_are_links(link: Link) -> None:
    assert isinstance(link, Link)
    assert hash(link) == hash(link_from_dict(link.as_dict()))


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_links_increase(link: Link, rng: np.random.Generator) -> None:
    z = np.sort(rng.uniform(-3, 3, 1000)) * (link.cap if isinstance(link, SoftCap) else 100.0)
    assert (np.diff(link(z)) > 0).all()


@given(z=logits, scale=st.floats(1e-6, 1e6), shift=st.floats(-1e6, 1e6))
def test_affine_intervals_hold_the_exact_value(z: float, scale: float, shift: float) -> None:
    low, high = Affine(scale, shift).interval(z, z)
    exact = Fraction(scale) * Fraction(z) + Fraction(shift)
    assert Fraction(float(low)) <= exact <= Fraction(float(high))


@given(z=st.floats(-20, 20), cap=st.floats(0.25, 100))
def test_soft_cap_intervals_hold_the_exact_value(z: float, cap: float) -> None:
    low, high = SoftCap(cap).interval(z, z)
    with mpmath.workdps(60):
        exact = cap * mpmath.tanh(mpmath.mpf(z) / cap)
        assert float(low) <= exact <= float(high)
    assert float(high) - float(low) <= 1e-13 * cap


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_intervals_are_ordered_and_take_infinity(link: Link) -> None:
    low, high = link.interval(np.array([-np.inf, -1.0, 2.0]), np.array([1.0, 1.0, np.inf]))
    assert (low < high).all()
    assert not np.isnan(low).any()
    assert not np.isnan(high).any()


def test_the_identity_is_the_identity() -> None:
    z = np.array([-1.5, 0.0, 1e300])
    assert (IDENTITY(z) == z).all()
    low, high = IDENTITY.interval(z, z)
    assert (low == z).all()
    assert (high == z).all()
    assert str(IDENTITY) == "identity"
    assert Affine.temperature(1.0) == IDENTITY


def test_lowered() -> None:
    assert Affine(2, 1).lowered() == ("affine", 2.0, 1.0)
    assert Affine.temperature(4).lowered() == ("affine", 0.25, 0.0)
    assert SoftCap(30).lowered() == ("softcap", 30.0, 0.0)


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_saved_and_read_again(link: Link) -> None:
    assert link_from_dict(json.loads(json.dumps(link.as_dict()))) == link


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 5e-324, 10**400, True, "30", None])
def test_what_does_not_increase_is_refused(bad: Any) -> None:
    for build in (Affine, SoftCap, Affine.temperature):
        with pytest.raises(OptionError, match="expected a finite number above 0: a link has to increase"):
            build(bad)


def test_an_infinite_shift_is_refused() -> None:
    with pytest.raises(OptionError, match=r"Affine\(shift=inf\); expected a finite number$"):
        Affine(1.0, math.inf)


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"kind": "cubic"},
        {"kind": ["affine"]},
        {"kind": "affine", "scale": 1.0},
        {"kind": "affine", "scale": 1.0, "shift": 0.0, "more": 1},
        {"kind": "affine", "scale": -1.0, "shift": 0.0},
        {"kind": "softcap", "cap": "30"},
        {"kind": "softcap", "cap": None},
        [],
    ],
)
def test_damaged_links_are_refused(saved: Any) -> None:
    with pytest.raises(MalformedFileError, match="link"):
        link_from_dict(saved)
