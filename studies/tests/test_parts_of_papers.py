"""Parts of the studies' tables beside a plain computation."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from headlong.structured import ExpertsLayer
from studies.papers.adaptive_softmax import variance as baharav2024_variance
from studies.papers.adaptive_softmax.clopper_pearson import clopper_pearson
from studies.papers.adaptive_softmax.estimators import chances, horvitz_thompson, importance, uniform
from studies.papers.adaptive_softmax.variance import ESTIMATORS, Subject, tenth
from studies.papers.doubly_sparse.contents import contents, rank_correlation


def test_heavy_coordinates_are_drawn_first(rng: np.random.Generator) -> None:
    rows, hidden = rng.standard_normal((3, 400)), rng.standard_normal((3, 400)) * np.linspace(3, 0.01, 400)
    heavy = np.abs(rows * hidden)
    about = Subject(rows * hidden, heavy / heavy.sum(axis=1, keepdims=True), rows, hidden, rows[:, None])
    picked = tenth(about, "importance")
    assert (picked.sum(axis=1) == 40).all()
    assert heavy[picked].mean() > 2 * heavy[tenth(about, "uniform")].mean()


def test_every_estimator_is_drawn_for_any_number_of_coordinates(rng: np.random.Generator) -> None:
    terms = rng.standard_normal(50)
    shares = np.abs(terms) / np.abs(terms).sum()
    for m in (2, 25, 50):
        found = baharav2024_variance.drawn(terms, shares, m, rng)
        assert set(found) == set(ESTIMATORS)
        assert all(variance >= 0 for _, variance in found.values())
    assert found["importance, kept"] == (pytest.approx(terms.sum()), 0.0)


def test_experts_are_told_by_their_words() -> None:
    ids, starts = np.array([0, 1, 0, 2, 3, 0, 1, 4]), np.array([0, 2, 5, 8])
    layer = ExpertsLayer(np.ones((3, 4), np.float32), np.ones((8, 4), np.float32), ids, starts, vocab=5)
    found = contents(layer, np.array([1000, 100, 10, 5, 0]), ["the", "of", "million", "shares", "unseen"])
    assert found["sizes"] == [2, 3, 3] and found["rank_correlation"] == pytest.approx(0.9487, abs=1e-4)
    assert found["smallest"][0] == {"size": 2, "words": ["the", "of"], "own": ["of", "the"]}
    assert found["smallest"][1]["own"] == ["million", "shares", "the"]
    assert found["held"][0] == {"experts": 1, "classes": 2, "frequency": 7.07, "low": 6.25, "high": 8.75}
    assert [one["experts"] for one in found["held"]] == [1, 2, 3], "a class that never comes has no frequency"
    assert rank_correlation(np.array([1, 2, 3]), np.array([7, 7, 7])) is None
    assert rank_correlation(np.array([1, 2, 3]), np.array([9, 5, 1])) == -1.0


def test_the_softmax_share_is_counted_where_a_model_multiplies() -> None:
    import torch

    from studies.models.backbones.base import Batch
    from studies.models.backbones.lstm import Lstm, LstmOptions
    from studies.papers.doubly_sparse.softmax_share import multiplications

    batch = Batch((torch.randint(50, (7, 3)),), torch.zeros(21, dtype=torch.long))
    model = Lstm(LstmOptions(dim=16, layers=2), 50).eval()
    assert multiplications(model, batch) == 2 * 8 * 16**2


def test_logits_are_never_held() -> None:
    """V = 33,278, N = 2,240: a step of the dense head, in pieces, takes under a third of what [N, V] logits take."""
    from studies.models import head_costs

    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of the resident set is read from Linux's /proc")
    rise = head_costs.fresh_memory_rise(head_costs.head_step, "dense", dim=16)
    assert rise < 4 * head_costs.VOCAB * head_costs.ROWS


def test_every_estimator_is_unbiased_and_knows_its_variance(rng: np.random.Generator) -> None:
    dim, m, draws = 60, 15, 4000
    terms = rng.standard_normal(dim) * np.linspace(3, 0.2, dim)
    weights = np.abs(terms) + 0.2
    shares = weights / weights.sum()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("replaced", "kept", "importance", "ht")}
    for _ in range(draws):
        found["replaced"].append(_one(uniform(terms[rng.integers(0, dim, m)][None], dim)))
        found["kept"].append(_one(uniform(terms[rng.permutation(dim)[:m]][None], dim, corrected=True)))
        chosen = rng.choice(dim, m, p=shares)
        found["importance"].append(_one(importance(terms[chosen][None], shares[chosen])))
        keys = np.log(shares) + rng.gumbel(size=dim)
        order = np.argsort(-keys)
        q = chances(np.log(shares[order[:m]]), float(keys[order[m]]))
        found["ht"].append(_one(horvitz_thompson(terms[order[:m]][None], q)))
    for name, pairs in found.items():
        values, variances = np.array(pairs).T
        error = values.std() / math.sqrt(draws)
        assert abs(values.mean() - terms.sum()) < 4 * error, name
        assert variances.mean() == pytest.approx(values.var(), rel=0.15), name


def _one(pair: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    return float(pair[0][0]), float(pair[1][0])


def test_a_full_read_has_no_variance(rng: np.random.Generator) -> None:
    terms = rng.standard_normal((3, 9))
    assert (horvitz_thompson(terms, chances(np.zeros(9), -math.inf))[1] == 0).all()
    assert (uniform(terms, 9, corrected=True)[1] == 0).all()


def test_clopper_and_pearson() -> None:
    assert clopper_pearson(0, 300) == pytest.approx(1 - 0.05 ** (1 / 300), rel=1e-9)
    assert clopper_pearson(13, 800) == pytest.approx(0.0257, abs=2e-4)  # scipy.stats.beta.ppf(0.95, 14, 787)
    assert clopper_pearson(5, 5) == 1.0
    assert clopper_pearson(0, 200) > 0.01 > clopper_pearson(0, 300)  # 200 queries cannot certify 1 %
