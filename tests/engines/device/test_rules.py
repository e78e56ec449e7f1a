"""The rules that kernels in Triton state in their own way, against those of ``engines/reference``."""

from __future__ import annotations

import math

import numpy as np
import pytest

from devices import tensor, torch
from headlong.engines.reference import query
from headlong.plan import PLANES

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from headlong.engines.device.kernels.cascade_fused import split_peaks, two_planes  # noqa: E402

pytestmark = pytest.mark.usefixtures("plain_interpreter")


@triton.jit
def split(x_at, count_at, out, room: tl.constexpr):  # type: ignore[no-untyped-def]
    j, count = tl.arange(0, room), tl.load(count_at)
    x = tl.load(x_at + j, mask=j < count, other=0.0)
    peaks, rest = split_peaks(x, j < count, count)
    tl.store(out, peaks)
    tl.store(out + 1, rest)


@triton.jit
def code(x_at, segments, planes, steps, lost_at, room: tl.constexpr):  # type: ignore[no-untyped-def]
    j, count = tl.arange(0, room), tl.load(segments + 1)
    x = tl.load(x_at + j, mask=j < count, other=0.0)
    lost = two_planes(x, tl.zeros((room,), tl.float64), j, planes, room, steps, segments, 1)
    tl.store(lost_at + j, lost)


def power_of_two(x: np.ndarray) -> int:
    return max(16, 1 << (len(x) - 1).bit_length())


def vectors() -> list[np.ndarray]:
    """Of Gaussian and of heavier tails, many zeros, few distinct sizes."""
    rng = np.random.default_rng(0)
    found = []
    for n in (1, 3, 16, 100, 576):
        normal = rng.standard_normal(n)
        found += [normal, normal**3, normal**9, np.exp(4 * normal), normal * (rng.random(n) < 0.05)]
        found += [np.where(rng.random(n) < share, size, 1.0) for share in (0.02, 0.2) for size in (5.0, 40.0, 1000.0)]
    return found


def widened(x: np.ndarray) -> float:
    """What Triton's split has over the best one, as a factor."""
    out = tensor(np.zeros(2))
    split[(1,)](tensor(x), tensor(np.array([len(x)], np.int32)), out, room=power_of_two(x))
    peaks, rest = out.tolist()
    weight = math.sqrt(len(x) / 3)
    best_peaks, best_rest = query.split_peaks(x)
    # A split of x: with those peaks, that is what is left.
    assert peaks**2 + len(x) * rest**2 >= (x**2).sum() * (1 - 1e-9) and rest <= np.linalg.norm(x) * (1 + 1e-9)
    best = best_peaks + weight * best_rest
    return 1.0 if best == 0 else (peaks + weight * rest) / best


def test_how_much_wider_a_radius_may_be() -> None:
    """``plan.Term`` has the two bounds, of which the first is for peaks that are all above a sixteenth of the largest."""
    for x in vectors():
        sizes = np.sort(np.abs(x))[::-1]
        costs = [sizes[:m].sum() + math.sqrt(len(x) / 3) * np.linalg.norm(sizes[m:]) for m in range(len(x) + 1)]
        m = int(np.argmin(costs))
        near = m == 0 or sizes[m - 1] > sizes[0] / 16
        assert widened(x) <= (1.07 if near else 1 + math.sqrt(len(x) / 3) / 8) * (1 + 1e-9)


def test_the_worst_that_it_may_be_is_not_far_from_what_is_said() -> None:
    x = np.zeros(4096)
    x[:14] = 1 / 16
    x[0] = 1.0
    assert 0.8 * (1 + math.sqrt(4096 / 3) / 8) <= widened(x) <= 1 + math.sqrt(4096 / 3) / 8


@pytest.mark.parametrize("n", [5, 64, 100])
def test_two_planes_round_as_all_others_do(n: int) -> None:
    """To the nearest whole number of the step, halves to even; the step is a little above the others'."""
    rng = np.random.default_rng(n)
    halves = rng.integers(-32000, 32000, n) + 0.5
    halves[0] = PLANES / 1.0000003  # a step of one
    for x in (halves, halves / 4, rng.standard_normal(n), rng.standard_normal(n) ** 9, np.zeros(n)):
        width = power_of_two(x)
        planes, steps, lost = torch.zeros(2, width, dtype=torch.int8), torch.zeros(1), torch.zeros(width, dtype=torch.float64)
        planes, steps, lost = (tensor(part.numpy()) for part in (planes, steps, lost))
        code[(1,)](tensor(x), tensor(np.array([0, n, 0], np.int32)), planes, steps, lost, room=width)
        step = float(steps[0])
        coarse, rest = planes.cpu().numpy().astype(np.float64)
        whole = (256 * coarse + rest)[:n]
        np.testing.assert_array_equal(whole, np.rint(x * (1 / step if step else 0.0)))
        np.testing.assert_array_equal(lost.cpu().numpy()[:n], np.abs(x - whole * step))
        least = np.abs(x).max() / PLANES
        assert least <= step <= least * (1 + 4e-7)
    assert (np.rint(halves) != np.floor(halves + 0.5)).any(), "halves are among them"
