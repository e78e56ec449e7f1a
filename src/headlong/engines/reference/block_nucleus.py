"""The nucleus from the classes that a search reached: the twin of ``nucleus_of`` in ``csrc/by_blocks/plain_questions.cpp``.

    rest = V exp(floor)         no less than the mass of all classes that were not scored
    the same size with the sum of what was scored and with that and rest, and rest begins behind it: that is the nucleus
"""

from __future__ import annotations

import math

import numpy as np

from headlong.engines.reference.nucleus import nucleus_size
from headlong.native import Doubles

NARROW = 1 - 2.0**-30
"""Of a sum of masses: more than its rounding, and that of most logits; the same in the native code."""


def nucleus_reached(logits: Doubles, floor: float, scale: float, top_p: float, vocab: int) -> int:
    """How many of ``logits``, which fall, are in the nucleus of ``exp(scale * z)``; 0 where that is in doubt."""
    if not len(logits) or not np.isfinite(logits).all():
        return 0
    mass = np.exp((logits - logits[0]) * scale)
    total, rest = float(mass.sum()), vocab * math.exp(min((floor - float(logits[0])) * scale, 0.0))
    sizes = [nucleus_size(mass, top_p, end) for end in (total * NARROW, total + rest)]
    return sizes[0] if sizes[0] == sizes[1] and total >= top_p * (total + rest) else 0
