"""What every structured layer and engine promises; mixtures and experts where they are hard."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from headlong import native
from headlong.engines.few_allowed_classes import ListedClasses, sample_of
from headlong.engines.mixture.ranking import ahead
from headlong.engines.reference.gumbel import gumbels
from headlong.engines.structured.base import StructuredEngine
from headlong.errors import (
    DtypeError,
    InputError,
    MalformedFileError,
    NonFiniteError,
    OptionError,
    ShapeError,
    StoreError,
)
from headlong.heads import HEADS, build_head
from headlong.layers.experts import ExpertsLayer
from headlong.layers.mixture import MixtureLayer
from headlong.layers.structured import StructuredLayer, load_layer
from headlong.question import Filters
from headlong.store import open_file, write_file
from laws import chance
from oracle import check_topk, check_within, logsumexp
from structured_layers import TOLERANCE, Case, Doubles, made
from thinned import in_turn

STRUCTURED = [kind for kind in sorted(HEADS) if isinstance(build_head(kind, 4, 9).to_layer(), StructuredLayer)]
SHARING = ("moc", "mos")
"""Heads whose rows may be the embedding's."""
SHAPES = [(1, 2), (3, 7), (16, 65), (33, 257)]


def compiled(case: Case, **options: Any) -> StructuredEngine:
    return hl.compile(case.layer, delta=0.0, threads=1, **options)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", STRUCTURED)
def test_answers_are_the_heads_own(kind: str, shape: tuple[int, int]) -> None:
    case = made(kind, *shape)
    engine, vocab = compiled(case), shape[1]
    for k in {1, min(5, vocab), vocab}:
        top = engine.topk(case.hidden, k=k, eps=1e-9)
        assert top.proved.all()
        for b in range(len(case.hidden)):
            check_topk(case.log_probs[b], top.ids[b], top.log_probs[b], TOLERANCE + 1e-9)
        check_within(top.logits - top.lse[:, None], top.log_probs, np.zeros((1, 1)), TOLERANCE)
        assert top.cost.rows.any() and top.cost.bytes.any() and top.cost.path.startswith(engine.kind)
    ids = np.random.default_rng(0).integers(0, vocab, (len(case.hidden), 4))
    scored = engine.log_prob(case.hidden, ids)
    expected = np.take_along_axis(case.log_probs, ids, 1)
    check_within(scored.log_probs, expected, scored.error[:, None], TOLERANCE)
    check_within(scored.logits - scored.lse[:, None], scored.log_probs, np.zeros((1, 1)), TOLERANCE)
    normal = engine.lse(case.hidden)
    check_within(normal.lse, scored.lse, normal.error + scored.error, TOLERANCE)
    assert (scored.error <= engine.promise.eps).all()


@pytest.mark.parametrize("kind", STRUCTURED)
def test_masks_restrict_the_distribution(kind: str) -> None:
    case = made(kind, 16, 1300)
    engine, rng = compiled(case), np.random.default_rng(1)
    masks = {
        "few": rng.choice(1300, 20, replace=False),
        "many": np.setdiff1d(np.arange(1300), rng.choice(1300, 30, replace=False)),
    }
    for allowed in masks.values():
        live = np.isin(np.arange(1300), allowed)
        reference = np.where(live, case.log_probs, -np.inf)
        lse = logsumexp(reference)
        for words in ({"allowed": allowed}, {"exclude": np.flatnonzero(~live)}):
            top = engine.topk(case.hidden, k=25, **words)
            for b in range(len(case.hidden)):
                check_topk(reference[b] - lse[b], top.ids[b], top.log_probs[b], TOLERANCE)
            shift = engine.lse(case.hidden, eps=1e-9).lse
            check_within(engine.lse(case.hidden, **words).lse, lse + shift, top.error, TOLERANCE + 1e-9)
            drawn = engine.sample(case.hidden, n=8, seed=1, **words)
            assert np.isin(drawn.ids, allowed).all()
    ragged = [[3, 5], [7], [1, 2, 3], [9], [10], [0, 1299]]
    assert [set(row) - {-1} for row in engine.topk(case.hidden, k=3, allowed=ragged).ids.tolist()] == list(map(set, ragged))
    with pytest.raises(InputError, match="no class is left to sample in row 0"):
        engine.sample(case.hidden, allowed=[[], *ragged[1:]])


FILTERS: list[dict[str, Any]] = [
    {}, {"temperature": 0.7}, {"top_k": 9}, {"top_p": 0.8}, {"min_p": 0.05},
    {"top_k": 12, "top_p": 0.9, "temperature": 1.3},
]  # fmt: skip


@pytest.mark.parametrize("kind", STRUCTURED)
def test_samples_follow_the_distribution(kind: str) -> None:
    for filters in in_turn(2, list(STRUCTURED).index(kind), FILTERS):
        follows(kind, filters)


def follows(kind: str, filters: dict[str, Any]) -> None:
    case = made(kind, 8, 60, rows=2)
    drawn = compiled(case).sample(case.hidden, n=600, seed=11, **filters)
    for b in range(2):
        z = case.log_probs[b] / filters.get("temperature", 1.0)
        order = np.argsort(-z)[: filters.get("top_k", 60)]
        p = np.exp(z[order] - z[order].max())
        p /= p.sum()
        keep = np.cumsum(p) - p < filters.get("top_p", 1.0)
        keep &= p >= filters.get("min_p", 0.0) * p[0]
        expected = np.zeros(60)
        expected[order[keep]] = p[keep] / p[keep].sum()
        assert chance(np.bincount(drawn.ids[b], minlength=60), expected) > 1e-5


@pytest.mark.parametrize("kind", STRUCTURED)
def test_layers_are_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    whole = made(kind, 16, 65).layer
    whole.save(tmp_path / "layer.safetensors")
    layer = load_layer(tmp_path / "layer.safetensors")
    assert isinstance(layer, type(whole)) and layer.checksum() == whole.checksum() and repr(layer) == repr(whole)


@pytest.mark.parametrize("kind", STRUCTURED)
def test_damaged_files_are_refused(kind: str, tmp_path: Path) -> None:
    case = made(kind, 16, 65)
    compiled(case).save(tmp_path / "engine.safetensors")
    file = open_file(tmp_path / "engine.safetensors")
    tensors = {name: file.read(name) for name in file.tensors}
    damage: list[tuple[dict[str, Any], dict[str, str]]] = []
    for name, array in tensors.items():
        damage.append(({key: value for key, value in tensors.items() if key != name}, {}))
        damage.append((tensors | {name: array[:-1]}, {}))
        damage.append((tensors | {name: array.astype(np.float64 if array.dtype == np.int64 else np.int16)}, {}))
    record, layer = json.loads(file.metadata["engine"]), json.loads(file.metadata["layer"])
    read = set(record) - {"reason", "checksum", "vocab", "dim"}
    damage += [(tensors, {"engine": json.dumps(record | {key: [None]})}) for key in sorted(read)]
    for key in layer:
        damage.append((tensors, {"layer": json.dumps(layer | {key: None})}))
        damage.append((tensors, {"layer": json.dumps({name: value for name, value in layer.items() if name != key})}))
    path = tmp_path / "damaged.safetensors"
    for arrays, words in damage:
        write_file(path, arrays, file.metadata | words)
        try:
            engine = hl.load(path)
        except StoreError:
            continue
        # what is optional in a layer may be left out: then it is another layer, in order in itself
        assert set(arrays) < set(tensors) and engine.layer.checksum() != case.layer.checksum()
    write_file(path, tensors, file.metadata | {"layer": json.dumps(layer | {"kind": "nothing"})})
    with pytest.raises(MalformedFileError, match="this headlong reads"):
        hl.load(path)


@pytest.mark.parametrize("kind", STRUCTURED)
def test_bad_options_are_named(kind: str) -> None:
    case = made(kind, 3, 7)
    engine = compiled(case)
    with pytest.raises(OptionError, match=f"{type(engine.layer).__name__} is read by '{engine.kind}'"):
        hl.compile(case.layer, method="codes")
    with pytest.raises(OptionError, match=f"{engine.kind} has no option 'girth'"):
        hl.compile(case.layer, girth=3)
    with pytest.raises(OptionError, match="eps"):
        hl.compile(case.layer, eps=0)
    if kind in SHARING:
        assert build_head(kind, 3, 7, torch.zeros(7, 3)).weight.shape == (7, 3)
        return
    with pytest.raises(OptionError, match=r"tied=false|no \[vocab, dim\] matrix"):
        build_head(kind, 3, 7, torch.zeros(7, 3))


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
        if eps is None:
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


LEVELS = [native.REFERENCE, native.levels()[-1]]
EXPERT_FILTERS: tuple[dict[str, Any], ...] = (
    {}, {"temperature": 0.3}, {"temperature": 4.0}, {"top_k": 3}, {"top_k": 200, "min_p": 0.1}, {"min_p": 0.2},
    {"min_p": 0.5, "temperature": 2.0}, {"top_p": 0.6}, {"top_p": 0.9, "temperature": 0.5}, {"top_p": 0.8, "min_p": 0.3},
    {"top_k": 20, "top_p": 0.5},
)  # fmt: skip


def random_layer(seed: int, vocab: int, dim: int, scale: float, *, scaled: bool, constant: bool) -> ExpertsLayer:
    """Experts of very different sizes, one of a single class, some rows the same."""
    rng = np.random.default_rng(seed)
    sizes = [1, max(1, vocab // 3), vocab, int(rng.integers(1, vocab + 1))]
    ids = [np.sort(rng.choice(vocab, size, replace=False)) for size in sizes]
    width = dim + constant
    rows = [scale * rng.standard_normal((len(mine), width)) for mine in ids]
    for some in rows:
        some[rng.random(len(some)) < 0.2] = some[0]
    weight, starts = np.concatenate(rows).astype(np.float32), np.concatenate([[0], np.cumsum(sizes)])
    gate = rng.standard_normal((len(sizes), width)).astype(np.float32)
    return ExpertsLayer(gate, weight, np.concatenate(ids), starts, vocab, constant=constant, scaled=scaled)


def logits_of(layer: ExpertsLayer, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes of the row's expert and their logits, in float64."""
    x = np.append(row.astype(np.float64), 1.0) if layer.constant else row.astype(np.float64)
    scores = layer.gate.astype(np.float64) @ x
    rows = layer.part(int(scores.argmax()))
    value = 1 / np.exp(scores - scores.max()).sum() if layer.scaled else 1.0
    return layer.ids[rows], layer.weight[rows].astype(np.float64) @ (value * x)


def check(engine: Any, layer: ExpertsLayer, hidden: np.ndarray, n: int, seed: int, row0: int, **more: Any) -> Any:
    """Every draw is that of float64 among the classes that the filters keep, unless rounding could order keys either way."""
    found = engine.sample(hidden, n, seed=seed, position=row0 + np.arange(len(hidden)), **more)
    for b, row in enumerate(hidden):
        ids, z = logits_of(layer, row)
        given_ = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | more
        filters = Filters(n=n, seed=seed, row0=row0 + b, **given_)
        want, _, score, *_ = sample_of(ListedClasses(ids[None], z[None], z[None]), filters)
        near = 1e-9 * (1 + np.abs(z).max() / filters.temperature)
        same = found.ids[b] == want[0]
        if (filters.top_k, filters.top_p, filters.min_p) != (0, 1.0, 0.0) and not same.all():
            assert near_an_edge(z, filters)
            continue
        assert (np.abs(found.score[b] - score[0]) <= near)[same].all()
        for draw in np.flatnonzero(~same):
            noise = gumbels(seed, row0 + b, int(draw), ids)
            own = (z / filters.temperature + noise)[ids == found.ids[b, draw]]
            assert own.size and score[0, draw] - own[0] <= near
    return found


def near_an_edge(z: np.ndarray, filters: Filters) -> bool:
    """Whether a mass or a logit is so near to where a filter cuts that rounding may decide."""
    falling = np.sort(z)[::-1] / filters.temperature
    mass = np.exp(falling - falling[0])
    before = np.cumsum(mass) / mass.sum()
    ties = filters.top_k and filters.top_k < len(z) and falling[filters.top_k - 1] - falling[filters.top_k] < 1e-9
    low = filters.min_p > 0 and np.abs(falling - falling[0] - math.log(filters.min_p)).min() < 1e-9
    equal = (np.diff(falling) > -1e-9).any()  # which of equal classes is the last one inside
    return bool(ties or low or equal or np.abs(before - filters.top_p).min() < 1e-9)


@pytest.mark.parametrize("level", LEVELS)
@given(
    seed=st.integers(0, 2**32 - 1), vocab=st.sampled_from([4, 17, 70, 500]), dim=st.sampled_from([1, 5, 16, 40]),
    scale=st.sampled_from([0.0, 0.3, 3.0, 30.0]), more=st.sampled_from(EXPERT_FILTERS), row0=st.sampled_from([0, 7, 2**40]),
    scaled=st.booleans(), constant=st.booleans(),
)  # fmt: skip
def test_any_layer(
    level: str, seed: int, vocab: int, dim: int, scale: float, more: dict[str, Any], row0: int, scaled: bool, constant: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADLONG_ISA", level)
        layer = random_layer(seed, vocab, dim, scale, scaled=scaled, constant=constant)
        hidden = np.random.default_rng(seed).standard_normal((6, dim)) * np.array([0, 1e-3, 1, 1, 5, 50])[:, None]
        more = {name: min(value, vocab) if name == "top_k" else value for name, value in more.items()}
        check(hl.compile(layer), layer, hidden, 2, seed, row0, **more)


def test_a_choice_that_rounding_could_change_is_not_proved() -> None:
    layer = random_layer(1, 300, 8, 1.0, scaled=True, constant=False)
    gate = layer.gate.copy()
    gate[2] = gate[1]
    tied = ExpertsLayer(gate, layer.weight, layer.ids, layer.starts, layer.vocab, constant=False)
    hidden = np.random.default_rng(0).standard_normal((40, 8))
    engine = hl.compile(tied)
    chosen = engine.route(hidden)
    assert {1, 2} & set(chosen.tolist())
    found = engine.sample(hidden, 2, seed=1)
    np.testing.assert_array_equal(found.proved.all(axis=1), ~np.isin(chosen, [1, 2]))


@pytest.mark.parametrize("rule", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}], ids=str)
def test_draws_among_ids_that_are_not_proved_are_not(rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((300, 8)).astype(np.float32)
    layer = ExpertsLayer(np.ones((1, 8), np.float32), weight, np.arange(300), np.array([0, 300]), 300, scaled=False)
    engine = hl.compile(layer)
    hidden, best = rng.standard_normal((3, 8)), engine._best
    assert engine.sample(hidden, 2, seed=1, **rule).proved.all()
    monkeypatch.setattr(engine, "_best", lambda x, k, eps: best(x, k, eps)._replace(proved=np.zeros(len(x), bool)))
    assert not engine.sample(hidden, 2, seed=1, **rule).proved.any()


@pytest.mark.parametrize("batch", [1, 6])
def test_the_rounding_of_the_gate_is_part_of_the_error(batch: int) -> None:
    """Long vectors and long rows of the gate: its rounding is most of all."""
    rng = np.random.default_rng(3)
    vocab, dim = 3000, 64
    gate = (1e2 * rng.normal(size=(2, dim))).astype(np.float32)
    ids = np.tile(np.arange(vocab), 2)
    weight = (1e-3 * rng.normal(size=(2 * vocab, dim))).astype(np.float32)
    layer = hl.structured.ExpertsLayer(gate, weight, ids, np.array([0, vocab, 2 * vocab]), vocab, constant=False, scaled=True)
    hidden = 1e3 * rng.normal(size=(batch, dim))
    engine = hl.compile(layer, eps=0.003, threads=1)
    top, scored, whole = engine.topk(hidden, 5), engine.log_prob(hidden, [[0, 7]] * batch), engine.lse(hidden)
    wide = hidden.astype(np.longdouble)
    gates = wide @ gate.T
    g = 1 / np.exp(gates - gates.max(axis=1, keepdims=True)).sum(axis=1)
    logits = np.stack([weight[vocab * k :][:vocab] @ (v * x) for k, v, x in zip(gates.argmax(axis=1), g, wide, strict=True)])
    lse = np.log(np.exp(logits).sum(axis=1))
    assert (np.abs(whole.lse - lse) <= whole.error).all()
    assert (np.abs(scored.log_probs - (logits[:, [0, 7]] - lse[:, None])) <= scored.error[:, None]).all()
    for error in (top.error, scored.error, whole.error):
        assert ((error > 1e-9) & (error <= 0.003)).all()
