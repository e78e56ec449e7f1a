"""What a model does to its scores after the output layer, found from one example.

::

    f with f(ramp) = out:   the identity, a scale and shift, or cap * tanh(z / cap)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headlong import Affine, SoftCap
from headlong.dtypes import Doubles
from headlong.errors import HeadlongError, InputError

TOLERANCE = {"torch.float32": 1e-5, "torch.float64": 1e-10}
"""Relative to the largest score; 16-bit models round to about 2^-8."""
COARSE = 0.01


def link_between(ramp: Doubles, out: Doubles, known: Sequence[float], dtype: str) -> Affine | SoftCap:
    """The link that turns ``ramp`` into ``out``; ``known`` are numbers of the model's configuration, tried first."""
    candidates: list[Affine | SoftCap] = [Affine()]
    for value in known:
        candidates += [SoftCap(value), Affine(value), Affine(1 / value)]
    candidates += _fitted(ramp, out)
    size = float(np.abs(out).max()) or 1.0
    for link in candidates:
        if out.shape == ramp.shape and np.abs(link(ramp) - out).max() <= TOLERANCE.get(dtype, COARSE) * size:
            return link
    raise InputError(
        "the model changes its scores after the output layer in a way that is not a scale, shift or soft-cap; "
        "pass link= if it is one, or leave this model dense"
    )


def _fitted(ramp: Doubles, out: Doubles) -> list[Affine | SoftCap]:
    """A line through the two ends, and the soft-cap with that largest value."""
    found: list[Any] = []
    low, high = int(np.argmin(ramp)), int(np.argmax(ramp))
    scale = (out[high] - out[low]) / (ramp[high] - ramp[low])
    tries = [(Affine, (scale, out[low] - scale * ramp[low])), (SoftCap, (_cap(ramp[high], out[high]),))]
    for kind, values in tries:
        try:
            found.append(kind(*map(float, values)))
        except HeadlongError:  # a scale that is not positive, a cap that is none
            continue
    return found


def _cap(at: float, value: float) -> float:
    """cap with ``cap * tanh(at / cap) = value``: increasing in the cap, found by bisection."""
    low, high = 1e-3, 1e6
    for _ in range(200):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if middle * np.tanh(at / middle) < value else (low, middle)
    return low
