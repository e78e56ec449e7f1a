"""Teacher files, what they hold and the loss that reads them; and which roundings can turn a row's likeliest class over."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import headlong as hl
from headlong.errors import OptionError, StoreError
from headlong.margins import ROUNDINGS, margins
from headlong.teacher import distill, read_teacher, tail_of
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


def divergence(z: np.ndarray, ids: np.ndarray, teacher: np.ndarray, tail: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The loss of each row and its gradient in long doubles: masses of both sides, the smaller one subtracted from one."""
    z, teacher, tail = (np.asarray(part, np.longdouble) for part in (z, teacher, tail))
    mass = np.exp(z - z.max(1, keepdims=True))
    q = mass / mass.sum(1, keepdims=True)
    inside = np.zeros(z.shape, bool)
    np.put_along_axis(inside, ids, True, 1)
    mine, best, rest = np.take_along_axis(q, ids, 1), np.where(inside, q, 0).sum(1), np.where(inside, 0, q).sum(1)
    p = np.exp(teacher - teacher.max(1, keepdims=True))
    p *= (-np.expm1(tail) / p.sum(1))[:, None]
    m = np.exp(tail)
    bucket = np.where(best < 0.5, np.log1p(-best), np.log(np.where(best < 0.5, 1, rest)))
    apart = np.where(best < 0.5, -np.expm1(tail) - best, rest - m)
    gradient = q * (apart / rest)[:, None]
    np.put_along_axis(gradient, ids, mine - p, 1)
    return (p * np.log(p / mine)).sum(1) + m * (tail - bucket), gradient


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize(
    ("vocab", "k", "lift"), [(100_000, 1, 0), (400_000, 1, 0), (100_000, 8, 0), (3000, 1, 20), (3000, 2, 9), (9, 1, 2)]
)
def test_the_loss_and_its_gradient_are_right_to_a_millionth_of_their_size(vocab: int, k: int, lift: float, kind: str) -> None:
    """Flat layers, whose k best have next to no mass, and peaked ones, whose k best have next to all."""
    from headlong.heads.distillation import distillation_loss

    rng = np.random.default_rng(vocab + k)
    teacher = rng.standard_normal((2, vocab)) * 0.01
    teacher[:, 7 : 7 + k] += lift
    ids = np.argsort(-teacher, axis=1, kind="stable")[:, :k]
    student = (teacher + rng.standard_normal((2, vocab)) * 0.01).astype(kind)
    logits = np.take_along_axis(teacher, ids, 1)
    mass = np.exp(logits - np.logaddexp.reduce(teacher, axis=1)[:, None]).sum(1)
    rest = np.where(np.put_along_axis(gone := teacher.copy(), ids, -np.inf, 1) is None, gone, 0)
    tail = np.where(mass < 0.5, np.log1p(-mass), np.logaddexp.reduce(rest, axis=1) - np.logaddexp.reduce(teacher, axis=1))
    given = ids, logits.astype(np.float32), tail.astype(np.float32)
    asked = torch.from_numpy(student).requires_grad_(True)
    found = distillation_loss(asked, *map(torch.from_numpy, given), "none")
    found.sum().backward()
    loss, gradient = divergence(student, *given)
    assert (loss > 0).all() and asked.grad is not None
    np.testing.assert_allclose(found.detach().numpy(), loss.astype(float), rtol=1e-6)
    np.testing.assert_allclose(asked.grad.numpy(), gradient.astype(float), rtol=1e-6, atol=0)
    assert found.dtype == asked.grad.dtype == asked.dtype


def test_of_all_classes_nothing_is_behind_and_rows_that_end_early_have_their_own_loss() -> None:
    from headlong.heads.distillation import distillation_loss

    generator = torch.Generator().manual_seed(1)
    teacher, student = (torch.randn(3, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    every = torch.arange(6).repeat(3, 1)
    expected = (teacher.softmax(1) * (teacher.log_softmax(1) - student.log_softmax(1))).sum(1)
    for tail in (-torch.inf, -1e-7, -4.6, 0.0):  # a normaliser that is off leaves some mass to nobody
        asked = student.clone().requires_grad_(True)
        found = distillation_loss(asked, every, teacher, torch.full((3,), tail), "none")
        found.sum().backward()
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(asked.grad, student.softmax(1) - teacher.softmax(1))
    ids, tail = torch.tensor([[2, 5, -1], [3, -1, -1], [-1, -1, -1]]), torch.tensor([-1.0, -torch.inf, 0.0]).double()
    logits = teacher[:, :3].masked_fill(ids < 0, -torch.inf)
    for row, count in enumerate((2, 1, 1)):
        one, some = slice(row, row + 1), slice(0, count)
        alone = distillation_loss(student[one], ids[one, some], logits[one, some], tail[one])
        torch.testing.assert_close(distillation_loss(student, ids, logits, tail, "none")[row], alone)
    leaf = student.clone().requires_grad_(True)
    assert torch.autograd.gradcheck(lambda z: distillation_loss(z, ids, logits, tail, "none"), leaf)
    engine = hl.compile(hl.Layer(LAYER.weight[:9]), "codes")
    top = engine.topk(HIDDEN, 9, eps=0.01)
    middle, error = tail_of(top, 9)
    assert np.isneginf(middle).all() and (error == 0).all()
    with pytest.raises(OptionError, match="reduction is 'max'; expected one of mean, sum, none"):
        distillation_loss(student, ids, logits, tail, "max")


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
