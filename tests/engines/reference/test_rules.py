"""Noise, filters and nuclei: NumPy, torch and C++ beside known answers, plain loops and float64."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import headlong as hl
from headlong import native
from headlong.engines.reference import nucleus
from headlong.engines.reference.gumbel import gumbels, philox
from headlong.engines.sampling_filters import kept_count
from headlong.links.base import FORMS
from headlong.question import Filters
from headlong.randomness import NOISE
from oracle import kept
from rates import check_rate


def one(*words: int) -> tuple[Any, ...]:
    return tuple(np.array([word], np.uint64) for word in words)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers that come with the generator
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: Any, key: Any, expected: Any) -> None:
    assert tuple(int(word[0]) for word in philox(one(*counter), key)) == expected


def test_gumbels_are_gumbels_and_can_be_had_alone() -> None:
    ids = np.arange(200_000, dtype=np.int64)
    noise = gumbels(3, 5, 0, ids)
    assert abs(noise.mean() - 0.5772156649) < 0.01 and abs(noise.var() - math.pi**2 / 6) < 0.02
    assert abs(np.mean(noise < 1.0) - math.exp(-math.exp(-1.0))) < 0.005
    few = np.array([7, 123_456, 8], np.int64)
    assert (gumbels(3, 5, 0, few) == noise[few]).all()
    for other in (gumbels(4, 5, 0, few), gumbels(3, 6, 0, few), gumbels(3, 5, 1, few), gumbels(3, 5 + 2**32, 0, few)):
        assert (other != noise[few]).all()


def test_gumbel_by_integers() -> None:
    """``u`` rebuilt with Python's integers and logarithms."""
    noise = gumbels(2**40 + 9, 2**33 + 1, 2, np.arange(64, dtype=np.int64))
    for i in range(64):
        counter = (i >> 2, 1, 2)
        key = 9 ^ NOISE & 0xFFFFFFFF, 256 ^ NOISE >> 32
        high, low = (int(philox(one(counter[0], draw, 1, 2), key)[i & 3][0]) for draw in (2, 2 | 0x80000000))
        u = (high * 2**32 + low + 0.5) / 2**64
        assert noise[i] == pytest.approx(-math.log(-math.log(u)), abs=1e-12)


@given(
    hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-5, 5)),
    st.integers(0, 30),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
)
def test_filters_of_a_few_classes(values: np.ndarray, top_k: int, top_p: float, min_p: float) -> None:
    descending = np.sort(values)[::-1]
    count = kept_count(descending, Filters(1, 1.0, top_k, top_p, min_p, 0, 0))
    nudged = {
        len(kept(descending, descending, top_k, min(1.0, top_p * f), min(1.0, min_p * f))) for f in (1, 1 - 1e-9, 1 + 1e-9)
    }
    assert min(nudged) <= count <= max(nudged) and count >= 1


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


@pytest.mark.parametrize("top_p", [0.1, 0.45, 0.83, 0.99])
def test_native_draws_come_from_that_nucleus(level: str, top_p: float) -> None:
    mass = np.array([0.3, 0.2, 0.13, 0.11, 0.08, 0.07, 0.05, 0.03, 0.02, 0.01])
    layer = hl.Layer(np.log(mass).astype(np.float32)[:, None])
    ids = hl.compile(layer, "full").sample(np.ones((1, 1)), n=2000, top_p=top_p, seed=3).ids
    assert set(ids.ravel().tolist()) == set(range(nucleus.nucleus_size(mass, top_p)))


def test_forms_of_links_are_numbered_alike() -> None:
    source = (Path(__file__).resolve().parents[3] / "csrc/kernels/kernels.h").read_text(encoding="utf-8")
    found = re.search(r"kLinkForms\[\] = {([^}]*)}", source)
    assert found is not None
    assert re.findall(r'"(\w+)"', found.group(1)) == [*FORMS, "gss"]  # gss is for losses alone


VOCAB, DIM, QUERIES = 6000, 48, 40


@pytest.fixture(scope="module")
def layer() -> hl.Layer:
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((VOCAB, DIM)) * (1 + np.arange(DIM)) ** -0.5
    return hl.Layer(weight.astype(np.float32), rng.standard_normal(VOCAB).astype(np.float32))


@pytest.fixture(scope="module")
def hidden() -> np.ndarray:
    return np.random.default_rng(6).standard_normal((QUERIES, DIM))


def winners(layer: hl.Layer, hidden: np.ndarray, top_p: float, temperature: float, seed: int) -> list[int]:
    """The largest key of the classes of each nucleus, all in float64."""
    ids, won = np.arange(layer.vocab), []
    for row, z in enumerate(hidden @ layer.weight.astype(np.float64).T + (0.0 if layer.bias is None else layer.bias)):
        inside = kept(z, z / temperature, 0, top_p, 0.0)
        won.append(int(inside[np.argmax(z[inside] / temperature + gumbels(seed, row, 0, ids)[inside])]))
    return won


@pytest.fixture(params=[level for level in native.levels() if level != native.REFERENCE])
def engine(request: pytest.FixtureRequest, layer: hl.Layer, hidden: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> hl.Engine:
    monkeypatch.setenv("HEADLONG_ISA", request.param)
    return hl.compile(layer, "codes", eps=0.05, delta=0.01, calibration=hidden, blocks=False, threads=2)


@pytest.mark.parametrize(("top_p", "temperature"), [(0.95, 0.8), (0.4, 1.5)])
def test_draws_are_those_of_the_nucleus(
    engine: hl.Engine, layer: hl.Layer, hidden: np.ndarray, top_p: float, temperature: float
) -> None:
    drawn = engine.sample(hidden, temperature=temperature, top_p=top_p, seed=9, eps=np.inf)
    expected = winners(layer, hidden, top_p, temperature, 9)
    check_rate(int((drawn.ids[:, 0] != expected).sum()), QUERIES, 0.01)
    assert not drawn.proved.all() and drawn.cost.dense.mean() < 0.5
    assert (drawn.proved[:, 0] | ~drawn.cost.dense).all() and drawn.cost.rows.mean() < 3 * VOCAB / 4


@pytest.mark.parametrize("filters", [{"top_p": 0.95}, {"top_p": 0.5}, {"min_p": 0.05}, {"top_k": 30, "top_p": 0.9}], ids=str)
def test_where_the_temperature_comes_last_filters_go_by_temperature_one(
    engine: hl.Engine, layer: hl.Layer, hidden: np.ndarray, filters: dict[str, Any]
) -> None:
    """Each row at a temperature of its own: the largest key at that, of what is kept at another."""
    warmth, ids = np.linspace(0.4, 2.5, QUERIES), np.arange(VOCAB)
    cut = filters.get("top_k", 0), filters.get("top_p", 1.0), filters.get("min_p", 0.0)
    z = hidden @ layer.weight.astype(np.float64).T + layer.bias
    how: dict[str, Any] = {"seed": 9, "eps": np.inf, "temperature_last": True, **filters}
    each = engine.sample(hidden, temperature=warmth, **how)
    for row in range(0, QUERIES, 7):
        assert engine.sample(hidden[[row]], temperature=warmth[row], position=row, **how).ids == each.ids[[row]]
    wrong = other = 0
    for row, one in enumerate(z):
        inside, before = kept(one, one, *cut), kept(one, one / warmth[row], *cut)
        keys = one / warmth[row] + gumbels(9, row, 0, ids)
        wrong += int(each.ids[row, 0] != inside[np.argmax(keys[inside])])
        other += int(inside[np.argmax(keys[inside])] != before[np.argmax(keys[before])])
    check_rate(wrong, QUERIES, 0.01)
    assert other > 0, "another order would draw the same"


@pytest.mark.parametrize("kind", ["codes", "full", "numpy"])
def test_a_temperature_that_comes_last_has_log_probabilities_too(
    layer: hl.Layer, hidden: np.ndarray, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of the temperature, as where it comes first: only what is kept is another."""
    if kind == "numpy":
        monkeypatch.setenv("HEADLONG_ISA", "numpy")
    engine = hl.compile(layer, "full" if kind == "full" else "codes", delta=0)
    found = engine.sample(hidden[:6], 3, temperature=0.6, top_p=0.8, seed=2, temperature_last=True, support=True)
    bounds = found.support.offsets
    for row, one in enumerate(hidden[:6] @ layer.weight.astype(np.float64).T + layer.bias):
        inside = kept(one, one, 0, 0.8, 0.0)
        np.testing.assert_array_equal(found.support.ids[bounds[row] : bounds[row + 1]], np.sort(inside))
        x = one / 0.6
        log_probs = x - np.logaddexp.reduce(x)
        np.testing.assert_allclose(found.log_probs[row], log_probs[found.ids[row]], rtol=0, atol=found.error[row])
        np.testing.assert_allclose(found.kept[row], np.logaddexp.reduce(log_probs[inside]), rtol=0, atol=found.error[row])
        keys = [x + gumbels(2, row, draw, np.arange(VOCAB)) for draw in range(3)]
        assert found.ids[row].tolist() == [int(inside[np.argmax(key[inside])]) for key in keys]


def test_without_a_delta_every_draw_is_proved(
    layer: hl.Layer, hidden: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = hl.compile(layer, "codes", eps=0.05, delta=0.0, calibration=hidden, blocks=False)
    drawn = engine.sample(hidden[:8], top_p=0.9, seed=4, eps=np.inf)
    assert drawn.proved.all() and drawn.ids[:, 0].tolist() == winners(layer, hidden[:8], 0.9, 1.0, 4)


def test_masks_and_ties(engine: hl.Engine, layer: hl.Layer, hidden: np.ndarray) -> None:
    """A nucleus of the classes that are allowed, and one whose boundary runs through equal rows."""
    drawn = engine.sample(hidden[:8], 2, top_p=0.9, seed=1, exclude=np.arange(0, VOCAB, 2), eps=np.inf)
    assert (drawn.ids % 2 == 1).all()
    rows = np.repeat(layer.weight[:20], 200, axis=0)
    tied = hl.Layer(rows)
    one = hl.compile(tied, "codes", eps=0.05, delta=0.01, calibration=hidden, blocks=False)
    found = one.sample(hidden[:8], top_p=0.5, seed=3, eps=np.inf)
    for row, z in enumerate(hidden[:8] @ rows.astype(np.float64).T):
        inside = kept(z, z, 0, 0.5, 0.0)
        assert int(found.ids[row, 0]) == int(inside[np.argmax(z[inside] + gumbels(3, row, 0, np.arange(len(z)))[inside])])


@pytest.mark.parametrize("distinct", [1, 3, 60])
@pytest.mark.parametrize(
    "cut", [(0, 0.5, 0.0), (0, 0.9, 0.02), (37, 0.8, 0.0), (37, 1.0, 0.0), (0, 1.0, 0.3), (700, 0.999, 1e-9)]
)
def test_filters_of_a_dense_pass_select_what_a_sort_would(
    layer: hl.Layer, hidden: np.ndarray, distinct: int, cut: tuple[int, float, float]
) -> None:
    """Ties all over leave no other way; their places are counted, not sorted, and their noise is each class's own."""
    rows = layer.weight[np.random.default_rng(distinct).integers(0, distinct, 4000)]
    engine = hl.compile(hl.Layer(rows), "full")
    words = {"top_k": cut[0] or None, "top_p": cut[1] if cut[1] < 1 else None, "min_p": cut[2] or None}
    found = engine.sample(hidden[:6], 2, seed=9, temperature=1.5, **words, eps=np.inf)
    assert found.cost.dense.all()
    for row, z in enumerate(hidden[:6] @ rows.astype(np.float64).T):
        inside = kept(z, z / 1.5, *cut)
        for draw in range(2):
            key = z[inside] / 1.5 + gumbels(9, row, draw, np.arange(len(z)))[inside]
            assert int(found.ids[row, draw]) == int(inside[np.argmax(key)])
            assert found.score[row, draw] == pytest.approx(key.max(), rel=1e-12)
