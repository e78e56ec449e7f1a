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
from torch.nn import functional

from headlong.errors import OptionError
from headlong.links import IDENTITY, Affine, Gss, Link, SoftCap, Table

CELLS = 4096
"""Chords that a monotone network is read by while it is trained."""
HEIGHT = 0.78
"""What a monotone network's units add up to at first."""


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


def checked_gain(value: float) -> float:
    """A finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise OptionError(f"gain={value}; expected a finite number above 0")
    return float(value)


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
        self.gain, self.value = checked_gain(gain), nn.Parameter(torch.zeros(()))

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
        self.gain = checked_gain(gain)
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
            asked = [one for one in self.parameters() if one.requires_grad]
            found = iter(torch.autograd.grad(total, asked) if asked else ())
            return tuple((next(found) if one.requires_grad else torch.zeros_like(one)).double() for one in self.parameters())

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
