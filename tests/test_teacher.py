"""Teacher files, what they hold and the loss that reads them; and which roundings can turn a row's likeliest class over."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import headlong as hl
from headlong.errors import StoreError
from headlong.margins import ROUNDINGS, margins
from headlong.teacher import distill, read_teacher
from oracle import truth

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
LAYER = hl.Layer(RNG.standard_normal((400, 24)).astype(np.float32))
HIDDEN = RNG.standard_normal((50, 24)).astype(np.float32)


def test_shards_hold_the_best_and_the_mass_behind_them_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    engine = hl.compile(LAYER, delta=0)
    paths = distill(engine, HIDDEN, tmp_path, k=8, shard=20)
    assert [path.name for path in paths] == [f"teacher-0000{i}.safetensors" for i in range(3)]
    before = [path.read_bytes() for path in paths]
    stamps = [path.stat().st_mtime_ns for path in paths]
    paths[1].unlink()
    distill(engine, HIDDEN, tmp_path, k=8, shard=20)
    assert [path.read_bytes() for path in paths] == before
    assert [paths[i].stat().st_mtime_ns for i in (0, 2)] == [stamps[0], stamps[2]]
    with pytest.raises(StoreError, match=r"is of another call \(k 8, not 9\)"):
        distill(engine, HIDDEN, tmp_path, k=9, shard=20)
    other, moved = hl.Layer(LAYER.weight + np.float32(1e-3)), HIDDEN.copy()
    moved[30, 3] += 1e-6
    for layer, vectors, said in ((other, HIDDEN, "00000.*layer"), (LAYER, moved, "00001.*hidden"), (LAYER, -HIDDEN, "hidden")):
        with pytest.raises(StoreError, match=said):
            distill(hl.compile(layer, delta=0), vectors, tmp_path, k=8, shard=20)
    more = engine.with_rows(HIDDEN[:2])
    for changed in (more, engine.without([5])):
        with pytest.raises(StoreError, match="layer"):
            distill(changed, HIDDEN, tmp_path, k=8, shard=20)
    distill(more, HIDDEN, tmp_path / "more", k=8, shard=20)
    facts = truth(LAYER, HIDDEN)
    parts = list(read_teacher(tmp_path))
    ids, logits, lse, error, tail, off = (np.concatenate([part[i] for part in parts]) for i in range(6))
    assert (ids == np.argsort(-facts.logits, axis=1, kind="stable")[:, :8]).all()
    np.testing.assert_allclose(logits, np.take_along_axis(facts.logits, ids.astype(np.int64), 1), rtol=1e-6)
    assert (np.abs(lse - facts.lse) <= error).all()
    rest = np.log(1 - np.exp(np.take_along_axis(facts.log_probs, ids.astype(np.int64), 1)).sum(axis=1))
    assert (np.abs(tail - rest) <= off).all()


def test_the_loss_is_the_divergence_over_the_best_and_one_bucket_and_has_its_gradient() -> None:
    from headlong.heads.distillation import distillation_loss

    generator = torch.Generator().manual_seed(0)
    teacher, student = (torch.randn(5, 12, generator=generator, dtype=torch.float64) for _ in range(2))
    p, q = teacher.softmax(1), student.softmax(1)
    top, ids = teacher.topk(4, dim=1)
    chosen = p.gather(1, ids)
    tail, other = 1 - chosen.sum(1), 1 - q.gather(1, ids).sum(1)
    expected = (chosen * (chosen.log() - q.gather(1, ids).log())).sum(1) + tail * (tail / other).log()
    asked = student.clone().requires_grad_(True)
    found = distillation_loss(asked, ids, top, tail.log(), "none")
    torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(lambda z: distillation_loss(z, ids, top, tail.log()), asked)
    assert distillation_loss(teacher, ids, top, tail.log()).abs() < 1e-12
    whole = distillation_loss(student, teacher.topk(12).indices, teacher.topk(12).values, torch.full((5,), -torch.inf).double())
    torch.testing.assert_close(whole, (p * (p / q).log()).sum(1).mean())


CHANCE = np.random.default_rng(0)
WEIGHT = CHANCE.standard_normal((900, 40)).astype(np.float32)
WEIGHT[1::2] = WEIGHT[::2] + 10.0 ** CHANCE.uniform(-5, 0, (450, 1)).astype(np.float32) * WEIGHT[1::2]  # pairs, near and far
VECTORS = CHANCE.standard_normal((300, 40)).astype(np.float32)


def rounded(name: str) -> np.ndarray:
    if name == "bf16 weights":
        return WEIGHT.astype(ml_dtypes.bfloat16).astype(np.float64)
    step = np.abs(WEIGHT).max(axis=1, keepdims=True).astype(np.float64) / 127
    return np.rint(WEIGHT / step) * step


def test_rows_that_are_decided_come_out_the_same_after_the_rounding() -> None:
    found = margins(hl.Layer(WEIGHT), VECTORS)
    exact = VECTORS.astype(np.float64) @ WEIGHT.T.astype(np.float64)
    order = np.argsort(-exact, axis=1, kind="stable")
    assert (found.first == order[:, 0]).all() and (found.second == order[:, 1]).all()
    np.testing.assert_allclose(found.gap, -np.diff(np.take_along_axis(exact, order[:, :2], 1), axis=1)[:, 0], atol=1e-12)
    flipped = {name: (VECTORS @ rounded(name).T).argmax(axis=1) != found.first for name in ("bf16 weights", "int8 weights")}
    output = (VECTORS @ WEIGHT.T).astype(ml_dtypes.bfloat16).astype(np.float32)
    flipped["bf16 output"] = (output == output.max(axis=1, keepdims=True)).sum(axis=1) > 1
    for name, turned in flipped.items():
        assert turned.any() and not (turned & found.decided[name]).any(), name
    for name in ROUNDINGS[:3]:
        assert 0.02 < found.decided[name].mean() < 0.98, name


def test_equal_rows_are_never_decided() -> None:
    found = margins(hl.Layer(np.concatenate([WEIGHT, WEIGHT])), VECTORS[:20])
    assert (found.gap == 0).all() and (found.second == found.first + 900).all()
    assert not any(flags.any() for flags in found.decided.values())
