"""The encoder: no row is farther from its codes than they claim."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from adversarial import DTYPES
from headlong import native
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.plan import deinterleave
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
    rows, scale = deinterleave(found.codes, vocab), found.scale.astype(np.float64)
    total, place, number = np.zeros((vocab, groups[-1].stop)), 0, 0
    for start, stop, coded in groups:
        if coded:
            whole = rows[:, place : place + stop - start].astype(np.float64) - 128
            total[:, start:stop] = scale[number, :vocab, None] * whole
            place, number = place + -(-(stop - start) // 4) * 4, number + 1
    return total


@pytest.mark.parametrize("level", native.levels()[1:])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", GROUPS)
def test_nothing_is_lost_beyond_what_is_said(monkeypatch: pytest.MonkeyPatch, level: str, dtype: str, dim: int) -> None:
    """Against the rows in float64, rotated in float64."""
    monkeypatch.setenv("HEADLONG_ISA", level)
    layer, groups = layer_of(dim, dtype), GROUPS[dim]
    basis = basis_for(layer)
    found = encode(layer, basis, groups, 2)
    rows = layer.weight.astype(np.float64) - basis.centre
    uncoded = found.uncoded[: layer.vocab]
    assert (np.flatnonzero(uncoded) == ([] if dtype == "float16" else [3])).all() and not found.uncoded[layer.vocab :].any()
    meant = read(found, groups, layer.vocab)
    rotated = np.where(uncoded[:, None], 0.0, rows @ basis.back)
    for g, group in enumerate(groups):
        part = slice(group.start, group.stop)
        lost = np.linalg.norm((rotated - meant)[:, part], axis=1)
        slop = 1e-13 * np.linalg.norm(rotated[:, part], axis=1)
        claimed = found.lost[g, : layer.vocab].astype(np.float64) + found.rounded[g, : layer.vocab]
        assert (lost <= claimed + slop).all()
        if dim > 1:  # where a code is off by no more than roundings are
            assert np.median(lost) >= 0.8 * np.median(claimed), "and no more is claimed than that"
    assert (np.linalg.norm(meant, axis=1) <= found.size[: layer.vocab] * (1 + 1e-12)).all()
    assert (np.linalg.norm(rows, axis=1)[~uncoded] <= found.length[: layer.vocab][~uncoded]).all()
    base = rows @ basis.mean + layer.bias
    np.testing.assert_allclose(found.base[: layer.vocab][~uncoded], base[~uncoded], rtol=1e-6, atol=1e-12)


def test_threads_do_not_matter() -> None:
    layer, groups = layer_of(130), GROUPS[130]
    basis = basis_for(layer)
    for one, other in zip(encode(layer, basis, groups, 1), encode(layer, basis, groups, 3), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("level", native.levels()[1:])
def test_the_first_groups_alone_are_coded_as_with_all_others(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    layer = layer_of(130, "float16")
    basis = basis_for(layer)
    whole = (Group(0, 17, True), Group(17, 64, True), Group(64, 130, False))
    all_, first = encode(layer, basis, whole), encode(layer, basis, whole[:2])
    for name in ("codes", "scale", "base", "length", "uncoded"):
        np.testing.assert_array_equal(getattr(all_, name), getattr(first, name), err_msg=name)
    np.testing.assert_array_equal(all_.lost[:2], first.lost)
