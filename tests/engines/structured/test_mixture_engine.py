"""The mixture engine where it is hard: wide normalisers, ties, classes behind the lists, one component, pooled contexts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import headlong as hl
from headlong.engines.mixture.engine import MixtureEngine
from headlong.engines.mixture.normaliser_width import close_width
from headlong.engines.mixture.parts import QueryCost
from headlong.engines.mixture.ranking import ahead
from headlong.engines.mixture.widths import LARGEST_K, wrong_by
from headlong.errors import DtypeError, NonFiniteError, OptionError, ShapeError
from headlong.layers.mixture import MixtureLayer
from headlong.previews.conformal_bounds import least_margin
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


@pytest.mark.parametrize("parts", ["full", "cascade"])
@pytest.mark.parametrize("size", [0.02, 0.5, 3.0])
@pytest.mark.parametrize("options", [{}, {"link": hl.Gss()}, {"pooled": True}], ids=str)
def test_ids_are_proved_flat_or_peaked(options: dict[str, Any], size: float, parts: str, rng: np.random.Generator) -> None:
    layer = mixture(rng, 700, size, **options)
    hidden = rng.standard_normal((3, 16))
    reference = exact(layer, hidden)
    for delta_ids in (0.0, 1e-3):
        engine = hl.compile(layer, parts=parts, extra=0, delta_ids=delta_ids)
        for eps in (None, np.inf):
            top = engine.topk(hidden, 7, eps=eps)
            assert top.proved.all() or delta_ids > 0
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


def test_calibrated_normalisers_decide_most_rankings(rng: np.random.Generator, tmp_path: Path) -> None:
    layer = mixture(rng, 2000, 0.6)
    hidden = rng.standard_normal((900, 16))
    engine = hl.compile(layer, parts="cascade", delta=0.1, delta_ids=0.1, calibration=hidden[:700], threads=1)
    assert isinstance(engine, MixtureEngine)
    assert engine.promise.over == {"calibration", "query"}
    reference = exact(layer, hidden[700:])
    wrong = far = 0
    for k in (3, 10):
        top = engine.topk(hidden[700:], k, eps=np.inf)
        best = np.argsort(-reference, axis=1, kind="stable")[:, :k]
        wrong += int((top.ids != best).any(axis=1).sum())
        far += int((np.abs(top.log_probs - np.take_along_axis(reference, top.ids, 1)).max(axis=1) > top.error).sum())
    # 200 vectors that miss with probability 0.1 each, asked twice: 72 is five standard deviations above 40
    assert wrong <= 72
    assert far <= 72
    assert np.median(top.error) < 0.5 * np.median(engine.parts.rankings(*_first(engine, hidden[700]))[2].radius)
    longer = engine.topk(hidden[700:710], 30)  # longer lists than those that were learned from
    assert (longer.ids == np.argsort(-reference[:10], axis=1, kind="stable")[:, :30]).all()
    engine.save(tmp_path / "mixture.safetensors")
    again = hl.load(tmp_path / "mixture.safetensors", threads=1).topk(hidden[700:720], 10)
    assert (again.ids == engine.topk(hidden[700:720], 10).ids).all()


def _first(engine: MixtureEngine, row: Doubles) -> tuple[Any, ...]:
    return engine.parts.contexts(row)[0], 32, np.inf, 0.0, QueryCost()


def test_calibration_serves_a_proof_and_says_what_it_is_too_small_for(rng: np.random.Generator) -> None:
    layer, hidden = mixture(rng, 2000, 0.6), rng.standard_normal((300, 16))
    proved = hl.compile(layer, parts="cascade", delta=0.0, calibration=hidden)
    top = proved.topk(hidden[:5], 10)
    assert top.proved.all()
    assert proved.promise.over == set()
    assert (top.ids == np.argsort(-exact(layer, hidden[:5]), axis=1, kind="stable")[:, :10]).all()
    few = hl.compile(layer, delta_ids=1e-3, calibration=hidden)
    assert "4,510 calibration vectors or more" in few.reason
    assert few.promise.over == {"query"}
    with pytest.raises(ShapeError, match="calibration has no rows"):
        hl.compile(layer, calibration=hidden[:0])


def test_what_was_learned_from_short_vectors_says_nothing_of_long_ones(rng: np.random.Generator) -> None:
    """Vectors next to nothing have one context each, whose normaliser is learned as if it were every query's."""
    layer = mixture(rng, 2000, 0.6)
    hidden = rng.standard_normal((760, 16))
    engine = hl.compile(layer, parts="cascade", delta=0.1, delta_ids=0.1, calibration=1e-4 * hidden[:700], threads=1)
    assert isinstance(engine, MixtureEngine)
    assert engine.widths is not None
    for scale in (1.0, 0.0):
        asked = scale * hidden[700:]
        reference, top = exact(layer, asked), engine.topk(asked, 5)
        off = np.abs(top.log_probs - np.take_along_axis(reference, top.ids, 1)).max(axis=1)
        # 60 vectors, each of them off with probability 0.1: 19 is more than five standard deviations above 6
        assert (off > top.error).sum() <= 19
        assert (top.ids != np.argsort(-reference, axis=1, kind="stable")[:, :5]).any(axis=1).sum() <= 19


def test_an_answer_is_wrong_where_errors_turn_any_of_its_pairs_round(rng: np.random.Generator) -> None:
    exponents = np.log(rng.random((3, 12)))
    exponents = exponents[:, np.argsort(-np.exp(exponents).sum(axis=0))]
    errors, terms = rng.standard_normal(3) * 0.3, np.exp(exponents)
    found = wrong_by(exponents, errors, np.zeros(3))
    assert found.shape == (LARGEST_K,) and not found[12:].any()
    for k in range(1, 12):
        pairs = [(i, j) for i in range(k) for j in range(i + 1, 12)]
        rests_on = [(i, i + 1) for i in range(k - 1)] + [(k - 1, j) for j in range(k, 12)]
        gaps = {pair: terms[:, pair[0]] - terms[:, pair[1]] for pair in pairs}
        wrong = any((gap * np.exp(-errors)).sum() < 0 for gap in gaps.values())
        closest = min(gaps[pair].sum() / np.abs(gaps[pair]).sum() for pair in rests_on)
        assert abs(found[k - 1] - (closest if wrong else 0.0)) < 1e-12
    assert found.any()
    assert not wrong_by(exponents, np.full(3, 0.7), np.zeros(3)).any()  # shared: nothing turns


def test_margins_leave_as_many_answers_wrong_as_were_promised(rng: np.random.Generator) -> None:
    scores = np.where(rng.random(999) < 0.2, rng.random(999), 0.0)
    margin = least_margin(scores, 0.05)
    assert 0.03 <= (scores >= margin).mean() <= 0.05
    assert (scores >= np.nextafter(margin, 0.0)).sum() == (scores >= margin).sum() + 1
    assert least_margin(np.zeros(99), 0.01) <= 1e-300, "no wrong answer: all stand"
    assert least_margin(np.zeros(98), 0.01) == np.inf


def test_a_prefix_is_as_wide_as_its_normalisers_have_to_be(rng: np.random.Generator) -> None:
    energy = 1 / np.arange(1, 41.0)
    turn = np.linalg.qr(rng.standard_normal((40, 40)))[0]
    rows, bias = rng.standard_normal((900, 40)) * energy @ turn, rng.standard_normal(900)
    layer = hl.Layer(rows.astype(np.float32), bias.astype(np.float32))
    vectors = rng.standard_normal((600, 40)) @ turn
    assert close_width(layer, vectors, 1.0) == 16
    assert close_width(layer, vectors, 1e-9) is None
    wide = close_width(layer, vectors, 0.02)
    assert wide is not None
    assert wide > 16
    engine = hl.compile(layer, "cascade", width=wide, calibration=vectors)
    off = engine.topk(vectors[:50], 32, eps=np.inf).lse - hl.compile(layer, "full").lse(vectors[:50]).lse
    assert np.abs(off - np.median(off)).max() <= 0.02


def test_what_a_mixture_is_counted_against_is_exact(rng: np.random.Generator) -> None:
    """Whatever it promises of log-probabilities: a guess would find ids wrong that are right."""
    layer, hidden = mixture(rng, 700, 0.5), rng.standard_normal((300, 16))
    engine = hl.compile(layer, parts="cascade", eps=np.inf, delta_ids=0.2, calibration=rng.standard_normal((2000, 16)))
    reference = exact(layer, hidden)
    np.testing.assert_allclose(engine.every_class(hidden)[1], reference, rtol=0, atol=1e-8)
    found = np.concatenate([engine.topk(one[None], 5).ids for one in hidden])
    wrong = (np.argsort(-reference, axis=1, kind="stable")[:, :5] != found).any(axis=1)
    counted = engine.check(hidden, 5).ids
    assert counted is not None and counted.failures == int(wrong.sum())
