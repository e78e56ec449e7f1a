"""What a caller hands over, read natively: hidden vectors in float64, and lists of ids as a mask."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array, bits
from headlong.dtypes import HIDDEN, Doubles
from headlong.native.load_module import module

NAMES = {dtype: dtype.name for dtype in HIDDEN}
"""The types that hidden vectors come in, in the machine's byte order: looked up, for NumPy makes up a name each time."""
MARKED = (np.dtype(np.int64), np.dtype(np.int32))
"""The types of ids that are marked natively."""


def widened(rows: Array) -> tuple[Doubles, float]:
    """``rows [batch, dim]`` in float64, and the size of the largest entry: infinite (or NaN) where one is not finite.

    This comes before every answer, mostly in cold caches: one native pass, or two of NumPy's where there is no native module.
    """
    native, name = sys.modules.get("headlong._native"), NAMES.get(rows.dtype)
    if native is None or name is None:
        wide = np.ascontiguousarray(rows, np.float64)
        return wide, float(np.abs(wide).max(initial=0.0))
    rows = rows if rows.flags.c_contiguous else np.ascontiguousarray(rows)
    place = None if name == "float64" else np.empty(rows.shape)
    largest: float = native.widened(bits(rows), name, place)
    return rows if place is None else place, largest


def mark(marked: NDArray[np.uint8], ids: Array, at: int) -> bool:
    """``marked[r, i] = at`` (0 or 1) for the ids ``i`` of ``ids [r, m]``, else ``1 - at``; -1 is no id.

    False, with anything in ``marked``: an id is out of range, the ids are not int64 or int32, or the native module is not there
    (where it is, it marks whatever ``HEADLONG_ISA`` says).
    """
    native = _marker()
    if native is None or ids.dtype not in MARKED:
        return False
    return bool(native(marked, np.ascontiguousarray(ids), at))


@functools.cache
def _marker() -> Any:
    """What marks ids, found once: looking for it takes as long as marking a few."""
    native = module()
    return None if native is None else native.mark
