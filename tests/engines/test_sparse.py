"""Sparsemax and entmax-1.5 from the top k: against bisection over all classes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import headlong as hl
from headlong.engines.sparsemax import Sparse, entmax15, sparsemax
from headlong.errors import InputError, OptionError

Doubles = NDArray[np.float64]


def bisected(f: Doubles, power: float) -> Doubles:
    """``max(f / power - tau, 0) ** power`` that sums to one, by another route than sorting."""
    x = f / power
    low, high = x.max(1, keepdims=True) - 1, x.max(1, keepdims=True)
    for _ in range(80):
        middle = (low + high) / 2
        enough = (np.maximum(x - middle, 0) ** power).sum(1, keepdims=True) >= 1
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return np.maximum(x - low, 0) ** power


@pytest.mark.parametrize("scale", [0.02, 0.3, 5.0])
@pytest.mark.parametrize("link", [None, hl.Gss(), hl.SoftCap(4.0)], ids=str)
@pytest.mark.parametrize(("rule", "power"), [(sparsemax, 1.0), (entmax15, 2.0)])
def test_sparse_distributions_are_those_of_all_classes(
    rule: Callable[..., Sparse], power: float, link: hl.Gss | hl.SoftCap | None, scale: float, rng: np.random.Generator
) -> None:
    layer = hl.Layer(rng.standard_normal((600, 20)).astype(np.float32), rng.standard_normal(600).astype(np.float32), link)
    hidden = rng.standard_normal((7, 20)) * scale
    for method in ("full", "cascade"):
        found = rule(hl.compile(layer, method), hidden, k=2)
        exact = bisected(layer.link(hidden @ layer.weight.astype(np.float64).T + layer.bias), power)
        dense = np.zeros_like(exact)
        for b, (ids, probs) in enumerate(zip(found.ids, found.probs, strict=True)):
            dense[b, ids[ids >= 0]] = probs[ids >= 0]
        np.testing.assert_allclose(dense, exact, atol=1e-9)
        np.testing.assert_allclose(dense.sum(1), 1, atol=1e-12)
        assert found.proved.all() and (np.diff(found.probs, axis=1) <= 0).all()


def test_what_cannot_be_read_is_named(rng: np.random.Generator) -> None:
    engine = hl.compile(hl.Layer(rng.standard_normal((9, 3)).astype(np.float32)))
    with pytest.raises(InputError, match="expected one over a single matrix"):
        sparsemax(None, np.zeros((1, 3)))  # type: ignore[arg-type]  # the wrong thing on purpose
    with pytest.raises(OptionError, match="k"):
        sparsemax(engine, np.zeros((1, 3)), k=0)
    assert sparsemax(engine, np.zeros((0, 3))).ids.shape[0] == 0
