"""Piecewise-linear increasing functions between logits and the softmax (Ganea et al. 2019)::

plif         f(y) = delta sum_{j < k} s_j + (y - t_k) s_k,  t_k = -T + k delta the knot below y, s = softplus
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from headlong.errors import OptionError
from headlong.heads.base import refuse_graph
from headlong.heads.curves import Curve, checked_gain
from headlong.links import Link, Table

PIECE = 1 << 20
"""Logits that are looked up at once: what a lookup holds beside the logits."""
MOST_KNOTS = 1 << 20
LEAST_RISE = 2.0**-44
"""A frozen cell rises by at least this part of the whole: float64 has to see the table rise at every knot."""


class Plif(Curve):
    """A piecewise-linear increasing function: ``knots`` cells on ``[-reach, reach]``, slopes ``softplus(w)``.

    ``start``  "identity" (f(y) = y + reach), or "random" (w = log(e - 1) + N(0, 1)), as published with 1e5 knots
    ``gain``   None: ``sqrt(rate / delta)``, delta the width of a cell: ``dL/dw`` is delta times a mass that does not
               depend on the number of knots, so a step of SGD on ``w`` is ``rate`` times that mass whatever their number
    ``frozen`` the slopes stay as they start (the control of the published setting)
    """

    def __init__(
        self, knots: int = 256, reach: float = 20.0, *, start: str = "identity", gain: float | None = None,
        frozen: bool = False, rate: float = 0.01,
    ) -> None:  # fmt: skip
        super().__init__()
        if not 1 <= knots <= MOST_KNOTS or not (math.isfinite(reach) and reach > 0):
            raise OptionError(f"knots={knots}, reach={reach}; expected 1 to {MOST_KNOTS} knots and a finite reach above 0")
        if start not in ("identity", "random"):
            raise OptionError(f"start={start!r}; expected 'identity' or 'random'")
        self.knots, self.reach, self.delta = knots, reach, 2 * reach / knots
        self.gain = checked_gain(math.sqrt(rate / self.delta) if gain is None else gain)
        at = torch.full((knots,), math.log(math.e - 1))
        self.register_buffer("start", at + torch.randn(knots) if start == "random" else at)
        value = torch.zeros(knots)
        self.value = nn.Parameter(value, requires_grad=not frozen)

    def _free(self) -> Tensor:
        return self.get_buffer("start") + self.gain * self.value

    def slopes(self) -> Tensor:
        """``[knots]``, above 0."""
        return functional.softplus(self._free())

    def forward(self, logits: Tensor) -> Tensor:
        found: Tensor = PiecewiseLinear.apply(logits, self.slopes().to(logits.dtype), self.reach)  # type: ignore[no-untyped-call]
        return found

    def lowered(self) -> tuple[Any, ...]:
        slopes = functional.softplus(self._free().detach().double())
        ends = torch.cat([slopes[:1], slopes, slopes[-1:]])
        base = torch.cat([torch.zeros(1, dtype=torch.float64), slopes.cumsum(0)]) * self.delta
        base = torch.cat([-self.delta * slopes[:1], base])
        return ("table", -self.reach, self.delta, base.float().numpy(), ends.float().numpy())

    def gradients(self, sums: Tensor) -> tuple[Tensor, ...]:
        """``dL/ds_k = B_k + delta sum_{j > k} A_j``; the cells beyond the knots count from the first and the last knot."""
        a, b = sums[0, 1:-1].clone(), sums[1, 1:-1].clone()
        a[0] += sums[0, 0]
        b[0] += sums[1, 0] - self.delta * sums[0, 0]
        a[-1] += sums[0, -1]
        b[-1] += sums[1, -1] + self.delta * sums[0, -1]
        return (_slope_gradient(a, b, self.delta) * torch.sigmoid(self._free().detach().double()) * self.gain,)

    def to_link(self) -> Link:
        slopes = functional.softplus(self._free().detach().double()).cpu().numpy()
        slopes = np.maximum(slopes, LEAST_RISE * slopes.sum())
        values = np.concatenate([[0.0], np.cumsum(slopes) * self.delta])
        return Table(-self.reach, self.delta, values, float(slopes[0]), float(slopes[-1]))


def _slope_gradient(a: Tensor, b: Tensor, delta: float) -> Tensor:
    return b + delta * (a.sum() - a.cumsum(0))


class PiecewiseLinear(torch.autograd.Function):
    """``f(y)`` and its gradient, saving ``y`` and two vectors of ``knots`` alone; cells are looked up again on the way back.

    With ``g = dL/df``: ``dL/dy = g s[k]``, ``dL/ds_k = sum_k g (y - t_k) + delta sum_{j > k} sum_j g``, summed in float64.
    Sums over CUDA tensors add in no fixed order: they are not the same to the bit from run to run.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, slopes: Tensor, reach: float) -> Tensor:
        delta = 2 * reach / len(slopes)
        below = delta * (slopes.double().cumsum(0) - slopes.double())
        out = torch.empty_like(logits)
        flat, values = out.view(-1), logits.detach().reshape(-1)
        for start in range(0, len(flat), PIECE):
            y = values[start : start + PIECE]
            cell, into = _cells(y, len(slopes), reach)
            flat[start : start + PIECE] = (below[cell] + into.double() * slopes[cell].double()).to(y.dtype)
        ctx.save_for_backward(logits, slopes)
        ctx.reach = reach
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        refuse_graph()
        logits, slopes = ctx.saved_tensors
        g_all, values = upstream[0].reshape(-1), logits.detach().reshape(-1)
        knots, out = len(slopes), torch.empty_like(g_all)
        a, b = (torch.zeros(knots, dtype=torch.float64, device=slopes.device) for _ in range(2))
        for start in range(0, len(out), PIECE):
            part = slice(start, start + PIECE)
            g = g_all[part]
            cell, into = _cells(values[part], knots, ctx.reach)
            out[part] = g * slopes[cell]
            moment = torch.where(into.isfinite(), g.double() * into.double(), 0.0)  # 0 * inf, where a logit is masked
            a += torch.bincount(cell, g.double(), knots)
            b += torch.bincount(cell, moment, knots)
        return out.view_as(logits), _slope_gradient(a, b, 2 * ctx.reach / knots).to(slopes.dtype), None


def _cells(logits: Tensor, knots: int, reach: float) -> tuple[Tensor, Tensor]:
    """The cell of each logit, and how far the logit is beyond its left knot; clamped before it becomes an integer."""
    delta = 2 * reach / knots
    cell = ((logits.double() + reach) / delta).floor().clamp(0, knots - 1)
    return cell.long(), logits - (cell * delta - reach).to(logits.dtype)
