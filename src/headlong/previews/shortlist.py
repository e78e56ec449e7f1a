"""A static shortlist: the classes that calibration vectors expect most, and the token map that drafters read::

    mass[c] = sum over the vectors of p(c | h)          kept: the ``size`` largest, ids ascending
    draft_to_target[i] = kept[i] - i                    target_in_draft[c] = c is kept

A drafter with that map has a head of ``size`` rows; ``kept_mass`` says how much probability the map leaves it on vectors
that did not choose it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.errors import OptionError, ShapeError
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.store import write_file

AT_ONCE = 1 << 22


class Shortlist(NamedTuple):
    """``ids [size]`` ascending, and the share of probability and of top-1 ids that they hold on held-out vectors."""

    ids: NDArray[np.int64]
    vocab: int
    kept_mass: float
    kept_top1: float

    def save(self, path: str | os.PathLike[str]) -> None:
        """``token_ids``, ``d2t`` (offsets), ``t2d`` (flags) in one safetensors file."""
        flags = np.zeros(self.vocab, np.bool_)
        flags[self.ids] = True
        offsets = self.ids - np.arange(len(self.ids))
        write_file(path, {"token_ids": self.ids, "d2t": offsets, "t2d": flags}, {"format": "headlong shortlist"})


def shortlist(layer: Layer, calibration: Doubles, size: int) -> Shortlist:
    """``size`` classes; every third vector is held out to measure them on."""
    if not 1 <= size <= layer.vocab:
        raise OptionError(f"size={size}; expected 1 to the layer's {layer.vocab} classes")
    if len(calibration) < 3:
        raise ShapeError(f"{len(calibration)} calibration vectors; expected 3 or more: some choose, some measure")
    held = np.zeros(len(calibration), bool)
    held[::3] = True
    mass, _ = _expected(layer, calibration[~held])
    ids = np.sort(np.argsort(-mass, kind="stable")[:size])
    measured, best = _expected(layer, calibration[held])
    return Shortlist(ids, layer.vocab, float(measured[ids].sum() / measured.sum()), float(np.isin(best, ids).mean()))


def _expected(layer: Layer, hidden: Doubles) -> tuple[Doubles, NDArray[np.int64]]:
    """``mass [vocab]`` and the likeliest class of each vector."""
    weight, mass, best = np.asarray(layer.weight, np.float32), np.zeros(layer.vocab), []
    step = max(1, AT_ONCE // layer.vocab)
    for start in range(0, len(hidden), step):
        z = hidden[start : start + step].astype(np.float32) @ weight.T
        z = np.asarray(layer.link((z if layer.bias is None else z + layer.bias).astype(np.float64)))
        best.append(z.argmax(axis=1))
        p = np.exp(z - z.max(axis=1, keepdims=True))
        mass += (p / p.sum(axis=1, keepdims=True)).sum(axis=0)
    return mass, np.concatenate(best)
