"""Parts of the studies' tables beside a plain computation."""

from __future__ import annotations

import numpy as np
import pytest

from studies.papers.adaptive_softmax.synthetic import SCALE, Drawn
from studies.papers.adaptive_softmax.tables import clopper_pearson
from studies.papers.adaptive_softmax.variance import LINES, lines


def test_lines_of_variances_follow_their_errors_where_they_should(rng: np.random.Generator) -> None:
    a, x = rng.standard_normal(64), rng.standard_normal(64) * np.linspace(3, 0.1, 64)
    for m in (8, 32, 60):
        found = lines(a, x, m, rng, draws=20_000)
        assert set(found) == set(LINES)
        assert found["New variance estimate"] == pytest.approx(found["MSE [imp] [wor]"], rel=0.15)
        assert found["Variance"] * 63 / 64 == pytest.approx(found["MSE [wr]"], rel=0.05)
        assert found["MSE [imp] [wor]"] < found["MSE [imp] [wr]"]
    assert lines(a, x, 64, rng, draws=3)["MSE [imp] [wor]"] < 1e-20, "a full read has no error"


def test_prefixes_grow_as_in_the_authors_logs(rng: np.random.Generator) -> None:
    """16 * 1.5^i without rounding on the way: 274 and 411 are in their rows, 275 and 413 are not."""
    search, lengths = Drawn("a", 1000, rng), []
    for target in (1e-1, *(SCALE["a"] ** 2 / (length - 1) for length in (17, 25, 37, 55, 82, 123, 184, 275, 412, 617, 924))):
        search.until(0, target)
        lengths.append(int(search.pulls[0]))
    assert sorted(set(lengths)) == [16, 24, 36, 54, 81, 122, 183, 274, 411, 616, 923]
    search.until(0, 0.0)
    assert search.pulls[0] == 1000 and search.estimate[0] == pytest.approx(search.exact()[0])


def test_clopper_and_pearson() -> None:
    assert clopper_pearson(0, 300) == pytest.approx(1 - 0.05 ** (1 / 300), rel=1e-9)
    assert clopper_pearson(13, 800) == pytest.approx(0.0257, abs=2e-4)
    assert clopper_pearson(5, 5) == 1.0
    assert clopper_pearson(0, 200) > 0.01 > clopper_pearson(0, 300)  # 200 queries cannot certify 1 %
