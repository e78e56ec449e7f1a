"""The mixture engine where it is hard: wide normalisers, ties, classes behind the lists, one component, pooled contexts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import headlong as hl
from headlong.engines.mixture.ranking import ahead
from headlong.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from headlong.layers.mixture import MixtureLayer
from oracle import check_topk, check_within

Doubles = NDArray[np.float64]


def mixture(rng: np.random.Generator, vocab: int = 3000, size: float = 1.0, **options: Any) -> MixtureLayer:
    latent, dim, components = 24, 16, 4
    matrix = hl.Layer((rng.standard_normal((vocab, latent)) * size).astype(np.float32), None, options.pop("link", None))
    project, offset = rng.standard_normal((components * latent, dim)), rng.standard_normal(components * latent)
    return MixtureLayer(matrix, project / 4, offset / 4, rng.standard_normal((components, dim)) / 4, **options)


def exact(layer: MixtureLayer, hidden: Doubles) -> Doubles:
    """Log-probabilities in float64, by products of whole matrices."""
    made = np.tanh(hidden @ layer.project.astype(np.float64).T + layer.offset)
    contexts = made.reshape(len(hidden), layer.components, layer.latent)
    prior = hidden @ layer.prior.astype(np.float64).T
    prior -= np.logaddexp.reduce(prior, axis=1, keepdims=True)
    if layer.pooled:
        contexts, prior = np.einsum("nk,nkd->nd", np.exp(prior), contexts)[:, None], np.zeros((len(hidden), 1))
    f = layer.matrix.link(contexts @ layer.matrix.weight.astype(np.float64).T)
    f -= np.logaddexp.reduce(f, axis=2, keepdims=True)
    return np.asarray(np.logaddexp.reduce(f + prior[:, :, None], axis=1))


@pytest.mark.parametrize("size", [0.02, 0.5, 3.0])
@pytest.mark.parametrize("options", [{}, {"link": hl.Gss()}, {"pooled": True}], ids=str)
def test_ids_are_proved_flat_or_peaked(options: dict[str, Any], size: float, rng: np.random.Generator) -> None:
    layer = mixture(rng, 700, size, **options)
    hidden = rng.standard_normal((3, 16))
    reference = exact(layer, hidden)
    engine = hl.compile(layer, extra=0)
    for eps in (None, np.inf):
        top = engine.topk(hidden, 7, eps=eps)
        assert top.proved.all()
        for b in range(len(hidden)):
            check_topk(reference[b], top.ids[b], reference[b][top.ids[b]], 1e-10)
        check_within(top.log_probs, np.take_along_axis(reference, top.ids, 1), top.error[:, None], 1e-10)
        assert eps is not None or (top.error <= 0.01).all()


def test_equal_classes_come_in_the_order_of_their_ids(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((40, 24)).astype(np.float32)
    layer = mixture(rng)
    layer = MixtureLayer(hl.Layer(np.tile(rows, (5, 1))), layer.project, layer.offset, layer.prior)
    top = hl.compile(layer, delta=0.0).topk(rng.standard_normal((2, 16)), 20)
    assert top.proved.all()
    for ids in top.ids:
        assert (ids.reshape(-1, 5) % 40 == ids[::5, None] % 40).all() and (np.diff(ids.reshape(-1, 5), axis=1) > 0).all()


def test_a_pair_is_ahead_only_if_it_is_everywhere_in_the_box(rng: np.random.Generator) -> None:
    x, y, radius = rng.random((3, 500)), rng.random((3, 500)), rng.random(3) * 0.3
    claimed = ahead(x - y, radius)
    corners = np.stack(np.meshgrid(*([-1, 1],) * 3), -1).reshape(-1, 3) * radius
    true = np.all([(np.exp(corner)[:, None] * (x - y)).sum(0) >= 0 for corner in corners], axis=0)
    assert (claimed == true).all() and 0 < claimed.mean() < 1
    assert ahead(np.zeros((3, 1)), np.full(3, np.inf)).all()


def test_bad_layers_are_named(rng: np.random.Generator) -> None:
    matrix, project, offset, prior = hl.Layer(np.ones((5, 3), np.float32)), np.ones((6, 4)), np.ones(6), np.ones((2, 4))
    with pytest.raises(OptionError, match="expected headlong.Layer"):
        MixtureLayer(None, project, offset, prior)  # type: ignore[arg-type]  # the wrong thing on purpose
    with pytest.raises(ShapeError, match="2 components of 3 numbers"):
        MixtureLayer(matrix, project[:5], offset, prior)
    with pytest.raises(ShapeError, match=r"expected \[components, dim\]"):
        MixtureLayer(matrix, project, offset, prior[0])
    with pytest.raises(NonFiniteError, match="project holds NaN"):
        MixtureLayer(matrix, project * np.nan, offset, prior)
    with pytest.raises(DtypeError, match="prior is int64; expected float32"):
        MixtureLayer(matrix, project, offset, prior.astype(int))
    with pytest.raises(OptionError, match="extra"):
        hl.compile(MixtureLayer(matrix, project, offset, prior), extra=-1)


def test_what_a_mixture_is_counted_against_is_exact(rng: np.random.Generator) -> None:
    """Whatever it promises of log-probabilities: a guess would find ids wrong that are right."""
    layer, hidden = mixture(rng, 700, 0.5), rng.standard_normal((300, 16))
    engine = hl.compile(layer, eps=np.inf)
    reference = exact(layer, hidden)
    np.testing.assert_allclose(engine.every_class(hidden)[1], reference, rtol=0, atol=1e-8)
    found = np.concatenate([engine.topk(one[None], 5).ids for one in hidden])
    wrong = (np.argsort(-reference, axis=1, kind="stable")[:, :5] != found).any(axis=1)
    counted = engine.check(hidden, 5).ids
    assert counted is not None and counted.failures == int(wrong.sum())
