"""Rotated codes of every class: a few bits of every coordinate, exact but for one query in many, or proved.

A scan of the codes gives every class an estimate and a radius; those that could be among the best, and those that hold much of
the mass, are scored exactly (``csrc/codes``). The rotation is drawn at compile time, so a likely radius holds for any hidden
vector and any layer; with ``delta`` 0 the same codes prove. Samples read all rows.

``auto`` makes the plausible lists of segments, times them on some vectors, and keeps the fastest
(:mod:`headlong.engines.contest`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headlong.encode.codes import codes_of
from headlong.encode.segments import STEPS, by_water_filling
from headlong.engines.method import Method, register
from headlong.errors import OptionError
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.number_checks import real, whole
from headlong.plan import Dense, Plan, Segment
from headlong.previews.blocks.choice import stand_ins
from headlong.previews.whitening import Directions, directions
from headlong.promise import Promise

LEAST_DIM = 16
"""Coordinates of the shortest segment: the error of fewer strays far."""
BITS = 4.5
"""A coordinate on average, where none are named: ids and normalisers are both fast."""


@register
@dataclass(frozen=True)
class Rotated(Method):
    """``bits``      of a coordinate on average, from 1 to 8, spread by water-filling
    ``segments``  ``[[start, stop, bits], ...]`` of the whitened coordinates in place of that; None: by ``bits``
    ``rotation``  the seed of the random rotation
    """

    bits: float = BITS
    segments: Sequence[Sequence[int]] | None = None
    rotation: int = 0

    name: ClassVar[str] = "codes"

    def __post_init__(self) -> None:
        real(self.bits, "bits", 1.0, 8.0)
        whole(self.rotation, "rotation", 0, 2**63 - 1)

    def plan(self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        basis = basis_for(layer, calibration)
        segments = (
            by_water_filling(energy(layer, basis, calibration), self.bits) if self.segments is None else self._named(layer.dim)
        )
        codes = codes_of(layer, basis, segments, self.rotation)
        if codes is None:
            raise OptionError("the layer's numbers leave float32's range when they are squared; expected method='full'")
        return Plan(mean=None, rotation=None, base=None, centre=None, levels=(), dense=Dense(batch=0), codes=codes)

    def promise(self, wanted: Promise, calibrated: bool) -> Promise:
        return wanted._replace(delta_ids=wanted.delta, over=frozenset({"query", "rotation"} if wanted.delta > 0 else ()))

    def _named(self, dim: int) -> tuple[Segment, ...]:
        assert self.segments is not None
        found = tuple(Segment(*map(int, one)) for one in self.segments)
        joined = [*(one.start for one in found), dim] == [0, *(one.stop for one in found)]
        if not joined or any(one.bits not in STEPS or (one.stop - one.start < LEAST_DIM and dim > LEAST_DIM) for one in found):
            raise OptionError(
                f"segments are {self.segments}; expected [start, stop, bits] that follow one another up to {dim}, each of at "
                f"least {LEAST_DIM} coordinates, with bits in {', '.join(map(str, STEPS))}"
            )
        return found


def basis_for(layer: Layer, calibration: Doubles | None) -> Directions:
    """The whitened basis for hidden vectors like these; without any, rows of the layer stand in for them."""
    return directions(layer.weight, stand_ins(layer) if calibration is None else calibration)


def energy(layer: Layer, basis: Directions, calibration: Doubles | None) -> Doubles:
    """What an error of one part of a coordinate costs: mean squares of hidden vectors times those of rows; made to fall."""
    vectors = stand_ins(layer) if calibration is None else calibration
    some = layer.weight[:: max(1, layer.vocab // 4096)].astype(np.float64) - basis.centre
    x = ((vectors[:: max(1, len(vectors) // 4096)] - basis.mean) @ basis.rotation) ** 2
    rows = (some @ basis.back.astype(np.float64)) ** 2
    return np.asarray(np.maximum.accumulate((x.mean(axis=0) * rows.mean(axis=0))[::-1])[::-1])
