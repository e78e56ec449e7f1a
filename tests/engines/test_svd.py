"""SVD-softmax: the rotation is exact, the weighted one predicts better, and the engine is the published algorithm."""

from __future__ import annotations

import numpy as np
import pytest

import headlong as hl
from adversarial import CASES, build
from headlong.engines.methods.svd import rotation
from headlong.engines.reference.gumbel import gumbels
from headlong.errors import NonFiniteError, OptionError, ShapeError
from oracle import logsumexp

RNG = np.random.default_rng(11)
WEIGHT = RNG.standard_normal((900, 40)).astype(np.float32)
BIAS = RNG.standard_normal(900).astype(np.float32)
SPECTRUM = np.exp(-np.arange(40) / 6)
HIDDEN = (RNG.standard_normal((600, 40)) * SPECTRUM) @ np.linalg.qr(RNG.standard_normal((40, 40)))[0]


@pytest.mark.parametrize("calibration", [None, HIDDEN[:500]], ids=["plain", "weighted"])
def test_rotated_logits_are_the_logits(calibration: np.ndarray | None) -> None:
    forth, back = rotation(WEIGHT, calibration)
    wide = WEIGHT.astype(np.float64)
    found, expected = (wide @ forth) @ (HIDDEN @ back).T, wide @ HIDDEN.T
    assert np.abs(found - expected).max() < 1e-10
    energy = ((wide @ forth) ** 2).sum(axis=0)
    assert (np.diff(energy) <= 1e-9 * energy[0]).all(), "columns are not in the order of their energy"


def test_plain_rotation_is_the_svd() -> None:
    forth, _ = rotation(WEIGHT)
    singular = np.linalg.svd(WEIGHT.astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(np.linalg.norm(WEIGHT.astype(np.float64) @ forth, axis=0), singular)


def test_weighted_predicts_logits_better() -> None:
    """Mean squared residual of unseen logits from the first columns: far below plain, and the best any can do."""
    unseen, wide = HIDDEN[500:], WEIGHT.astype(np.float64)
    lost = {}
    for name, calibration in (("plain", None), ("weighted", HIDDEN[:500])):
        forth, back = rotation(WEIGHT, calibration)
        preview = (wide @ forth[:, :8]) @ (unseen @ back[:, :8]).T
        lost[name] = float(((preview - wide @ unseen.T) ** 2).mean())
    assert lost["weighted"] < 0.3 * lost["plain"]


@pytest.mark.parametrize("calibration", [None, HIDDEN[:500]], ids=["plain", "weighted"])
def test_the_engine_is_the_published_algorithm(calibration: np.ndarray | None) -> None:
    """Preview with the full bias, N best exactly, one softmax over both: written out densely in float64."""
    engine = hl.compile(hl.Layer(WEIGHT, BIAS), "svd", width=5, rows=60, calibration=calibration)
    forth, back = rotation(WEIGHT, calibration)
    hidden = HIDDEN[500:520]
    preview = (hidden @ back[:, :5]) @ (WEIGHT.astype(np.float64) @ forth[:, :5]).T + BIAS
    exact = hidden @ WEIGHT.astype(np.float64).T + BIAS
    best = np.argsort(-preview, axis=1)[:, :60]
    mixed = preview.copy()
    np.put_along_axis(mixed, best, np.take_along_axis(exact, best, axis=1), axis=1)
    found, given = engine.topk(hidden, 8), engine.log_prob(hidden, np.arange(20)[:, None])
    np.testing.assert_allclose(found.lse, logsumexp(mixed), atol=1e-4)
    np.testing.assert_allclose(engine.lse(hidden).lse, logsumexp(mixed), atol=1e-4)
    assert np.isinf(found.error).all() and not found.proved.any() and (found.cost.rows == 60).all()
    np.testing.assert_allclose(given.logits[:, 0], exact[np.arange(20), np.arange(20)], rtol=1e-12)
    drawn = engine.sample(hidden, 2, 0.8, seed=4)
    for b in range(20):
        among = best[b][np.argsort(-exact[b, best[b]])][:8]
        assert (found.ids[b] == among).all()
        assert drawn.ids[b].tolist() == [int(np.argmax(mixed[b] / 0.8 + gumbels(4, b, n, np.arange(900)))) for n in (0, 1)]
        np.testing.assert_allclose(found.logits[b], exact[b, among], rtol=1e-12)


def test_defaults_are_the_papers() -> None:
    engine = hl.compile(hl.Layer(WEIGHT), "svd")
    assert engine.plan.preview is not None
    assert engine.plan.preview.rows == 57 and engine.plan.preview.columns.shape == (900, 5)
    assert engine.promise.delta == 1 and np.isinf(engine.promise.eps)


@pytest.mark.parametrize("name", CASES)
def test_every_layer_has_a_rotation(name: str) -> None:
    case = build(name, "float32")
    for calibration in (None, case.hidden[1:].astype(np.float64)):
        if calibration is not None and not calibration.any():
            continue
        forth, back = rotation(case.layer.weight, calibration)
        assert np.isfinite(forth).all() and np.isfinite(back).all()
        error = np.abs(forth @ back.T - np.eye(case.layer.dim)).max()
        assert error < 1e-6


def test_refusals() -> None:
    layer = hl.Layer(WEIGHT)
    for options, error, message in (
        ({"width": 41}, OptionError, "width is 41; expected a whole number from 1 to 40"),
        ({"width": 0}, OptionError, "width is 0"),
        ({"rows": 901}, OptionError, "rows is 901"),
        ({"rows": 2.5}, OptionError, "rows is 2.5"),
        ({"calibration": np.zeros((3, 40))}, OptionError, "no vector other than zero"),
        ({"calibration": np.zeros((0, 40))}, ShapeError, "no rows"),
        ({"calibration": np.zeros((3, 4))}, ShapeError, r"calibration has shape \[3, 4\]"),
    ):
        with pytest.raises(error, match=message):
            hl.compile(layer, "svd", **options)
    with pytest.raises(NonFiniteError, match="use full"):
        hl.compile(hl.Layer(np.full((9, 4), 1.6e38, np.float32)), "svd", calibration=np.ones((2, 4)))
