"""Whether somebody has written to the arrays that a layer borrows, at the price of a look.

::

    tensors   torch counts writes: the version of each, now and then
    arrays    some words of each, at places drawn once, others in the next call: an optimiser's step or a reload writes to all

Both are asked of tensors, since a fused optimiser or ``.data`` writes without being counted. A write to few rows of an array
is not seen here: ``Layer.stamp`` reads all of it.
"""

from __future__ import annotations

from typing import Any

from headlong.arrays import Array, kind_of
from headlong.randomness import stream

LOOKS, WORDS = 6, 8
"""Of each array, in as many calls: each word that a scan has driven out of the caches is waited for."""


class WrittenTo:
    """``found()``: whether the arrays are other than when this was made."""

    def __init__(self, given: tuple[Any, ...], arrays: tuple[Array, ...]) -> None:
        self._tensors = [part for part in given if kind_of(part) == "torch" and not part.is_inference()]
        self._versions = [part._version for part in self._tensors]  # noqa: SLF001  # torch has no other way to ask
        rng = stream("places that are watched")
        self._words = [_words(array) for array in arrays]
        self._places = [[rng.integers(0, len(words), WORDS) for words in self._words] for _ in range(LOOKS)]
        self._before = [self._now(look) for look in range(LOOKS)]
        self._look = 0

    def found(self) -> bool:
        if self._tensors and [part._version for part in self._tensors] != self._versions:  # noqa: SLF001
            return True
        self._look = look = (self._look + 1) % LOOKS  # threads may take one twice
        return self._now(look) != self._before[look]

    def _now(self, look: int) -> list[bytes]:
        return [words.take(places).tobytes() for words, places in zip(self._words, self._places[look], strict=True)]


def _words(array: Array) -> Array:
    return array.reshape(-1).view(f"u{array.itemsize}")
