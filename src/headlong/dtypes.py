"""The types of numbers that a layer's weights and hidden vectors may have, wherever they come from."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
STORED = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
"""The types a layer's weights are read in."""
HIDDEN = (*STORED, np.dtype(np.float64))
"""The types hidden vectors come in."""
UNIT = 2.0**-53
"""The most that rounding to float64 changes a number, relative to it."""

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]
Halves = NDArray[np.float16]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
