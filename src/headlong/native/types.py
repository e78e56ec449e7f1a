"""The types of arrays that native code takes and gives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Doubles = NDArray[np.float64]
Mask = NDArray[np.uint8] | None
"""``[1 or batch, vocab]``: 1 where a class may be answered."""
