"""Increasing maps on logits with a gradient: what a head puts between its logits and the softmax.

::

    identity     f(y) = y                              temperature  f(y) = e^a y
    softcap      f(y) = cap tanh(y / cap)              gss          f(y) = k (y - c) + c - (k - 1) softplus(y - c)
    monotone     f(y) = s y + sum_i v_i sigmoid(u_i y + b_i),   s, u_i, v_i > 0
    plif         f(y) = delta sum_{j < k} s_j + (y - t_k) s_k,  t_k = -T + k delta the knot below y, s = softplus

A curve computes ``f`` in PyTorch, says how the native loss evaluates it (``lowered``, None: it does not) and turns the
loss's sums over logits into gradients of its parameters. Sources: SigSoftmax (gss with c = 0, k = 2) Kanai et al. 2018;
GSS Parthiban et al. 2021; monotone networks and PLIF Ganea et al. 2019.

``gain``: a parameter enters as ``start + gain * value``, so a step of any optimiser moves it by ``gain`` squared (SGD) or
``gain`` (Adam) of what it otherwise would.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from headlong.errors import OptionError
from headlong.links import IDENTITY, Affine, Gss, Link, SoftCap, Table

PIECE = 1 << 20
"""Logits that are looked up at once: what a lookup holds beside the logits."""
MOST_KNOTS = 1 << 20
CELLS = 4096
"""Chords that a monotone network is read by while it is trained."""
HEIGHT = 0.78
"""What a monotone network's units add up to at first."""
LEAST_RISE = 2.0**-44
"""A frozen cell rises by at least this part of the whole: float64 has to see the table rise at every knot."""


class Curve(nn.Module, ABC):
    """``forward(logits) -> f(logits)``, elementwise."""

    def lowered(self) -> tuple[Any, ...] | None:
        """The curve as ``native.link_losses`` takes it; None: the loss is computed with ``forward``."""
        return None

    def gradients(self, sums: Tensor) -> tuple[Tensor, ...]:
        """From the ``[2, m]`` sums of ``native.link_gradients`` to a gradient for each of ``parameters()``."""
        return ()

    @abstractmethod
    def to_link(self) -> Link:
        """The finished link: data only."""


class Identity(Curve):
    """``f(y) = y``."""

    def forward(self, logits: Tensor) -> Tensor:
        return logits

    def lowered(self) -> tuple[Any, ...]:
        return ("affine", 1.0, 0.0)

    def to_link(self) -> Link:
        return IDENTITY


class Temperature(Curve):
    """``f(y) = e^(gain a) y``, one learned number: the control of every learned curve.

    ``dL/da`` is ``gain`` times a sum over the whole range of the logits, about ten, where the gradient of one of a PLIF's
    slopes has a single cell's. At a gain of 0.1 the scale walks down to 0.6 in the first 200 steps of SGD at 20, and all
    gradients with it, which slows the whole model; at 0.03 it moves as fast as those slopes.
    """

    def __init__(self, gain: float = 0.03) -> None:
        super().__init__()
        self.gain, self.value = _gain(gain), nn.Parameter(torch.zeros(()))

    def forward(self, logits: Tensor) -> Tensor:
        return logits * (self.gain * self.value).exp().to(logits.dtype)

    @property
    def scale(self) -> float:
        return math.exp(self.gain * float(self.value.detach()))

    def lowered(self) -> tuple[Any, ...]:
        return ("affine", self.scale, 0.0)

    def gradients(self, sums: Tensor) -> tuple[Tensor, ...]:
        return (sums[0, 0] * self.scale * self.gain,)

    def to_link(self) -> Link:
        return Affine(self.scale)


class Cap(Curve):
    """``f(y) = cap tanh(y / cap)``, fixed."""

    def __init__(self, cap: float = 30.0) -> None:
        super().__init__()
        self.link = SoftCap(cap)

    def forward(self, logits: Tensor) -> Tensor:
        return self.link.cap * torch.tanh(logits / self.link.cap)

    def lowered(self) -> tuple[Any, ...]:
        return ("softcap", self.link.cap, 0.0)

    def to_link(self) -> Link:
        return self.link


class Sigmoidal(Curve):
    """GSS, fixed: SigSoftmax at centre 0, power 2."""

    def __init__(self, centre: float = 0.0, power: float = 2.0) -> None:
        super().__init__()
        self.link = Gss(centre, power)

    def forward(self, logits: Tensor) -> Tensor:
        x = logits - self.link.centre
        return self.link.power * x + self.link.centre - (self.link.power - 1) * functional.softplus(x, threshold=90)

    def lowered(self) -> tuple[Any, ...]:
        return ("gss", self.link.centre, self.link.power)

    def to_link(self) -> Link:
        return self.link


class SigSoftmax(Sigmoidal):
    """``f(y) = 2 y - softplus(y)``: no parameters, no options."""

    def __init__(self) -> None:
        super().__init__()


class Monotone(Curve):
    """``f(y) = s y + sum_i v_i sigmoid(u_i y + b_i)``; s, u, v the softplus of free numbers, f near the identity at first.

    The linear term keeps f unbounded. Units are added up one by one: nothing is ``[N, vocab, units]``. The native loss reads
    chords of ``CELLS`` cells, within 1e-5 of f near its start, so a step costs what a PLIF's costs; the chain rule goes from
    a logit's cell to the two values at its ends, and from those to the parameters.
    """

    def __init__(self, units: int = 16, gain: float = 0.3, reach: float = 10.0) -> None:
        super().__init__()
        if units < 1:
            raise OptionError(f"units={units}; expected 1 or more")
        self.gain = _gain(gain)
        height = math.log(math.expm1(HEIGHT / units))  # together as high whatever their number, or f would start far off
        start = torch.stack([torch.full((units,), height), torch.full((units,), 0.5), torch.linspace(-reach, reach, units)])
        self.register_buffer("start", start)
        self.slope = nn.Parameter(torch.zeros(()))
        self.units = nn.Parameter(torch.zeros(3, units))

    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``s, v, u, b``."""
        values = self.get_buffer("start") + self.gain * self.units
        slope = functional.softplus(math.log(math.e - 1) + self.gain * self.slope)
        return slope, functional.softplus(values[0]), functional.softplus(values[1]), values[2]

    def forward(self, logits: Tensor) -> Tensor:
        slope, height, steep, shift = (part.to(logits.dtype) for part in self.parts())
        total = slope * logits
        for v, u, b in zip(height, steep, shift, strict=True):
            total = total + v * torch.sigmoid(u * logits + b)
        return total

    def _chords(self) -> tuple[float, float, Tensor, Tensor]:
        """The first knot, the width of a cell; ``f`` at the ``CELLS + 1`` knots and ``s``, both float64 and with a graph."""
        slope, height, steep, shift = (part.double() for part in self.parts())
        reach = float(((shift.detach().abs() + 20.0) / steep.detach()).max().clamp(20.0, 2000.0))
        grid = torch.linspace(-reach, reach, CELLS + 1, dtype=torch.float64)
        return -reach, 2 * reach / CELLS, slope * grid + torch.sigmoid(steep * grid[:, None] + shift) @ height, slope

    def lowered(self) -> tuple[Any, ...]:
        start, step, values, slope = self._chords()
        values, end = values.detach(), slope.detach()[None]
        ends = torch.cat([end, values.diff() / step, end])
        base = torch.cat([values[:1] - step * end, values])
        return ("table", start, step, base.float().numpy(), ends.float().numpy())

    def gradients(self, sums: Tensor) -> tuple[Tensor, ...]:
        """``f = F_k + (y - t_k) (F_k+1 - F_k) / step`` in cell k; beyond the knots it rises by ``s``."""
        with torch.enable_grad():
            _, step, values, slope = self._chords()
            a, b = sums
            at = torch.zeros_like(values)
            at[:-1] += a[1:-1] - b[1:-1] / step
            at[1:] += b[1:-1] / step
            at[0] += a[0]
            at[-1] += a[-1]
            total = (at * values).sum() + (b[0] - step * a[0] + b[-1]) * slope
            return tuple(grad.double() for grad in torch.autograd.grad(total, tuple(self.parameters())))

    def to_link(self) -> Link:
        """Chords of 16,384 cells. What chords and tails leave out is the table's ``error``."""
        slope, height, steep, shift = (part.detach().double().numpy() for part in self.parts())
        reach = float(np.max((np.abs(shift) + 20.0) / steep).clip(20.0, 2000.0))
        grid, step = np.linspace(-reach, reach, 16_385, retstep=True)
        with np.errstate(over="ignore"):
            values = slope * grid + (height / (1 + np.exp(-(steep * grid[:, None] + shift)))).sum(1)
            rest = (height / (1 + np.exp(steep * reach - np.abs(shift)))).sum()
        bend = float((height * steep**2).sum()) / (6 * math.sqrt(3))  # |sigmoid''| <= 1 / (6 sqrt 3)
        ends = float(slope)
        return Table(-reach, float(step), values, ends, ends, float(step) ** 2 / 8 * bend + float(rest))


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
        self.gain = _gain(math.sqrt(rate / self.delta) if gain is None else gain)
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
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None]:
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


def _gain(value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise OptionError(f"gain={value}; expected a finite number above 0")
    return float(value)


CURVES: dict[str, type[Curve]] = {
    "identity": Identity,
    "temperature": Temperature,
    "softcap": Cap,
    "sigsoftmax": SigSoftmax,
    "gss": Sigmoidal,
    "monotone": Monotone,
    "plif": Plif,
}


def build_curve(name: str, **options: Any) -> Curve:
    """``CURVES[name](**options)``; OptionError names what there is."""
    if name not in CURVES:
        raise OptionError(f"no curve is called {name!r}; there are {', '.join(sorted(CURVES))}")
    return CURVES[name](**options)
