"""The rules of ``engines/reference`` for rows of tensors, each under its name there; Triton's are in ``kernels/``."""

from __future__ import annotations

import math
from typing import Any

from headlong.engines.device.memory import Tensor
from headlong.plan import MOST_PEAKS, PLANES


def round_up(values: Tensor) -> Tensor:
    """float64 to a float32 that is not smaller."""
    return (values * (1 + 2.0**-22) + 1e-37).float()


def two_planes(torch: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers up to 32512 of each row of ``x [batch, n]``, and the float32 step that they count."""
    wide = x.abs().amax(dim=1) / PLANES
    step = wide.float()
    step = torch.where(step.double() < wide, torch.nextafter(step, torch.full_like(step, math.inf)), step).double()
    step = torch.where(step.isfinite(), step, 0.0)
    inverse = torch.where(step > 0, 1.0 / step, 0.0)[:, None]
    return (x * inverse).clamp(-PLANES, PLANES).round().nan_to_num(nan=0.0), step


def split_peaks(torch: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """``(sum of |x_j| over the peaks, norm of x without them)`` of each row: as many peaks as make the radius least."""
    most = min(MOST_PEAKS, -(-x.shape[1] // 4))
    sizes = x.abs().sort(dim=1, descending=True).values
    none = torch.zeros_like(sizes[:, :1])
    peaks = torch.cat([none, sizes[:, :most].cumsum(dim=1)], dim=1)
    scale = torch.where(sizes[:, :1] > 0, sizes[:, :1], 1.0)
    squares = ((sizes / scale) ** 2).flip(1).cumsum(dim=1).flip(1)
    rest = torch.cat([squares.sqrt() * scale, none], dim=1)[:, : most + 1]
    best = (peaks + math.sqrt(x.shape[1] / 3) * rest).argmin(dim=1, keepdim=True)
    return peaks.gather(1, best)[:, 0], rest.gather(1, best)[:, 0]


def nucleus_size(mass: Tensor, top_p: float, total: Tensor | None = None) -> Tensor:
    """``[batch]``: how many classes, in falling order of ``mass [batch, m]``, have less than ``top_p * total`` before them."""
    edge = top_p * (mass.sum(dim=1) if total is None else total)
    return (mass.cumsum(dim=1) - mass < edge[:, None]).sum(dim=1)
