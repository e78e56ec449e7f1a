"""Links: strictly increasing maps from a raw logit ``z`` to the exponent of the softmax, ``log p = f(z) - lse(f(z))``.

``Affine``   f(z) = scale * z + shift                                   the identity, a temperature, a logit scale
``SoftCap``  f(z) = cap * tanh(z / cap)                                 Gemma's final soft-cap
``Gss``      f(z) = k (z - c) + c - (k - 1) softplus(z - c)             SigSoftmax (c = 0, k = 2) and its generalisation
``Table``    straight between equally spaced knots and beyond them      PLIF, monotone networks, any increasing curve

Being increasing, a link never changes a ranking, and the interval of f(z) is [f(lo), f(hi)]. NumPy in float64 is the
reference here; the native code and a GPU evaluate only what ``lowered()`` hands them: affine maps, soft-caps and tables,
whose largest error joins what an answer says of itself.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headlong.errors import MalformedFileError, OptionError

Floats = NDArray[np.float64]
Lowered = tuple[str, float, float] | tuple[str, float, float, Floats, float, float, float]

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
        """What the executors evaluate: ``("affine", scale, shift)``, ``("softcap", cap, 0.0)`` or
        ``("table", start, step, values, left, right, error)``."""

    @property
    def steepest(self) -> float:
        """The largest slope of f anywhere."""

    @property
    def offset(self) -> float:
        """``|f(0)|``: f(z) is within ``offset + steepest * |z|``."""

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
        object.__setattr__(self, "cap", _number("SoftCap", "cap", self.cap, positive=True))

    def __call__(self, logits: ArrayLike) -> Floats:
        return np.asarray(self.cap * np.tanh(np.asarray(logits, np.float64) / self.cap), np.float64)

    def interval(self, low: ArrayLike, high: ArrayLike) -> tuple[Floats, Floats]:
        bottom, top = self(low), self(high)
        bottom = np.maximum(bottom - np.abs(bottom) * ROUNDING - _TINY, -self.cap)
        return bottom, np.minimum(top + np.abs(top) * ROUNDING + _TINY, self.cap)

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
        object.__setattr__(self, "centre", _number("Gss", "centre", self.centre, positive=False))
        object.__setattr__(self, "power", _number("Gss", "power", self.power, positive=True))

    def __call__(self, logits: ArrayLike) -> Floats:
        x = np.asarray(logits, np.float64) - self.centre
        # k x - (k - 1) softplus(x) without inf - inf: x above 0, k x below, and what the bend takes
        return np.asarray(
            np.maximum(x, 0.0) + self.power * np.minimum(x, 0.0) + self.centre - (self.power - 1) * np.log1p(np.exp(-np.abs(x)))
        )

    def interval(self, low: ArrayLike, high: ArrayLike) -> tuple[Floats, Floats]:
        return self(low) - self._rounding(low), self(high) + self._rounding(high)

    def _rounding(self, logits: ArrayLike) -> Floats:
        size = (np.abs(np.asarray(logits, np.float64)) + 2 * abs(self.centre) + 1) * (1 + self.power)
        return np.where(np.isfinite(size), size * ROUNDING + _TINY, 0.0)

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


@dataclass(frozen=True, eq=False)
class Table:
    """``f(start + i * step) = values[i]``, straight between; slope ``left`` below the first knot, ``right`` above the last.

    ``values [cells + 1]`` float64, strictly increasing; ``step``, ``left``, ``right`` above 0. ``error``: how far this may
    be from a curve that it stands for; twice that joins the error of every answer (0: the table is the link).
    """

    start: float
    step: float
    values: Floats
    left: float
    right: float
    error: float = 0.0

    @classmethod
    def through(cls, knots: ArrayLike, values: ArrayLike, left: float, right: float, cells: int = 4096) -> Table:
        """The curve straight between any increasing ``knots``, laid on ``cells`` equal cells; ``error`` says how near."""
        x, y = np.asarray(knots, np.float64), np.asarray(values, np.float64)
        if x.ndim != 1 or x.shape != y.shape or len(x) < 2 or not (np.isfinite(x).all() and (np.diff(x) > 0).all()):
            raise OptionError(f"Table.through(knots of shape {x.shape}); expected two or more finite, in ascending order")
        grid = np.linspace(x[0], x[-1], cells + 1)
        table = cls(float(x[0]), float((x[-1] - x[0]) / cells), np.interp(grid, x, y), left, right)
        # both are straight between all knots and all grid points, so they differ most at one of them
        off = float(np.abs(table(x) - y).max())
        return cls(table.start, table.step, table.values, left, right, off)

    def __post_init__(self) -> None:
        for name, positive in (("start", False), ("step", True), ("left", True), ("right", True), ("error", False)):
            object.__setattr__(self, name, _number("Table", name, getattr(self, name), positive=positive))
        try:
            values = np.array(self.values, np.float64)
        except (TypeError, ValueError):
            raise OptionError("Table(values); expected numbers, one for each knot") from None
        if values.ndim != 1 or not 2 <= len(values) <= MOST_KNOTS or not np.isfinite(values).all():
            raise OptionError(f"Table(values of shape {values.shape}); expected 2 to {MOST_KNOTS} finite numbers")
        if not (np.diff(values) > 0).all():
            at = int(np.argmin(np.diff(values) > 0))
            raise OptionError(
                f"Table(values): {values[at]!r} is followed by {values[at + 1]!r} at knot {at + 1}; "
                "expected ascending values: a link has to increase, or it would change the ranking"
            )
        end = self.start + self.step * len(values)
        if not (self.start + self.step > self.start and math.isfinite(end) and math.isfinite(self.steepest_of(values))):
            raise OptionError(f"Table(start={self.start!r}, step={self.step!r}) has knots or slopes beyond float64")
        if self.error < 0:
            raise OptionError(f"Table(error={self.error!r}); expected 0 or more")
        values.setflags(write=False)
        object.__setattr__(self, "values", values)

    def __call__(self, logits: ArrayLike) -> Floats:
        z = np.asarray(logits, np.float64)
        cells = len(self.values) - 1
        cell = np.clip(np.floor((z - self.start) / self.step), 0, cells - 1).astype(np.int64)
        slopes = np.diff(self.values) / self.step
        inside = self.values[cell] + (z - (self.start + self.step * cell)) * slopes[cell]
        below = self.values[0] + (z - self.start) * self.left
        above = self.values[-1] + (z - self._end) * self.right
        return np.asarray(np.where(z < self.start, below, np.where(z > self._end, above, inside)))

    @property
    def _end(self) -> float:
        return self.start + self.step * (len(self.values) - 1)

    def interval(self, low: ArrayLike, high: ArrayLike) -> tuple[Floats, Floats]:
        return self(low) - self._rounding(low), self(high) + self._rounding(high)

    def _rounding(self, logits: ArrayLike) -> Floats:
        reach = np.abs(np.asarray(logits, np.float64)) + abs(self.start) + abs(self._end)
        size = float(np.abs(self.values).max()) + self.steepest * reach
        return np.where(np.isfinite(size), size * ROUNDING + _TINY, 0.0)

    def lowered(self) -> Lowered:
        return ("table", self.start, self.step, self.values, self.left, self.right, self.error)

    def steepest_of(self, values: Floats) -> float:
        """The largest slope between ``values`` and beyond them."""
        with np.errstate(over="ignore"):
            return max(self.left, self.right, float(np.diff(values).max()) / self.step)

    @cached_property
    def steepest(self) -> float:
        return self.steepest_of(self.values)

    @cached_property
    def offset(self) -> float:
        return abs(float(self(0.0)))

    def as_dict(self) -> dict[str, Any]:
        numbers = {"start": self.start, "step": self.step, "left": self.left, "right": self.right, "error": self.error}
        return {"kind": "table", **numbers, "values": self.values.tolist()}

    def _facts(self) -> tuple[Any, ...]:
        return (self.start, self.step, self.left, self.right, self.error, self.values.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def __str__(self) -> str:
        return f"table of {len(self.values)} knots"


IDENTITY = Affine()
SIGSOFTMAX = Gss()
CELLS, REACH = 4096, 20.0
"""A lowered ``Gss``: cells, and how far they reach on both sides of its centre."""
MOST_KNOTS = 1 << 21


def lowering_error(link: Link) -> float:
    """By how much what ``link.lowered()`` gives may be off the link: 0 but for tables that stand for a curve."""
    lowered = link.lowered()
    return lowered[6] if len(lowered) == 7 else 0.0


def link_from_dict(data: Mapping[str, Any]) -> Link:
    """The link that :meth:`Link.as_dict` described; raises where the description is none."""
    kinds: dict[str, tuple[Callable[..., Link], set[str]]] = {
        "affine": (Affine, {"scale", "shift"}),
        "softcap": (SoftCap, {"cap"}),
        "gss": (Gss, {"centre", "power"}),
        "table": (Table, {"start", "step", "values", "left", "right", "error"}),
    }
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
