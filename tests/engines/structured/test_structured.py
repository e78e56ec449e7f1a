"""What every structured layer and engine promises: the head's own distribution in float64, by another route."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headlong as hl
from headlong.engines.structured.base import StructuredEngine
from headlong.errors import (
    IdError,
    InputError,
    MalformedFileError,
    NonFiniteError,
    OptionError,
    ShapeError,
    StoreError,
    WrongLayerError,
)
from headlong.heads import HEADS, build_head
from headlong.layers.structured import StructuredLayer, load_layer
from headlong.store import open_file, write_file
from oracle import check_topk, check_within, logsumexp
from structured_layers import TOLERANCE, Case, Doubles, made
from thinned import ALL, in_turn

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


def chi_square(counts: Doubles, expected: Doubles) -> float:
    """The statistic in units of its standard deviation from its mean; cells of fewer than five go together."""
    order = np.argsort(expected)
    cells = np.searchsorted(np.cumsum(expected[order]), np.arange(5.0, expected.sum(), 5.0))
    starts = np.unique(np.concatenate([[0], cells[cells < len(expected)]]))
    found, wanted = (np.add.reduceat(part[order], starts) for part in (counts, expected))
    keep = wanted > 0
    assert found[~keep].sum() == 0
    statistic = float((((found - wanted) ** 2)[keep] / wanted[keep]).sum())
    freedom = max(1, int(keep.sum()) - 1)
    return (statistic - freedom) / np.sqrt(2 * freedom)


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"top_k": 9},
    {"top_p": 0.8},
    {"min_p": 0.05},
    {"top_k": 12, "top_p": 0.9, "temperature": 1.3},
]


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
        expected[order[keep]] = p[keep] / p[keep].sum() * 600
        assert chi_square(np.bincount(drawn.ids[b], minlength=60).astype(float), expected) < 4.5


def test_the_chi_square_test_can_fail() -> None:
    expected = np.full(20, 100.0)
    assert chi_square(np.full(20, 100.0), expected) < 0
    assert chi_square(np.concatenate([np.full(10, 130.0), np.full(10, 70.0)]), expected) > 4.5


@pytest.mark.parametrize("kind", STRUCTURED)
def test_samples_are_the_same_in_any_batch(kind: str) -> None:
    case = made(kind, 16, 65)
    engine = compiled(case)
    for filters in FILTERS[:4]:
        whole = engine.sample(case.hidden, n=5, seed=4, **filters)
        parts = [engine.sample(case.hidden[b : b + 1], n=5, seed=4, position=b, **filters).ids for b in range(len(case.hidden))]
        assert (whole.ids == np.concatenate(parts)).all()
        assert (engine.sample(case.hidden, n=5, seed=5, **filters).ids != whole.ids).any()


@pytest.mark.parametrize("kind", STRUCTURED)
def test_a_batch_is_a_loop_and_threads_change_nothing(kind: str) -> None:
    case = made(kind, 16, 65, rows=9)
    engine, other = compiled(case), hl.compile(case.layer, delta=0.0, threads=2)
    whole = engine.topk(case.hidden, k=7)
    assert all((a == b).all() for a, b in zip(whole[:3], other.topk(case.hidden, k=7)[:3], strict=True))
    for b in range(9):
        one = engine.topk(case.hidden[b : b + 1], k=7)
        assert (one.ids[0] == whole.ids[b]).all() and (one.logits[0] == whole.logits[b]).all()
    empty = engine.topk(case.hidden[:0], k=7)
    assert empty.ids.shape == (0, 7) and engine.sample(case.hidden[:0], n=2).ids.shape == (0, 2)
    assert engine.lse(case.hidden[:0]).lse.shape == (0,)


@pytest.mark.parametrize("kind", STRUCTURED)
def test_torch_in_torch_out(kind: str) -> None:
    case = made(kind, 3, 7)
    top = compiled(case).topk(torch.from_numpy(case.hidden), k=2)
    assert isinstance(top.ids, torch.Tensor) and isinstance(top.cost.rows, torch.Tensor)


@pytest.mark.parametrize("kind", STRUCTURED)
def test_engines_and_layers_are_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    case = made(kind, 16, 65)
    engine = compiled(case)
    case.layer.save(tmp_path / "layer.safetensors")
    layer = load_layer(tmp_path / "layer.safetensors")
    assert isinstance(layer, type(case.layer)) and layer.checksum() == case.layer.checksum()
    assert repr(layer) == repr(case.layer)
    engine.save(tmp_path / "whole.safetensors")
    engine.save(tmp_path / "bare.safetensors", layer=False)
    for again in (hl.load(tmp_path / "whole.safetensors"), hl.load(tmp_path / "bare.safetensors", layer=case.layer)):
        assert repr(again) == repr(engine) and again.promise == engine.promise and again.reason == engine.reason
        assert (again.topk(case.hidden, k=9).ids == engine.topk(case.hidden, k=9).ids).all()
        assert (again.sample(case.hidden, seed=1).ids == engine.sample(case.hidden, seed=1).ids).all()
    with pytest.raises(StoreError, match="was saved without its layer"):
        hl.load(tmp_path / "bare.safetensors")
    other = made(kind, 16, 66)
    with pytest.raises(WrongLayerError, match="was made for another layer"):
        hl.load(tmp_path / "bare.safetensors", layer=other.layer)
    with pytest.raises(WrongLayerError, match="got Layer"):
        hl.load(tmp_path / "bare.safetensors", layer=hl.Layer(np.ones((2, 2), np.float32)))


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
def test_bad_calls_are_named(kind: str) -> None:
    case = made(kind, 3, 7)
    engine = compiled(case)
    with pytest.raises(ShapeError, match=r"expected \[batch, 3\]"):
        engine.topk(case.hidden[:, :2])
    with pytest.raises(ShapeError, match="k is 8"):
        engine.topk(case.hidden, k=8)
    with pytest.raises(NonFiniteError):
        engine.topk(np.full((1, 3), np.nan, np.float32))
    with pytest.raises(IdError, match="0 to 6"):
        engine.log_prob(case.hidden, np.full((6, 1), 7))
    with pytest.raises(OptionError, match="temperature"):
        engine.sample(case.hidden, temperature=0.0)
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


@pytest.mark.parametrize("kind", STRUCTURED)
def test_gradients(kind: str) -> None:
    """Loss and outputs by float64 finite differences, in hidden vectors and in every parameter."""
    torch.manual_seed(0)
    head = build_head(kind, 5, 11).double()
    hidden, target = torch.randn(4, 5, dtype=torch.float64, requires_grad=True), torch.tensor([0, 10, 3, 3])
    names = [name for name, parameter in head.named_parameters() if parameter.requires_grad]
    values = [parameter.detach().clone().requires_grad_() for _, parameter in head.named_parameters()]

    def outcome(x: torch.Tensor, *parameters: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.func.functional_call(head, dict(zip(names, parameters, strict=True)), (x, target))
        return out.loss, out.output

    assert torch.autograd.gradcheck(outcome, (hidden, *values), fast_mode=not ALL)


@pytest.mark.parametrize("kind", STRUCTURED)
def test_autocast_gives_a_float32_loss_near_the_plain_one(kind: str) -> None:
    case, target = made(kind, 16, 65), torch.arange(6)
    hidden = torch.from_numpy(case.hidden).float()
    plain = case.head(hidden, target)
    with torch.autocast("cpu", torch.bfloat16):
        out = case.head(hidden, target)
        out.loss.backward()
    assert out.loss.dtype == out.output.dtype == torch.float32
    torch.testing.assert_close(out.loss, plain.loss, atol=0.1, rtol=0.05)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in case.head.parameters())
