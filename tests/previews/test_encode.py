"""The encoder: no row is farther from its codes than they claim."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from adversarial import DTYPES
from headlong.dtypes import Doubles
from headlong.layers.matrix import Layer
from headlong.previews.encode import Encoded, Group, Groups, encode
from headlong.previews.whitening import Basis, whiten

GROUPS: dict[int, Groups] = {
    1: (Group(0, 1, True),),
    7: (Group(0, 3, True), Group(3, 7, False)),
    65: (Group(0, 33, True), Group(33, 65, True)),
    130: (Group(0, 30, True), Group(30, 96, False), Group(96, 120, True), Group(120, 130, False)),
    300: (Group(0, 32, True), Group(32, 300, True)),
}
"""By the number of coordinates: groups that end anywhere."""


def layer_of(dim: int, dtype: str = "float32") -> Layer:
    rng = np.random.default_rng(dim)
    weight = rng.standard_normal((197, dim)) * np.exp(rng.standard_normal((197, 1)))
    weight[5], weight[66] = 0.0, weight[67]
    weight[100] *= 1e-4
    if dtype != "float16":
        weight[3], weight[130] = weight[3] * 1e25, weight[130] * 1e-25
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return Layer(weight.astype(kind), rng.standard_normal(197).astype(np.float32))


def basis_for(layer: Layer) -> Basis:
    vectors = np.random.default_rng(1).standard_normal((400, layer.dim))
    return whiten(layer.weight, vectors * np.arange(1, layer.dim + 1) ** -0.5)


def read(found: Encoded, groups: Groups, vocab: int) -> Doubles:
    """What the codes mean, ``[vocab, dim]``."""
    total, codes = np.zeros((vocab, groups[-1].stop)), iter(zip(found.codes, found.scale.astype(np.float64), strict=True))
    for start, stop, coded in groups:
        if coded:
            own, scale = next(codes)
            total[:, start:stop] = scale[:, None] * own
    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", GROUPS)
def test_nothing_is_lost_beyond_what_is_said(dtype: str, dim: int) -> None:
    """Against the rows in float64, rotated in float64."""
    layer, groups = layer_of(dim, dtype), GROUPS[dim]
    basis = basis_for(layer)
    found = encode(layer, basis, groups)
    rows = layer.weight.astype(np.float64) - basis.centre
    assert (np.flatnonzero(found.uncoded) == ([] if dtype == "float16" else [3])).all()
    meant = read(found, groups, layer.vocab)
    rotated = np.where(found.uncoded[:, None], 0.0, rows @ basis.back)
    for g, group in enumerate(groups):
        part = slice(group.start, group.stop)
        lost = np.linalg.norm((rotated - meant)[:, part], axis=1)
        assert (lost <= found.lost[g] + 1e-13 * np.linalg.norm(rotated[:, part], axis=1)).all()
        if dim > 1:  # where a code is off by no more than roundings are
            assert np.median(lost) >= 0.8 * np.median(found.lost[g]), "and no more is claimed than that"
    assert (np.linalg.norm(meant, axis=1) <= found.size * (1 + 1e-12)).all()
    assert (np.linalg.norm(rows, axis=1) <= found.length)[~found.uncoded].all()
    base = rows @ basis.mean + layer.bias
    np.testing.assert_allclose(found.base[~found.uncoded], base[~found.uncoded], rtol=1e-6, atol=1e-12)


def test_the_first_groups_alone_are_coded_as_with_all_others() -> None:
    layer = layer_of(130, "float16")
    basis = basis_for(layer)
    whole = (Group(0, 17, True), Group(17, 64, True), Group(64, 130, False))
    all_, first = encode(layer, basis, whole), encode(layer, basis, whole[:2])
    for mine, theirs in zip(all_.codes, first.codes, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for name in ("scale", "base", "length", "uncoded"):
        np.testing.assert_allclose(getattr(all_, name), getattr(first, name), rtol=1e-6, err_msg=name)
