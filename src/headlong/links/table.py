"""Links by a table of knots: piecewise-linear functions, and any increasing curve within a stated error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from headlong.cached_attribute import once
from headlong.errors import OptionError
from headlong.links.base import Floats, Link, Lowered, checked_number

MOST_KNOTS = 1 << 21


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
            object.__setattr__(self, name, checked_number("Table", name, getattr(self, name), positive=positive))
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
        cell = np.fmax(np.fmin(np.floor((z - self.start) / self.step), cells - 1), 0).astype(np.int64)  # of NaN, any
        slopes = np.diff(self.values) / self.step
        inside = self.values[cell] + (z - (self.start + self.step * cell)) * slopes[cell]
        below = self.values[0] + (z - self.start) * self.left
        above = self.values[-1] + (z - self._end) * self.right
        return np.asarray(np.where(z < self.start, below, np.where(z > self._end, above, inside)))

    @property
    def _end(self) -> float:
        return self.start + self.step * (len(self.values) - 1)

    def lowered(self) -> Lowered:
        return ("table", self.start, self.step, self.values, self.left, self.right, self.error)

    def steepest_of(self, values: Floats) -> float:
        """The largest slope between ``values`` and beyond them."""
        with np.errstate(over="ignore"):
            return max(self.left, self.right, float(np.diff(values).max()) / self.step)

    @once
    def steepest(self) -> float:
        return self.steepest_of(self.values)

    @once
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


def evaluated(link: Link) -> Link:
    """The map as executors compute it: a curve that is lowered to a table is that table, for samples are drawn by it."""
    kind, *numbers = link.lowered()
    return Table(*numbers) if kind == "table" and not isinstance(link, Table) else link
