"""Links with a formula: affine maps, soft-caps, and GSS with SigSoftmax."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from headlong.links.base import ROUNDING, Floats, Lowered, checked_number


@dataclass(frozen=True)
class Affine:
    """``f(z) = scale * z + shift``, scale > 0. ``Affine()`` is the identity."""

    scale: float = 1.0
    shift: float = 0.0

    @classmethod
    def temperature(cls, value: float) -> Affine:
        """``f(z) = z / value``: above 1 flatter, below 1 sharper."""
        return cls(1.0 / checked_number("Affine.temperature", "value", value, positive=True))

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", checked_number("Affine", "scale", self.scale, positive=True))
        object.__setattr__(self, "shift", checked_number("Affine", "shift", self.shift, positive=False))

    def __call__(self, logits: ArrayLike) -> Floats:
        return np.asarray(logits, np.float64) * self.scale + self.shift

    def lowered(self) -> Lowered:
        return ("affine", self.scale, self.shift)

    @property
    def steepest(self) -> float:
        return self.scale

    @property
    def offset(self) -> float:
        return abs(self.shift)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "affine", "scale": self.scale, "shift": self.shift}

    def __str__(self) -> str:
        if self == IDENTITY:
            return "identity"
        return f"scale {self.scale:g}" + (f" shift {self.shift:g}" if self.shift else "")


@dataclass(frozen=True)
class SoftCap:
    """``f(z) = cap * tanh(z / cap)``, cap > 0: about z near 0, never beyond ±cap."""

    cap: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "cap", checked_number("SoftCap", "cap", self.cap, positive=True))

    def __call__(self, logits: ArrayLike) -> Floats:
        return np.asarray(self.cap * np.tanh(np.asarray(logits, np.float64) / self.cap), np.float64)

    def lowered(self) -> Lowered:
        return ("softcap", self.cap, 0.0)

    @property
    def steepest(self) -> float:
        return 1.0

    @property
    def offset(self) -> float:
        return 0.0

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "softcap", "cap": self.cap}

    def __str__(self) -> str:
        return f"softcap {self.cap:g}"


@dataclass(frozen=True)
class Gss:
    """``f(z) = k (z - c) + c - (k - 1) softplus(z - c)``, k > 0: slope k far below c, 1 far above.

    SigSoftmax ``p ~ exp(z) sigmoid(z)`` is c = 0, k = 2 (Kanai et al. 2018); others: Parthiban et al. 2021.
    """

    centre: float = 0.0
    power: float = 2.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "centre", checked_number("Gss", "centre", self.centre, positive=False))
        object.__setattr__(self, "power", checked_number("Gss", "power", self.power, positive=True))

    def __call__(self, logits: ArrayLike) -> Floats:
        x = np.asarray(logits, np.float64) - self.centre
        # k x - (k - 1) softplus(x) without inf - inf: x above 0, k x below, and what the bend takes
        return np.asarray(
            np.maximum(x, 0.0) + self.power * np.minimum(x, 0.0) + self.centre - (self.power - 1) * np.log1p(np.exp(-np.abs(x)))
        )

    def lowered(self) -> Lowered:
        """The chords of ``CELLS`` cells around c: off by at most ``|k - 1| (h^2 / 32 + e^-20)``, h their width."""
        start, step = self.centre - REACH, 2 * REACH / CELLS
        values = self(start + step * np.arange(CELLS + 1))
        error = abs(self.power - 1) * (step * step / 32 + math.exp(-REACH)) * (1 + ROUNDING)
        return ("table", start, step, values, self.power, 1.0, error)

    @property
    def steepest(self) -> float:
        return max(1.0, self.power)

    @property
    def offset(self) -> float:
        return abs(float(self(0.0)))

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "gss", "centre": self.centre, "power": self.power}

    def __str__(self) -> str:
        return "sigsoftmax" if self == SIGSOFTMAX else f"gss centre {self.centre:g} power {self.power:g}"


IDENTITY = Affine()
SIGSOFTMAX = Gss()
CELLS, REACH = 4096, 20.0
"""A lowered ``Gss``: cells, and how far they reach on both sides of its centre."""
