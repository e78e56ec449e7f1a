"""Axes of plots: where a value lies, and the round numbers that are written beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Axis(NamedTuple):
    """``at(value) = start + (stop - start) * (log value - low) / (high - low)``"""

    low: float
    high: float
    start: float
    stop: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, stop: float) -> Axis:
        """An axis a little longer than the values, which have to be positive."""
        logs = [math.log10(value) for value in values] or [0.0]
        spread = max(logs) - min(logs)
        margin = 0.05 * spread if spread > 1e-3 else 0.02
        return cls(min(logs) - margin, max(logs) + margin, start, stop)

    def at(self, value: float) -> float:
        return self.start + (self.stop - self.start) * (math.log10(value) - self.low) / (self.high - self.low)

    def ticks(self, most: int = 8) -> list[float]:
        """Round numbers: 1, 2 and 5 of each decade, or fewer where they would crowd."""
        decades = range(math.floor(self.low), math.ceil(self.high) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            found = [
                digit * 10.0**decade
                for decade in decades
                for digit in digits
                if self.low <= math.log10(digit) + decade <= self.high
            ]
            if len(found) <= most:
                return found if len(found) > 1 else self._even()
        return found[:: math.ceil(len(found) / most)]

    def _even(self) -> list[float]:
        """For an axis that is too short for two round numbers of a decade."""
        return Even(10**self.low, 10**self.high, self.start, self.stop).ticks()

    def labels(self, show: Callable[[float], str], most: int = 8) -> list[tuple[float, str]]:
        """Ticks with their words, none said twice."""
        said = [(tick, show(tick)) for tick in self.ticks(most)]
        return [pair for index, pair in enumerate(said) if index == 0 or pair[1] != said[index - 1][1]]


class Even(NamedTuple):
    """``at(value) = start + (stop - start) * (value - low) / (high - low)``"""

    low: float
    high: float
    start: float
    stop: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, stop: float) -> Even:
        low, high = min(values), max(values)
        return cls(low, high if high > low else low + 1.0, start, stop)

    def at(self, value: float) -> float:
        return self.start + (self.stop - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 8) -> list[float]:
        """Round numbers, at most so many: multiples of 1, 2 or 5 times a power of ten."""
        unit = 10.0 ** math.floor(math.log10((self.high - self.low) / most))
        step = next(unit * digit for digit in (1, 2, 5, 10, 20) if (self.high - self.low) / (unit * digit) <= most)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [round(step * number, 12) for number in range(first, last + 1)]
