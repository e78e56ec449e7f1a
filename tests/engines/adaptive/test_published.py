"""AdaptiveSoftmax in its authors' order: held, step by step, against a plain statement of the algorithm and its constants."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import headlong as hl
from headlong import native
from headlong.engines.adaptive.published import PublishedSearch, Rules, answer, order_of
from headlong.engines.adaptive.reader import PublishedReader, keys_of

Doubles = NDArray[np.float64]


class Case(NamedTuple):
    """One query of a small layer; ``width``: the variance bound, a quarter of which the race tries first."""

    weight: Doubles
    x: Doubles
    shares: list[float]
    keys: list[float]
    ids: list[int]
    width: float
    rules: Rules


class Stated(NamedTuple):
    """``looks``: the prefix lengths and classes of warm-up, race and winner, in order; then what is left of every class."""

    looks: list[tuple[int, tuple[int, ...]]]
    winner: int
    pulls: list[int]
    estimates: list[float]
    lse: float


def authors(case: Case) -> Stated:
    """The algorithm as its authors' code runs it, one number at a time: warm-up, best arm, exact value, normaliser."""
    vocab, size, eps = len(case.weight), len(case.ids), case.rules.eps
    stage = case.rules.delta / 2 if case.rules.exact else case.rules.delta / 3
    log_classes = math.log(6 * vocab / stage)
    est, var, read = [0.0] * vocab, [math.inf] * vocab, [0] * vocab
    looks: list[tuple[int, tuple[int, ...]]] = []

    def look(i: int, m: int) -> None:
        est[i] = var[i] = 0.0
        for place in range(m):
            q = 1 - math.exp(-math.exp(case.shares[place] - case.keys[m])) if m < size else 1.0
            term = float(case.weight[i, case.ids[place]]) * float(case.x[case.ids[place]])
            est[i] += term / q
            var[i] += term * term * (1 - q) / q**2
        read[i] = m

    def grow(classes: list[int], target: float, multiplier: float, cap: int) -> None:
        m = max(read[i] for i in classes)
        while m < cap and multiplier * max(var[i] for i in classes) > target:
            m = min(cap, max(16, math.ceil(1.5 * m)))
            looks.append((m, tuple(classes)))
            for i in classes:
                look(i, m)

    grow(list(range(vocab)), 1 / (17 * log_classes), case.rules.sum, math.floor(case.rules.warm * size))
    survivors, target = list(range(vocab)), case.width / 4
    while len(survivors) > 1:
        grow(survivors, target, case.rules.arm, size)
        ci = {i: math.sqrt(2 * case.rules.arm * var[i] * math.log(6 * vocab * math.log(size) / stage)) for i in survivors}
        best = max(survivors, key=lambda i: est[i])
        keep = [i for i in survivors if est[i] + ci[i] >= est[best] - ci[best]]
        if len(keep) <= 1:
            break
        survivors, target = keep, target / 2
    winner = max(survivors, key=lambda i: est[i])
    if case.rules.exact:
        est[winner], var[winner], read[winner] = float(case.weight[winner] @ case.x), 0.0, size
    else:
        grow([winner], (eps / 4) ** 2 / (32 * math.log(2 / stage)), case.rules.sum, size)

    low = [est[i] - math.sqrt(2 * log_classes * case.rules.sum * var[i]) for i in range(vocab)]
    alpha, gamma = [math.exp(value) for value in low], [math.exp(value / 2) for value in low]
    c1 = 16 * math.sqrt(2) * log_classes / eps * sum(gamma) ** 2 / sum(alpha)
    c2 = 16 * math.log(12 / stage) / eps**2
    for i in range(vocab):
        wanted = min(sum(gamma) / (c1 * gamma[i]), sum(alpha) / (c2 * alpha[i]))
        while read[i] < size and case.rules.sum * var[i] > wanted:
            look(i, min(size, max(16, math.ceil(1.5 * read[i]))))
    return Stated(looks, winner, read, est, math.log(sum(math.exp(value) for value in est)))


class Recorded(PublishedSearch):
    """A search that says which looks it took, and when the last stage began."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        self.looks: list[tuple[int, tuple[int, ...]]] = []
        self.last = False

    def pull(self, arms: NDArray[np.int64], m: int) -> None:
        if not self.last:
            self.looks.append((m, tuple(arms.tolist())))
        super().pull(arms, m)

    def each(self, *stage: object) -> None:
        self.last = True
        super().each(*stage)  # type: ignore[arg-type]


def layer_of(seed: int, vocab: int = 40, dim: int = 300) -> tuple[hl.Layer, Doubles]:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((vocab, dim)) * np.linspace(1.5, 0.2, dim) / math.sqrt(dim)
    x = rng.standard_normal(dim) + 4 * weight[seed % vocab]
    return hl.Layer(weight.astype(np.float32)), x.astype(np.float32).astype(np.float64)


def case_of(seed: int, rules: Rules) -> Case:
    layer, x = layer_of(seed)
    weight = np.asarray(layer.weight, np.float64)
    ids, shares, keys = order_of(x, np.abs(weight).sum(axis=0), 0, int(keys_of(x[None])[0]))
    return Case(weight, x, shares.tolist(), keys.tolist(), ids.tolist(), 40.0, rules)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("multipliers", [(1.0, 1.0), (0.05, 0.02), (0.002, 0.3)])
@pytest.mark.parametrize("seed", range(5))
def test_every_step_is_the_authors(seed: int, multipliers: tuple[float, float], exact: bool) -> None:
    rules = Rules(exact=exact, arm=multipliers[0], sum=multipliers[1])
    case = case_of(seed, rules)
    stated = authors(case)
    order = (np.array(case.ids), np.array(case.shares), np.array(case.keys))
    search = Recorded(case.weight.T.astype(np.float32), np.zeros(len(case.weight)), case.x, order)
    found = answer(search, rules, 1, case.weight @ case.x, np.arange(len(case.weight)), case.width)
    assert search.looks == stated.looks, "the same classes to the same prefixes, in the same order"
    assert found.ids.tolist() == [stated.winner]
    assert search.pulls.tolist() == stated.pulls
    np.testing.assert_allclose(found.estimates, stated.estimates, rtol=1e-9, atol=1e-9)
    assert found.lse == pytest.approx(stated.lse, abs=1e-9)


def test_the_cases_tell_the_authors_order_from_others() -> None:
    """Every stage has something to do in them: a race that goes on behind the warm-up, and classes that are refined."""
    raced = refined = 0
    for seed in range(5):
        case = case_of(seed, Rules(arm=0.05, sum=0.02))
        stated = authors(case)
        first, *later = stated.looks
        assert first[0] == 16 and len(first[1]) == len(case.weight)
        raced += any(len(classes) < len(case.weight) for _, classes in later)
        refined += max(stated.pulls[i] for i in range(len(case.weight)) if i != stated.winner) > max(m for m, _ in stated.looks)
    assert raced >= 2 and refined >= 1


@pytest.mark.parametrize("level", [native.REFERENCE, native.levels()[-1]])
@pytest.mark.parametrize("exact", [True, False])
def test_an_engine_is_the_authors_algorithm(level: str, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the layer to the answer: column weights, the variance bound, the order; natively in float32."""
    monkeypatch.setenv("HEADLONG_ISA", level)
    for seed in range(5):
        layer, x = layer_of(seed)
        engine = hl.compile(
            layer, method="adaptive", eps=math.log(1.3), delta=0.1, published=True, threads=1, exact=exact, arm=0.05, sum=0.02
        )
        reader = engine._executor
        assert isinstance(reader, PublishedReader)
        _, ids, lse, pulls, _, _, _, estimates = reader.search(x[None], 1, None, 1, estimates=True)
        width = float(reader.arrays["spread"][0]) * float(np.abs(x).sum()) ** 2
        stated = authors(case_of(seed, reader.rules)._replace(width=width))
        assert ids[0, 0] == stated.winner
        assert pulls[0] == sum(stated.pulls)
        np.testing.assert_allclose(estimates[0], stated.estimates, atol=1e-4)
        assert lse[0] == pytest.approx(stated.lse, abs=1e-4)
