"""The whitened basis: exact products in it, whatever calibrates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headlong.previews.whitening import whiten
from plans import decaying

CALIBRATIONS: dict[str, Any] = {
    "plenty": lambda rng, dim: rng.standard_normal((300, dim)) * np.arange(1, dim + 1) ** -0.5 + 1,
    "one": lambda rng, dim: rng.standard_normal((1, dim)),
    "all equal": lambda rng, dim: np.ones((20, dim)) * 3,
    "zeros": lambda rng, dim: np.zeros((5, dim)),
    "fewer than coordinates": lambda rng, dim: rng.standard_normal((max(1, dim // 3), dim)),
    "one direction": lambda rng, dim: rng.standard_normal((50, 1)) * rng.standard_normal(dim),
    "tiny": lambda rng, dim: rng.standard_normal((50, dim)) * 1e-30,
    "huge": lambda rng, dim: rng.standard_normal((50, dim)) * 1e30,
}


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("dim", [1, 7, 65])
def test_products_in_the_basis(calibration: str, dim: int) -> None:
    """``A (hidden - mean) = B x'`` within what the basis says is lost, and little is."""
    rng = np.random.default_rng(dim)
    weight = rng.standard_normal((90, dim)).astype(np.float32)
    basis = whiten(weight, CALIBRATIONS[calibration](rng, dim))
    rows = weight.astype(np.float64) - basis.centre
    vectors = rng.standard_normal((30, dim)) - basis.mean * (np.abs(basis.mean) < 1e6)
    rotated = (rows @ basis.back) @ (vectors @ basis.rotation.astype(np.float64)).T
    bound = basis.lost * np.linalg.norm(rows, axis=1)[:, None] * np.linalg.norm(vectors, axis=1)
    assert (np.abs(rows @ vectors.T - rotated) <= bound).all()
    assert basis.lost < 1e-8 and np.isfinite(basis.rotation).all()


def test_the_basis_whitens_and_sorts() -> None:
    layer, hidden = decaying(500, 40)
    hidden = hidden[:300]
    basis = whiten(layer.weight, hidden.astype(np.float64))
    vectors = (hidden - basis.mean) @ basis.rotation
    covariance = vectors.T @ vectors / len(vectors) / basis.scale**2
    np.testing.assert_allclose(covariance, np.eye(40), atol=0.02)
    energy = (((layer.weight - basis.centre) @ basis.back) ** 2).sum(axis=0)
    assert (np.diff(energy) <= 1e-6 * energy[0]).all()


def test_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = decaying(300, 20)
    whole = whiten(layer.weight, hidden.astype(np.float64))
    monkeypatch.setattr("headlong.previews.whitening.PIECE", 1)
    parts = whiten(layer.weight, hidden.astype(np.float64))
    np.testing.assert_allclose(np.abs(whole.back), np.abs(parts.back), rtol=1e-3, atol=1e-3 * np.abs(whole.back).max())


def test_products_in_float64_where_float32_will_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = decaying(300, 40, 1.0)
    wide, real, asked = hidden.astype(np.float64), np.linalg.cholesky, []

    def first_fails(matrix: np.ndarray) -> np.ndarray:
        asked.append(matrix)
        if len(asked) == 1:
            raise np.linalg.LinAlgError("not positive definite")
        return real(matrix)

    usual = whiten(layer.weight, wide)
    monkeypatch.setattr(np.linalg, "cholesky", first_fails)
    again = whiten(layer.weight, wide)
    np.testing.assert_allclose(asked[0], asked[1], rtol=1e-4, atol=1e-5)
    assert (asked[0] != asked[1]).any()
    np.testing.assert_allclose(again.scale, usual.scale, rtol=1e-5)
