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
from headlong.links import IDENTITY, SIGSOFTMAX, Affine, Gss, Link, SoftCap, Table, link_from_dict, lowering_error

BENT = Table(-2.0, 0.25, np.cumsum([0.0, 1.0, 0.5, 3.0, 1e-3, 2.0]), 2.0, 0.5)
LINKS: list[Link] = [
    *(IDENTITY, Affine(0.0625), Affine(3.0, -2.0), Affine.temperature(0.7), Affine(1e-5, 1e5), SoftCap(30.0), SoftCap(0.5)),
    *(SIGSOFTMAX, Gss(-1.5, 2.5), Gss(1.0, 0.25), BENT, Table(0.0, 1.0, np.array([0.0, 1.0]), 1.0, 1.0)),
]
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
        {"kind": "gss", "centre": 0.0, "power": -1.0},
        {**BENT.as_dict(), "values": [0.0, 2.0, 1.0]},
        {**BENT.as_dict(), "values": [0.0, 1.0, math.nan]},
        {**BENT.as_dict(), "values": [1.0]},
        {**BENT.as_dict(), "values": "abc"},
        {**BENT.as_dict(), "step": -1.0},
        {**BENT.as_dict(), "step": 1e308},
        {**BENT.as_dict(), "left": 0.0},
        {**BENT.as_dict(), "start": 1e300},
        {**BENT.as_dict(), "error": -1.0},
        [],
    ],
)
def test_damaged_links_are_refused(saved: Any) -> None:
    with pytest.raises(MalformedFileError, match="link"):
        link_from_dict(saved)


@given(z=st.floats(-80, 80), centre=st.floats(-5, 5), power=st.floats(0.1, 5))
def test_gss_intervals_hold_the_exact_value(z: float, centre: float, power: float) -> None:
    low, high = Gss(centre, power).interval(z, z)
    with mpmath.workdps(60):
        x = mpmath.mpf(z) - centre
        exact = power * x + centre - (power - 1) * mpmath.log(1 + mpmath.exp(x))
        assert float(low) <= exact <= float(high)
    assert float(high) - float(low) <= 1e-12 * (100 + abs(z))


def test_sigsoftmax_is_exp_times_sigmoid(rng: np.random.Generator) -> None:
    z = rng.uniform(-30, 30, 1000)
    np.testing.assert_allclose(np.exp(SIGSOFTMAX(z)), np.exp(z) / (1 + np.exp(-z)), rtol=1e-12)
    assert (str(SIGSOFTMAX), str(Gss(1.0, 3.0))) == ("sigsoftmax", "gss centre 1 power 3")


@given(z=st.floats(-30, 30), slopes=st.lists(st.floats(1e-3, 50), min_size=1, max_size=20), start=st.floats(-10, 10))
def test_table_intervals_hold_the_exact_value(z: float, slopes: list[float], start: float) -> None:
    step = 0.375
    link = Table(start, step, np.cumsum([0.5, *(slope * step for slope in slopes)]), slopes[0], slopes[-1])
    low, high = link.interval(z, z)
    values = [Fraction(float(value)) for value in link.values]
    cell = math.floor((Fraction(z) - Fraction(start)) / Fraction(step))
    if cell < 0:
        exact = values[0] + (Fraction(z) - Fraction(start)) * Fraction(link.left)
    elif cell >= len(slopes):
        exact = values[-1] + (Fraction(z) - Fraction(start) - len(slopes) * Fraction(step)) * Fraction(link.right)
    else:
        at = Fraction(z) - Fraction(start) - cell * Fraction(step)
        exact = values[cell] + at * (values[cell + 1] - values[cell]) / Fraction(step)
    assert Fraction(float(low)) <= exact <= Fraction(float(high))


@pytest.mark.parametrize("link", [SIGSOFTMAX, Gss(-1.5, 2.5), Gss(1.0, 0.25)], ids=str)
def test_a_lowered_curve_is_within_its_error(link: Gss, rng: np.random.Generator) -> None:
    _, start, step, values, left, right, error = link.lowered()  # type: ignore[misc]  # a table's seven parts
    z = np.concatenate([rng.uniform(-25, 25, 20_000), [-1e6, -50.0, 50.0, 1e6]])
    off = np.abs(Table(start, step, values, left, right)(z) - link(z))
    assert (off <= error + 1e-12 * np.abs(z)).all()
    assert off.max() > 0.5 * error, "a bound that is far from what happens"
    assert lowering_error(link) == error < 2e-5
    assert lowering_error(IDENTITY) == 0


def test_any_ascending_knots_become_a_table() -> None:
    knots, values = [-3.0, -2.5, 0.0, 0.1, 4.0], [0.0, 4.0, 4.5, 6.0, 6.5]
    table = Table.through(knots, values, 1.0, 2.0)
    z = np.linspace(-3, 4, 9973)
    assert np.abs(table(z) - np.interp(z, knots, values)).max() <= table.error < 0.02
    for wrong in ([0.0, 1.0, 1.0], [1.0, 0.0, 2.0], [0.0, math.nan, 2.0], [0.0]):
        with pytest.raises(OptionError, match="ascending order"):
            Table.through(wrong, list(range(len(wrong))), 1.0, 1.0)


def test_a_table_is_data(rng: np.random.Generator) -> None:
    values = np.cumsum(rng.uniform(0.1, 1, 9))
    table = Table(0.0, 1.0, values, 1.0, 1.0)
    values += 1
    assert (table.values != values).all()
    with pytest.raises(ValueError, match="read-only"):
        table.values[0] = 0
    assert table != Table(0.0, 1.0, values, 1.0, 1.0)
    with pytest.raises(OptionError, match="followed by .* at knot 1; expected ascending values: a link has to increase"):
        Table(0.0, 1.0, [1.0, 1.0], 1.0, 1.0)  # type: ignore[arg-type]  # a list passes for an array


def test_slope_and_offset_bound_a_link(rng: np.random.Generator) -> None:
    z = rng.uniform(-40, 40, 2000)
    for link in LINKS:
        assert (np.abs(link(z)) <= link.offset + link.steepest * np.abs(z) + 1e-9).all()
