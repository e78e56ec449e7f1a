"""What scores with a known error leave in doubt is read, and nothing else: wrong places are found, right ones not accused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.errors import HeadlongError, OptionError, ShapeError
from headlong.margins import bounds_of

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((200, 16)).astype(np.float32)
ENGINE = hl.compile(hl.Layer(WEIGHT), delta=0.0)


def asked(count: int, seed: int = 1) -> tuple[Any, Any]:
    """Hidden vectors and all their logits in float64."""
    hidden = np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)
    return hidden, hidden.astype(np.float64) @ WEIGHT.T.astype(np.float64)


def by_hand(logits: Any, k: int) -> Any:
    return np.argsort(-logits, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize(("error", "k"), [(0.02, 5), (0.3, 3)])
def test_of_a_hundred_thousand_rows_every_wrong_place_is_found_and_no_right_one_accused(error: float, k: int) -> None:
    hidden, logits = asked(100_000)
    scores = (logits + np.random.default_rng(2).uniform(-0.99 * error, 0.99 * error, logits.shape)).astype(np.float32)
    given, true = by_hand(scores, k), by_hand(logits, k)
    wrong = given != true
    found = ENGINE.certify(hidden, scores=scores, error=error, k=k)
    assert wrong.sum() > 1000 and (found.ids == true).all() and found.proved.all()
    assert not found.certain[wrong].any()  # also of ids that are missing: their places hold others
    told = found.asked == 0
    assert found.certain[told].all() and not found.certain[~told].all(axis=1).any()
    assert np.abs(found.logits - np.take_along_axis(logits, true, 1)).max() <= error * 1.001
    assert np.abs(found.logits - np.take_along_axis(logits, true, 1))[~told].max() < 1e-12
    # A place is accused where some error within the bound gives it to another class: two neighbours within twice the error.
    rising = -np.sort(-scores.astype(np.float64), axis=1)
    near = rising[:, :-1] - rising[:, 1:] <= 2 * error * (1 + 1e-9)
    overlaps = (near | np.pad(near[:, :-1], ((0, 0), (1, 0))))[:, :k]
    assert (found.certain[found.asked < 200] == ~overlaps[found.asked < 200]).all()


def test_scores_of_int8_weights_are_certified_by_their_bound() -> None:
    hidden, logits = asked(300)
    scale = np.abs(WEIGHT).max(axis=1, keepdims=True) / 127
    scores = hidden @ (np.round(WEIGHT / scale) * scale).T
    bound = bounds_of(ENGINE.layer, hidden.astype(np.float64))["int8 weights"]
    found = ENGINE.certify(hidden, scores=scores, error=bound, k=4)
    assert (found.ids == by_hand(logits, 4)).all() and (by_hand(scores, 4) != by_hand(logits, 4)).any()
    assert 0 < found.asked.mean() < 20


def test_exact_scores_need_no_rows_and_ties_do() -> None:
    hidden, logits = asked(50)
    ids, values = found = ENGINE.certify(hidden, scores=logits, error=1e-12)
    assert (ids == by_hand(logits, 10)).all() and (values == np.take_along_axis(logits, ids, 1)).all()
    assert not found.asked.any() and found.certain.all() and (found.error < 1e-11).all()
    twice = hl.compile(hl.Layer(np.concatenate([WEIGHT, WEIGHT])), delta=0.0)
    tied = twice.certify(hidden, scores=np.tile(logits, 2), error=0.0, k=3)
    assert (tied.ids == twice.topk(hidden, k=3).ids).all() and tied.proved.all() and not tied.certain[:, :2].any()


@pytest.mark.parametrize("wrong", [5.0, np.nan, -np.inf])
def test_an_error_that_does_not_hold_is_noticed_where_rows_are_read(wrong: float) -> None:
    hidden, logits = asked(40)
    scores, best = logits.copy(), by_hand(logits, 2)
    scores[np.arange(40), best[:, 0]] = wrong if not np.isfinite(wrong) else logits[np.arange(40), best[:, 1]]
    found = ENGINE.certify(hidden, scores=scores, error=1e-6, k=2)
    assert (found.ids == best).all() and (found.asked > 0).all()


def test_an_error_that_nobody_knows_asks_the_engine() -> None:
    hidden, logits = asked(6)
    error = np.array([0.01, np.inf, 0.01, 50.0, 0.01, 0.01])
    found = ENGINE.certify(hidden, scores=logits, error=error, k=7)
    assert (found.ids == by_hand(logits, 7)).all() and (found.asked == 200).tolist() == [False, True, False, True, False, False]


def test_torch_in_torch_out() -> None:
    torch = pytest.importorskip("torch")
    hidden, logits = asked(4)
    found = ENGINE.certify(torch.tensor(hidden), scores=torch.tensor(logits), error=0.1, k=3)
    assert isinstance(found.ids, torch.Tensor) and (found.ids.numpy() == by_hand(logits, 3)).all()
    assert ENGINE.certify(hidden[:0], scores=logits[:0], error=0.1).ids.shape == (0, 10)


@pytest.mark.parametrize(
    ("scores", "error", "kind", "said"),
    [
        (np.zeros((4, 3)), 0.1, ShapeError, r"scores has shape \[4, 3\]; expected \[4, 200\]"),
        (np.zeros((4, 200)), np.zeros(3), ShapeError, r"error has shape \[3\]; expected one number, \[4\], \[1, 200\] or all"),
        (np.zeros((4, 200)), -0.1, OptionError, "error holds NaN or a negative number"),
        (np.zeros((4, 200)), np.nan, OptionError, "error holds NaN or a negative number"),
    ],
)
def test_what_says_nothing_of_every_class_is_refused(scores: Any, error: Any, kind: type[HeadlongError], said: str) -> None:
    with pytest.raises(kind, match=said):
        ENGINE.certify(asked(4)[0], scores=scores, error=error)
