"""Whether somebody has written to the arrays that a layer borrows, at the price of a look.

::

    tensors   torch counts writes: the version of each, now and then
    arrays    some words of each, at places drawn once, others in the next call: an optimiser's step or a reload writes to all

Both are asked of tensors, since a fused optimiser or ``.data`` writes without being counted. A write to few rows of an array
is not seen here: ``Layer.stamp`` reads all of it, as :func:`digest` does, which is asked where somebody else's model learns
in place, a few rows at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headlong.arrays import Array, kind_of, unchanging
from headlong.randomness import stream

RUN, AT_ONCE = 1024, 1 << 16
"""Words of a run of a digest, and words that are summed at once: those stay in a cache."""
LOOKS, WORDS = 6, 8
"""Sets of places that take turns, and words in each: a word that a scan has driven out of the caches is waited for."""


class WrittenTo:
    """``found()``: whether the arrays are other than when this was made."""

    def __init__(self, given: tuple[Any, ...], arrays: tuple[Array, ...]) -> None:
        self._tensors = [part for part in given if kind_of(part) == "torch" and not part.is_inference()]
        self._versions = [part._version for part in self._tensors]  # noqa: SLF001  # torch has no other way to ask
        rng = stream("places that are watched")
        words = [_words(array) for array in arrays]
        places = [[(some, rng.integers(0, len(some), WORDS)) for some in words] for _ in range(LOOKS)]
        self._before = [[(some.take, at, some.take(at).tobytes()) for some, at in look] for look in places]
        self._look = 0

    def found(self) -> bool:
        if self._tensors and [part._version for part in self._tensors] != self._versions:  # noqa: SLF001
            return True
        self._look = look = (self._look + 1) % LOOKS  # threads may take one twice
        for take, places, before in self._before[look]:  # noqa: SIM110  # a generator costs as much as the look
            if take(places).tobytes() != before:
                return True
        return False


def _words(array: Array) -> Array:
    return array.reshape(-1).view(f"u{array.itemsize}")


def digest(*arrays: Array) -> tuple[Any, ...]:
    """Shapes, types, and sums modulo 2^64 of the words of each run and of each place in a run, at the price of one reading;
    of arrays that are closed to writing which ones they are, at none.

    A write to one word changes both of its sums. What escapes: words at corners of a rectangle of runs and places, whose
    changes cancel.
    """
    return tuple((one.shape, one.dtype.str, *((id(one), one.ctypes.data) if unchanging(one) else _sums(one))) for one in arrays)


def _sums(array: Array) -> tuple[bytes, bytes, bytes]:
    flat = np.ascontiguousarray(array.T if array.flags.f_contiguous else array).reshape(-1).view(np.uint8)
    words = flat[: len(flat) // 8 * 8].view(np.uint64)
    whole, places = len(words) // RUN * RUN, np.zeros(RUN, np.uint64)
    runs = np.empty(whole // RUN, np.uint64)
    for start in range(0, whole, AT_ONCE):
        some = words[start : min(start + AT_ONCE, whole)].reshape(-1, RUN)
        runs[start // RUN : start // RUN + len(some)] = some.sum(axis=1)
        places += some.sum(axis=0)
    return runs.tobytes(), places.tobytes(), flat[8 * whole :].tobytes()
