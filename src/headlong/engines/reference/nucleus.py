"""Which classes the sampling filters keep.

    top_p    class i stays while   sum over better j of exp(link(z_j) / T)  <  top_p * sum over all j
    min_p    class i stays while   link(z_i) / T  >=  max link(z) / T + log(min_p)

"Better" is a larger logit, or an equal one with a smaller id. ``top_k`` comes before both, as in Hugging Face's samplers: it
narrows the live classes, and is no business of this file.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import Doubles


def nucleus_size(mass: Doubles, top_p: float, total: float | None = None) -> int:
    """How many classes, in falling order of ``mass``, have less than ``top_p * total`` before them (None: of all of it)."""
    before = np.concatenate([[0.0], np.cumsum(mass)])
    return int((before[:-1] < top_p * (before[-1] if total is None else total)).sum())


def kept(logits: Doubles, exponents: Doubles, top_p: float, min_p: float) -> NDArray[np.int64]:
    """The classes that stay, of those whose exponents ``link(z) / T`` are not -inf."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    order = order[exponents[order] > -np.inf]
    if not len(order):
        return order
    peak = float(exponents[order[0]])
    size = nucleus_size(np.exp(exponents[order] - peak), top_p) if top_p < 1 else len(order)
    floor = peak + math.log(min_p) if min_p > 0 else -math.inf
    stay = exponents[order] >= floor
    stay[0] = True
    return np.sort(order[:size][stay[:size]])
