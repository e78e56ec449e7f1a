"""The mean of given class values under a row's distribution: within what it says of float64, over every kind of engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.errors import NonFiniteError, OptionError, ShapeError
from kinds import KINDS
from oracle import truth
from structured_layers import made

VOCAB, DIM = 900, 24
RNG = np.random.default_rng(5)
WEIGHT = (RNG.standard_normal((VOCAB, DIM)) * 1.5).astype(np.float32)
BIAS = RNG.standard_normal(VOCAB).astype(np.float32)
HIDDEN = RNG.standard_normal((5, DIM)) * np.array([0.02, 0.5, 1, 2, 6])[:, None]
VALUES = {
    "any": RNG.standard_normal(VOCAB) * 3 + 100,
    "whole": np.arange(VOCAB),
    "marks": (np.arange(VOCAB) % 7 == 0),
    "large": RNG.standard_normal(VOCAB) * 1e200,
    "equal": np.full(VOCAB, 2.5),
}
MASKS: dict[str, dict[str, Any]] = {
    "all": {}, "few": {"allowed": [1, 5, 9, 800]}, "many": {"exclude": list(range(0, VOCAB, 3))},
    "each its own": {"allowed": [[1, 2], range(VOCAB), [7], range(0, VOCAB, 2), [3, 4, 5]]},
}  # fmt: skip
LINKS = {"plain": None, "soft-cap": hl.SoftCap(5.0), "scaled": hl.Affine(0.7, 1.0)}


def live_of(limits: dict[str, Any]) -> np.ndarray:
    live = np.ones((len(HIDDEN), VOCAB), bool)
    for name, ids in limits.items():
        for row in range(len(HIDDEN)):
            own = ids[row] if isinstance(ids[0], (list, range)) else ids
            live[row] = np.isin(np.arange(VOCAB), list(own)) == (name == "allowed")
    return live


def check_mean(found: Any, exact: Any, values: np.ndarray, eps: float) -> None:
    """Against float64 by another route."""
    wide = values.astype(np.float64)
    want = (np.exp(exact.log_probs) @ (wide / np.abs(wide).max())) * np.abs(wide).max()
    half = (wide.max() - wide.min()) / 2
    lost = (exact.rounding * 8 + 1e-12) * np.abs(wide).max()  # of the reference
    off = np.abs(np.asarray(found.value, np.float64) - want)
    assert (off <= np.asarray(found.error, np.float64) + lost).all()
    assert (np.asarray(found.error) <= eps * half + lost + 1e-6 * np.abs(wide).max()).all()


@pytest.mark.parametrize("method", ["full", "codes"])
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("limits", MASKS)
def test_a_mean_is_within_its_error(method: str, link: str, limits: str) -> None:
    layer = hl.Layer(WEIGHT, BIAS, LINKS[link])
    engine, exact = hl.compile(layer, method), truth(layer, HIDDEN, live_of(MASKS[limits]))
    for values in VALUES.values():
        for eps in (None, 1e-4, 0.5):
            found = engine.expected(HIDDEN, values, eps=eps, **MASKS[limits])
            check_mean(found, exact, values, 0.01 if eps is None else eps)
    single = engine.expected(HIDDEN.astype(np.float32), VALUES["any"], **MASKS[limits])
    assert single.value.dtype == single.error.dtype == np.float32
    check_mean(single, truth(layer, HIDDEN.astype(np.float32), live_of(MASKS[limits])), VALUES["any"], 0.01)


def test_peaked_rows_are_not_read_in_full() -> None:
    engine = hl.compile(hl.Layer(WEIGHT), "codes")
    found = engine.expected(HIDDEN * 4, VALUES["any"])
    assert not found.cost.dense[-1] and found.cost.dense[0]


def test_it_unpacks_to_the_value_and_its_error_and_is_a_tensor_where_that_came() -> None:
    torch = pytest.importorskip("torch")
    value, error = hl.compile(hl.Layer(WEIGHT), "full").expected(torch.from_numpy(HIDDEN), torch.arange(VOCAB))
    assert isinstance(value, torch.Tensor) and value.shape == error.shape == (5,)


@pytest.mark.parametrize("kind", [*KINDS, "tree", "differentiated", "experts", "mos"])
def test_every_kind_has_it(kind: str) -> None:
    """Beside the probabilities of all classes of the same engine."""
    engine = KINDS[kind](hl.Layer(WEIGHT), eps=0.01) if kind in KINDS else hl.compile(made(kind, DIM, VOCAB).layer)
    found = engine.expected(HIDDEN, VALUES["any"])
    p = np.exp(engine.every_class(HIDDEN)[1])
    off = np.abs(found.value - p @ VALUES["any"])
    assert (off <= found.error + 1e-6).all() and found.error.max() <= 0.01 * np.ptp(VALUES["any"])
    assert engine.expected(HIDDEN[:0], VALUES["any"]).value.shape == (0,)


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        (np.zeros(VOCAB - 1), ShapeError, rf"values is float64 of shape \[{VOCAB - 1}\]; expected \[{VOCAB}\]"),
        (np.zeros((1, VOCAB)), ShapeError, "expected"),
        (np.full(VOCAB, "a"), ShapeError, "a number of every class"),
        (np.where(np.arange(VOCAB) == 3, math.inf, 0.0), NonFiniteError, r"values\[3\] is inf"),
    ],
)
def test_what_is_no_number_of_every_class_is_refused(values: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        hl.compile(hl.Layer(WEIGHT), "full").expected(HIDDEN, values)


def test_it_is_about_log_probabilities() -> None:
    with pytest.raises(OptionError, match="expected is about log-probabilities"):
        hl.compile(hl.Layer(WEIGHT), "full", log_probs=False).expected(HIDDEN, VALUES["any"])
