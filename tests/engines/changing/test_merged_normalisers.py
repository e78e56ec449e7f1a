"""Normalisers of parts that are joined: within what is said, beside exact sums, and no wider than the parts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from headlong.engines.merged import merged_lse

numbers = st.floats(-1e4, 1e4)
errors = st.floats(0, 5)
parts = st.lists(st.tuples(numbers, errors, st.floats(-1, 1)), min_size=1, max_size=5)


@given(parts)
def test_the_sum_is_within_its_error(given_parts: list[tuple[float, float, float]]) -> None:
    """Each part is off by ``where`` of its error."""
    lses, off, where = (np.array(column) for column in zip(*given_parts, strict=True))
    lse, error = merged_lse(tuple(lses[:, None]), tuple(off[:, None]))
    with mp.workdps(60):
        exact = mp.log(mp.fsum(mp.exp(mpf(a) + mpf(b) * mpf(c)) for a, b, c in zip(lses, off, where, strict=True)))
        assert abs(exact - mpf(float(lse[0]))) <= mpf(float(error[0])) + mpf(10) ** -50  # the oracle's own digits
    assert error[0] <= off.max() + 8 * len(lses) * 2.0**-53 * (1 + abs(lse[0]) + off.max())


def test_parts_without_classes_or_limits() -> None:
    """A part without a class adds nothing; one without a limit leaves none."""
    empty, wide = merged_lse((np.array([2.0]), np.array([-np.inf])), (np.array([0.01]), np.array([0.0])))
    assert empty[0] == 2.0 and 0.01 <= wide[0] < 0.01 + 1e-13
    _, none = merged_lse((np.array([2.0]), np.array([1.0])), (np.array([0.01]), np.array([np.inf])))
    assert np.isinf(none[0])
    nothing, _ = merged_lse((np.array([-np.inf]), np.array([-np.inf])), (np.array([0.0]), np.array([0.0])))
    assert np.isneginf(nothing[0])
