"""Links: strictly increasing maps from a raw logit ``z`` to the exponent of the softmax, ``log p = f(z) - lse(f(z))``.

``Affine``   f(z) = scale * z + shift      the identity, a temperature, a logit scale
``SoftCap``  f(z) = cap * tanh(z / cap)    Gemma's final soft-cap

Being increasing, a link never changes a ranking, and the interval of f(z) is [f(lo), f(hi)]. NumPy in float64 is the
reference here; the native code and a GPU evaluate only what ``lowered()`` hands them.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headlong.errors import MalformedFileError, OptionError

Floats = NDArray[np.float64]
Lowered = tuple[str, float, float]

ROUNDING = 2.0**-50
"""f computed in float64 is within this, relative to its largest term, of f: a few roundings, and libm's tanh."""
_TINY = float(np.finfo(np.float64).tiny)


@runtime_checkable
class Link(Protocol):
    """An increasing map on logits; hashable, comparable, and data only."""

    def __call__(self, logits: ArrayLike) -> Floats:
        """f(z), elementwise in float64."""

    def interval(self, low: ArrayLike, high: ArrayLike) -> tuple[Floats, Floats]:
        """Bounds of f over ``[low, high]``, rounded outward."""

    def lowered(self) -> Lowered:
        """``("affine", scale, shift)`` or ``("softcap", cap, 0.0)``: what the executors evaluate."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data to save; :func:`link_from_dict` is the inverse."""


def _number(owner: str, name: str, value: object, *, positive: bool) -> float:
    want = "a finite number above 0" if positive else "a finite number"
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        # below the smallest normal number, 1 / cap and products with it lose their digits
        if math.isfinite(number) and (number >= _TINY or not positive):
            return number
    reason = ": a link has to increase, or it would change the ranking" if positive else ""
    raise OptionError(f"{owner}({name}={value!r}); expected {want}{reason}")


@dataclass(frozen=True)
class Affine:
    """``f(z) = scale * z + shift``, scale > 0. ``Affine()`` is the identity."""

    scale: float = 1.0
    shift: float = 0.0

    @classmethod
    def temperature(cls, value: float) -> Affine:
        """``f(z) = z / value``: above 1 flatter, below 1 sharper."""
        return cls(1.0 / _number("Affine.temperature", "value", value, positive=True))

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _number("Affine", "scale", self.scale, positive=True))
        object.__setattr__(self, "shift", _number("Affine", "shift", self.shift, positive=False))

    def __call__(self, logits: ArrayLike) -> Floats:
        return np.asarray(logits, np.float64) * self.scale + self.shift

    def interval(self, low: ArrayLike, high: ArrayLike) -> tuple[Floats, Floats]:
        if self == IDENTITY:
            return np.asarray(low, np.float64), np.asarray(high, np.float64)
        return self(low) - self._rounding(low), self(high) + self._rounding(high)

    def _rounding(self, logits: ArrayLike) -> Floats:
        # relative to the terms, not to their sum, which may cancel
        size = np.abs(np.asarray(logits, np.float64)) * self.scale + abs(self.shift)
        return np.where(np.isfinite(size), size * ROUNDING + _TINY, 0.0)

    def lowered(self) -> Lowered:
        return ("affine", self.scale, self.shift)

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
        object.__setattr__(self, "cap", _number("SoftCap", "cap", self.cap, positive=True))

    def __call__(self, logits: ArrayLike) -> Floats:
        return np.asarray(self.cap * np.tanh(np.asarray(logits, np.float64) / self.cap), np.float64)

    def interval(self, low: ArrayLike, high: ArrayLike) -> tuple[Floats, Floats]:
        bottom, top = self(low), self(high)
        bottom = np.maximum(bottom - np.abs(bottom) * ROUNDING - _TINY, -self.cap)
        return bottom, np.minimum(top + np.abs(top) * ROUNDING + _TINY, self.cap)

    def lowered(self) -> Lowered:
        return ("softcap", self.cap, 0.0)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "softcap", "cap": self.cap}

    def __str__(self) -> str:
        return f"softcap {self.cap:g}"


IDENTITY = Affine()


def link_from_dict(data: Mapping[str, Any]) -> Link:
    """The link that :meth:`Link.as_dict` described; raises where the description is none."""
    kinds: dict[str, tuple[Callable[..., Link], set[str]]]
    kinds = {"affine": (Affine, {"scale", "shift"}), "softcap": (SoftCap, {"cap"})}
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise MalformedFileError(f"a link of kind {kind!r} was saved; this version knows {', '.join(kinds)}")
    build, names = kinds[kind]
    values = {name: value for name, value in data.items() if name != "kind"}
    if set(values) != names:
        raise MalformedFileError(f"a saved {kind} link holds {sorted(values)}; expected {sorted(names)}")
    try:
        return build(**values)
    except OptionError as error:
        raise MalformedFileError(f"a saved link cannot be read: {error}") from error
