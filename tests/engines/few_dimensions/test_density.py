"""Kernel density as a layer: against the plain sum of kernels, and inside the engines' intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

import headlong as hl
from headlong.errors import NonFiniteError, OptionError, ShapeError
from headlong.layers.density import log_density, storage_error


@pytest.mark.parametrize("method", ["full", "cascade", "adaptive"])
@pytest.mark.parametrize(("dim", "bandwidth"), [(1, 0.1), (3, 0.7), (16, 1.5)])
def test_it_is_the_mean_of_kernels(rng: np.random.Generator, method: str, dim: int, bandwidth: float) -> None:
    points, queries = rng.standard_normal((700, dim)), rng.standard_normal((9, dim))
    layer = hl.Layer.gaussian_kernel(points, bandwidth)
    found = hl.compile(layer, method=method, eps=0.01, delta=0.0).lse(queries)
    distance = ((queries[:, None] - points) ** 2).sum(axis=2)
    kernels = np.exp(-distance / (2 * bandwidth**2)) / (2 * math.pi * bandwidth**2) ** (dim / 2)
    error = np.abs(log_density(found.lse, queries, 700, bandwidth) - np.log(kernels.mean(axis=1)))
    assert layer.bias is not None
    assert (error <= found.error + storage_error(layer.weight, layer.bias, queries) + 1e-12).all()
    assert (found.error <= 0.01).all()


def test_the_nearest_point_is_the_likeliest_class(rng: np.random.Generator) -> None:
    points, queries = rng.standard_normal((500, 4)), rng.standard_normal((20, 4))
    top = hl.compile(hl.Layer.gaussian_kernel(points, 0.5), method="cascade").topk(queries, 1)
    assert (top.ids[:, 0] == ((queries[:, None] - points) ** 2).sum(axis=2).argmin(axis=1)).all()


def test_one_point() -> None:
    layer = hl.Layer.gaussian_kernel([[2.0]], 1.0)
    found = hl.compile(layer).lse(np.array([[2.0]]))
    assert log_density(found.lse, [[2.0]], 1, 1.0)[0] == pytest.approx(-math.log(2 * math.pi) / 2)


@pytest.mark.parametrize(
    ("points", "bandwidth", "kind", "words"),
    [
        (np.zeros((3, 2)), 0.0, OptionError, "bandwidth is 0.0; expected a number above 0"),
        (np.zeros((3, 2)), math.nan, OptionError, "bandwidth is nan"),
        (np.zeros(3), 1.0, ShapeError, r"expected \[n, d\]"),
        (np.zeros((0, 2)), 1.0, ShapeError, "at least one point"),
        (np.full((3, 2), np.nan), 1.0, NonFiniteError, "points"),
        (np.full((3, 2), 1e30), 1.0, NonFiniteError, "subtract the points' mean"),
    ],
)
def test_points_that_make_no_layer(points: object, bandwidth: float, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        hl.Layer.gaussian_kernel(points, bandwidth)
