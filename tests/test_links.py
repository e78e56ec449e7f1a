"""Links: strictly increasing, within their rounding of the formula, plain to save."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlong.errors import MalformedFileError, OptionError
from headlong.links import IDENTITY, ROUNDING, SIGSOFTMAX, Affine, Gss, Link, SoftCap, Table, link_from_dict, lowering_error

BENT = Table(-2.0, 0.25, np.cumsum([0.0, 1.0, 0.5, 3.0, 1e-3, 2.0]), 2.0, 0.5)
LINKS: list[Link] = [
    *(IDENTITY, Affine(0.0625), Affine(3.0, -2.0), Affine.temperature(0.7), Affine(1e-5, 1e5), SoftCap(30.0), SoftCap(0.5)),
    *(SIGSOFTMAX, Gss(-1.5, 2.5), Gss(1.0, 0.25), BENT, Table(0.0, 1.0, np.array([0.0, 1.0]), 1.0, 1.0)),
]


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_links_are_links(link: Link) -> None:
    assert isinstance(link, Link)
    assert hash(link) == hash(link_from_dict(link.as_dict()))


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_links_increase(link: Link, rng: np.random.Generator) -> None:
    z = np.sort(rng.uniform(-3, 3, 1000)) * (link.cap if isinstance(link, SoftCap) else 100.0)
    assert (np.diff(link(z)) > 0).all()


def exactly(link: Link, z: float) -> tuple[Any, Any]:
    """f(z) with sixty digits, and the size of its largest term."""
    x = mpmath.mpf(z)
    if isinstance(link, Affine):
        return link.scale * x + link.shift, abs(link.scale * x) + abs(link.shift)
    if isinstance(link, SoftCap):
        found = link.cap * mpmath.tanh(x / link.cap)
        return found, abs(found)
    if isinstance(link, Gss):
        found = link.power * (x - link.centre) + link.centre - (link.power - 1) * mpmath.log(1 + mpmath.exp(x - link.centre))
        return found, (abs(x) + 2 * abs(link.centre) + 1) * (1 + link.power)
    knots = [mpmath.mpf(link.start) + i * mpmath.mpf(link.step) for i in range(len(link.values))]
    cell = min(max(sum(knot <= x for knot in knots) - 1, 0), len(knots) - 2)
    inside = (mpmath.mpf(link.values[cell + 1]) - mpmath.mpf(link.values[cell])) / link.step
    slope = link.left if x < knots[0] else link.right if x > knots[-1] else inside
    at = -1 if x > knots[-1] else 0 if x < knots[0] else cell
    size = float(np.abs(link.values).max()) + link.steepest * (abs(x) + abs(knots[0]) + abs(knots[-1]))
    return mpmath.mpf(float(link.values[at])) + (x - knots[at]) * slope, size


@pytest.mark.parametrize("link", LINKS, ids=str)
@given(z=st.floats(-80, 80))
def test_links_are_within_their_rounding_of_the_formula(link: Link, z: float) -> None:
    with mpmath.workdps(60):
        exact, size = exactly(link, z)
        assert abs(mpmath.mpf(float(link(z))) - exact) <= ROUNDING * size + sys.float_info.min


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


def test_sigsoftmax_is_exp_times_sigmoid(rng: np.random.Generator) -> None:
    z = rng.uniform(-30, 30, 1000)
    np.testing.assert_allclose(np.exp(SIGSOFTMAX(z)), np.exp(z) / (1 + np.exp(-z)), rtol=1e-12)
    assert (str(SIGSOFTMAX), str(Gss(1.0, 3.0))) == ("sigsoftmax", "gss centre 1 power 3")


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


@pytest.mark.filterwarnings("error")
def test_a_logit_that_is_no_number_stays_one_under_a_table() -> None:
    """As weights of a damaged file give, opened unverified."""
    table = Table(-1.0, 0.5, np.array([-1.0, 0.0, 2.0]), 1.0, 1.0)
    found = table(np.array([np.nan, np.inf, -np.inf, 0.0]))
    assert np.isnan(found[0]) and found[1] == np.inf and found[2] == -np.inf and found[3] == 2.0
