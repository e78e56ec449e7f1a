"""Which method "auto" stands for, and from which sizes on: every threshold of that choice, in weights, bytes and classes.

    full        where reading all rows is no slower than a scan of codes first: few weights; for a bet, few bytes of rows
    codes       otherwise

``headlong.compile`` asks here; :mod:`headlong.engines.build` builds what was chosen, and with calibration vectors the clock has
the last word (:mod:`headlong.engines.contest`).
"""

from __future__ import annotations

import math

from headlong.encode.basis import LEAST_DIM
from headlong.encode.tiles import fit
from headlong.layers.matrix import Layer
from headlong.promise import Promise

LEAST_VOCAB, LEAST_NUMBERS = 2048, 1 << 18
"""Layers below are read in some microseconds in any way."""
UNTIMED, WIDE, MOST_DIM = 1 << 22, (4, 16), 4096
"""Without calibration vectors: weights from which on codes are made where normalisers are promised; classes a coordinate, for a
query's rotation to be a small part of what it reads, for ids alone and for normalisers; and coordinates up to which."""


def choose(layer: Layer, wanted: Promise, calibrated: bool) -> tuple[str, str]:
    """The method that "auto" stands for, and why."""
    size = layer.vocab * layer.dim
    if layer.vocab < LEAST_VOCAB or size < LEAST_NUMBERS or layer.dim < LEAST_DIM:
        return "full", f"{layer.vocab:,} x {layer.dim}: so few weights are read in no time"
    if not fit(layer):
        return "full", "the squares of the layer's numbers leave float32, which codes are made in"
    if calibrated:
        return "codes", f"{size:,} weights"
    if wanted.delta == 0 and math.isfinite(wanted.eps):
        return "full", "proved log-probabilities take all rows, unless calibration vectors show otherwise"
    sums = math.isfinite(wanted.eps)
    if sums and size < UNTIMED:
        return "full", f"{size:,} weights, fewer than {UNTIMED:,}, and no calibration vectors to time codes on"
    if layer.dim > MOST_DIM or layer.vocab < WIDE[sums] * layer.dim:
        return "full", f"{layer.vocab:,} classes of {layer.dim} coordinates: rotating a query takes too long"
    return "codes", f"{size:,} weights"
