"""Structured layers and SVD-softmax on a device: against the heads' own distributions in float64, and the CPU's engines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import headlong as hl
from devices import GPU, PLACE, tensor
from headlong.errors import OptionError
from headlong.layers.mixture import MixtureLayer
from headlong.layers.tree import TreeLayer
from oracle import check_topk, check_within, logsumexp, truth
from structured_layers import Case, made
from thinned import every, left_out

# a GPU's inf - inf is silent; the interpreter's is NumPy's, which warns
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.usefixtures("plain_interpreter")]

KINDS = ("experts", "moc", "mos", "tree", "two-level")
PROVED = tuple(kind for kind in KINDS if kind != "moc")
"""One softmax over a pooled context takes the way of any mixture."""
SLACK = 1e-10
"""Several float64 roundings of numbers below a hundred."""
FILTERS: list[dict[str, Any]] = [{}, {"temperature": 0.7, "top_p": 0.8}, {"top_k": 9, "min_p": 0.01}]


def case_of(kind: str, dim: int = 16, vocab: int = 67) -> Case:
    """Three queries, the first of which is zero: a tree of equal halves is full of ties there."""
    return made(kind, dim, vocab, rows=3, **{"experts": {"experts": 3}, "mos": {"components": 3}}.get(kind, {}))


def check_ranking(case: Case, top: Any) -> None:
    """Ids and log-probabilities against the head's own, within the error that each row states."""
    assert top.proved.all()
    for b in range(len(case.hidden)):
        check_topk(case.log_probs[b], top.ids[b], top.log_probs[b], float(top.error[b]) + SLACK)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_heads_own(kind: str) -> None:
    case = case_of(kind)
    engine, cpu = hl.compile(case.layer, device=PLACE), hl.compile(case.layer, delta=0.0)
    assert f"DeviceEngine({engine.name}: vocab=67" in repr(engine)
    assert engine.topk(tensor(case.hidden), 2).ids.device.type == ("cuda" if GPU else "cpu")
    for k in (1, 5, 67):
        top = engine.topk(case.hidden, k)
        check_ranking(case, top)
        assert (top.ids == cpu.topk(case.hidden, k).ids).all() and (top.error <= 0.01).all()
        assert (top.cost.rows > 0).all() and (top.cost.bytes > 0).all()
    ids = np.array([[0, 66], [3, 3], [40, 12]])
    scored = engine.log_prob(case.hidden, ids)
    check_within(scored.log_probs, np.take_along_axis(case.log_probs, ids, 1), scored.error[:, None], SLACK)
    normal, expected = engine.lse(case.hidden), cpu.lse(case.hidden, eps=1e-9)
    check_within(normal.lse, expected.lse, normal.error + expected.error, SLACK)


@pytest.mark.one_of("filters")
@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_of_the_cpu(kind: str, filters: dict[str, Any]) -> None:
    case = case_of(kind, 9, 41)
    engine, cpu = hl.compile(case.layer, device=PLACE), hl.compile(case.layer, delta=0.0)
    wish = {"n": 2, "seed": 2**63 + 5, "row0": 2**40, **filters}
    drawn, expected = (reader.sample(case.hidden, **wish) for reader in (engine, cpu))
    assert (drawn.ids == expected.ids).all() and drawn.proved.all()
    np.testing.assert_allclose(drawn.score, expected.score, rtol=1e-9)


@pytest.mark.parametrize("kind", every(2, PROVED))
def test_masks_restrict_the_distribution(kind: str) -> None:
    case = case_of(kind)
    engine = hl.compile(case.layer, device=PLACE)
    allowed = [1, 2, 3, 9, 40, 64]
    reference = np.where(np.isin(np.arange(67), allowed), case.log_probs, -np.inf)
    lse = logsumexp(reference)
    top = engine.topk(case.hidden, 8, allowed=allowed)
    for b in range(3):
        check_topk(reference[b] - lse[b], top.ids[b], top.log_probs[b], float(top.error[b]) + SLACK)
    assert np.isin(engine.sample(case.hidden, 4, exclude=[i for i in range(67) if i not in allowed], seed=1).ids, allowed).all()
    alone = engine.topk(case.hidden, 2, allowed=[[3, 5], [7], [0, 66]])
    assert [set(row) - {-1} for row in alone.ids.tolist()] == [{3, 5}, {7}, {0, 66}]


@pytest.mark.parametrize("kind", every(3, PROVED))
def test_rows_that_are_no_numbers_prove_nothing(kind: str) -> None:
    case = case_of(kind, 9, 41)
    hidden = case.hidden.copy()
    hidden[1, 3] = np.nan
    engine = hl.compile(case.layer, device=PLACE)
    top = engine.topk(hidden, 2)
    assert top.proved.tolist() == [True, False, True] and top.ids[1].tolist() == [-1, -1] and math.isnan(top.log_probs[1, 0])
    assert (top.ids[[0, 2]] == engine.topk(case.hidden, 2).ids[[0, 2]]).all()
    drawn = engine.sample(hidden, 2, seed=1)
    assert drawn.ids[1].tolist() == [-1, -1] and drawn.proved.tolist() == [[True] * 2, [False] * 2, [True] * 2]
    assert engine.topk(hidden[:0], 2).ids.shape == (0, 2) and engine.sample(hidden[:0], 2).ids.shape == (0, 2)


@pytest.mark.parametrize("kind", ["tree", "two-level"])
def test_a_descent_without_room_ends_densely(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headlong.engines.device.tree.BEAM", 2)
    monkeypatch.setattr("headlong.engines.device.tree.OPENED", 8)
    case = case_of(kind, 8, 300)
    engine = hl.compile(case.layer, device=PLACE)
    engine._room = lambda level, k: 2
    top = engine.topk(case.hidden, 5)
    check_ranking(case, top)
    assert top.cost.dense.any() and (top.cost.rows[top.cost.dense] >= len(case.layer.weight)).all()
    monkeypatch.setattr(engine, "_finish", lambda call, best, ids, flags: (best, ids))
    with pytest.raises(AssertionError):  # what the test rests on: two nodes a level are too few
        check_ranking(case, engine.topk(case.hidden, 5))


def test_a_descent_reads_few_rows_where_the_distribution_is_peaked() -> None:
    case = case_of("tree", 8, 900)
    peaked = case._replace(hidden=case.hidden[1:] * 8)
    engine, cpu = hl.compile(case.layer, device=PLACE), hl.compile(case.layer)
    top = engine.topk(peaked.hidden, 3)
    assert (top.ids == cpu.topk(peaked.hidden, 3).ids).all() and not top.cost.dense.any() and (top.cost.rows < 800).all()


def test_leaves_that_tie_are_ordered_by_class() -> None:
    children = np.array([[1, 2], [3, 4], [5, 6], [~7, ~3], [~5, ~1], [~6, ~2], [~4, ~0]])
    layer = TreeLayer(np.ones((7, 3), np.float32), None, children)
    top = hl.compile(layer, device=PLACE).topk(np.zeros((1, 3), np.float32), 3)
    assert top.ids.tolist() == [[0, 1, 2]] and top.cost.dense.all()


def balanced() -> tuple[MixtureLayer, Any]:
    """Two components, and classes 0 and 1 as likely as each other to seven digits, each by a component of its own."""
    rng = np.random.default_rng(4)
    weight, hidden = rng.standard_normal((60, 8)), rng.standard_normal((1, 5)).astype(np.float32)
    project, prior = rng.standard_normal((16, 5)).astype(np.float32), rng.standard_normal((2, 5)).astype(np.float32)
    contexts = np.tanh(project.astype(np.float64) @ hidden[0]).reshape(2, 8)
    share = np.exp(prior.astype(np.float64) @ hidden[0])
    low, high = 0.0, 9.0
    for _ in range(60):
        middle = (low + high) / 2
        weight[:2] = np.linalg.pinv(contexts).dot(np.array([[4.0, 0.0], [0.0, middle]])).T
        weight[2] = weight[0]  # equal in every component: a tie, by id
        z = contexts @ weight.astype(np.float32).astype(np.float64).T
        p = (share / share.sum()) @ np.exp(z - logsumexp(z)[:, None])
        low, high = (middle, high) if p[1] < p[0] else (low, middle)
    return MixtureLayer(hl.Layer(weight.astype(np.float32)), project, np.zeros(16, np.float32), prior), hidden


def test_a_mixture_whose_pairs_are_open_ends_in_exact_sums() -> None:
    """Which of two classes is the likelier hangs on normalisers that a float32 look knows to a few digits."""
    layer, hidden = balanced()
    engine, cpu = hl.compile(layer, device=PLACE), hl.compile(layer, delta=0.0)
    top, expected = (reader.topk(hidden, 20) for reader in (engine, cpu))
    assert (top.ids == expected.ids).all() and top.proved.all() and {0, 1, 2} <= set(top.ids[0].tolist())
    assert top.cost.rows[0] > 60 + 60, "the pair should have been open"
    sharp = engine.topk(hidden, 20, eps=1e-9)
    check_within(sharp.log_probs, cpu.topk(hidden, 20, eps=1e-9).log_probs, sharp.error[:, None], 1e-9)
    assert (sharp.error <= 1e-9).all()
    easy = engine.topk(hidden[:, ::-1].copy(), 2)
    assert easy.proved.all() and (easy.ids == cpu.topk(hidden[:, ::-1].copy(), 2).ids).all()


def low_rank(link: hl.Link | None = None) -> tuple[hl.Layer, Any]:
    """A layer that eight columns tell nearly all of, and three queries."""
    rng = np.random.default_rng(6)
    weight = rng.standard_normal((400, 24)) * np.arange(1, 25) ** -2.0 * 4
    bias = rng.standard_normal(400).astype(np.float32)
    return hl.Layer(weight.astype(np.float16), bias, link), rng.standard_normal((3, 24)).astype(np.float32)


@pytest.mark.parametrize("link", [left_out(None), hl.SoftCap(6.0)], ids=str)
def test_svd_softmax_is_that_of_the_cpu(link: hl.Link | None) -> None:
    layer, hidden = low_rank(link)
    engine, cpu = (hl.compile(layer, "svd", width=8, rows=60, **more) for more in ({"device": PLACE}, {}))
    top, expected = engine.topk(hidden, 10), cpu.topk(hidden, 10)
    assert (top.ids == expected.ids).all() and not top.proved.any() and np.isinf(top.error).all()
    np.testing.assert_allclose(top.logits, expected.logits, rtol=1e-12)  # exact rows
    np.testing.assert_allclose(top.lse, expected.lse, atol=1e-5)  # float32 previews
    assert (top.ids == np.argsort(-truth(layer, hidden).logits, axis=1, kind="stable")[:, :10]).all()
    assert (top.cost.rows == 60).all() and str(engine.promise) == str(cpu.promise)
    ids = np.array([[0, 399], [3, 3], [40, 12]])
    np.testing.assert_allclose(engine.log_prob(hidden, ids).log_probs, cpu.log_prob(hidden, ids).log_probs, atol=1e-5)
    for filters in ({}, {"temperature": 0.7}, {"top_k": 9}, {"top_p": 0.8}):
        drawn, wanted = (reader.sample(hidden, 3, seed=7, **filters) for reader in (engine, cpu))
        assert (drawn.ids == wanted.ids).all() and not drawn.proved.any()
    masked, wanted = (reader.topk(hidden, 80, exclude=np.arange(0, 400, 2)) for reader in (engine, cpu))
    assert (masked.ids == wanted.ids).all()
    assert (engine.topk(hidden, 3, allowed=[5, 9]).ids[:, 2] == -1).all()


def test_a_weight_that_lies_on_a_gpu_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers take tensors of a GPU, as ``hl.Layer`` does: copied to the host for plans, read where they are."""
    seen: list[Any] = []
    for kind in ("tree", "experts"):
        layer = case_of(kind).layer
        assert layer.resident is None
        monkeypatch.setattr(f"headlong.layers.{kind}.resident", lambda weight: seen.append(weight) or weight)
        again = type(layer).rebuilt(layer.tensors(), layer.facts())
        assert again.resident is seen[-1] and again.checksum() == layer.checksum()


def test_a_trained_layer_and_its_vectors(trained: hl.Layer, trained_hidden: Any) -> None:
    """A part of it: what the interpreter can read in a second."""
    rows = hl.Layer(trained.weight[:2000], None if trained.bias is None else trained.bias[:2000])
    places = np.arange(1, 3999).reshape(1999, 2)  # a heap: node n leads to 2 n + 1 and 2 n + 2, the last 2000 are leaves
    tree = TreeLayer(trained.weight[:1999], None, np.where(places < 1999, places, ~(places - 1999)))
    rng = np.random.default_rng(8)
    project = (rng.standard_normal((2 * trained.dim, trained.dim)) / 8).astype(np.float32)
    mixture = MixtureLayer(rows, project, np.zeros(2 * trained.dim, np.float32), project[:2])
    for layer in (rows, tree, mixture):
        engine, cpu = hl.compile(layer, device=PLACE), hl.compile(layer, delta=0.0)
        top, expected = (reader.topk(trained_hidden[:2], 10) for reader in (engine, cpu))
        assert (top.ids == expected.ids).all() and top.proved.all()
        check_within(top.log_probs, expected.log_probs, top.error[:, None] + expected.error[:, None], SLACK)


def test_what_is_refused() -> None:
    bands = made("bands", 8, 40).layer
    with pytest.raises(OptionError, match="a bands layer is read on the CPU"):
        hl.compile(bands, device=PLACE)
    with pytest.raises(OptionError, match="device is 'tpu'; expected 'cuda'"):
        hl.compile(case_of("tree").layer, device="tpu")
    if not GPU:
        with pytest.raises(OptionError, match="finds no GPU here; leave device out"):
            hl.compile(case_of("mos").layer, device="cuda")
