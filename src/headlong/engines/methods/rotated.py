"""Rotated codes of every class: a few bits of every coordinate, exact but for one query in many, or proved.

A scan of the codes gives every class an estimate and a radius; those that could be among the best, and those that hold much of
the mass, are scored exactly (``csrc/codes``). The rotation is drawn at compile time, so a likely radius holds for any hidden
vector and any layer; with ``delta`` 0 the same codes prove. Samples read all rows; so does everything where the squares of a
layer's numbers leave float32, or where it has one coordinate.

``auto`` makes the plausible lists of segments, times them on some vectors, and keeps the fastest
(:mod:`headlong.engines.contest`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from headlong.encode.basis import LEAST_DIM, basis_for, energy
from headlong.encode.segments import by_water_filling
from headlong.encode.tiles import codes_of, fit
from headlong.engines.method import Method, register
from headlong.errors import OptionError
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.number_checks import real, whole
from headlong.plan import CODE_BITS, Dense, Plan, Segment
from headlong.promise import Promise

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
        none = Plan(rotation=None, base=None, centre=None, levels=(), dense=Dense(batch=0))
        if not fit(layer):
            return none
        basis = basis_for(layer, calibration)
        segments = (
            by_water_filling(energy(layer, basis, calibration), self.bits) if self.segments is None else self._named(layer.dim)
        )
        codes = codes_of(layer, basis, segments, self.rotation, threads)
        return none._replace(codes=codes)

    def promise(self, wanted: Promise) -> Promise:
        return wanted._replace(delta_ids=wanted.delta)

    def _named(self, dim: int) -> tuple[Segment, ...]:
        assert self.segments is not None
        found = tuple(Segment(*map(int, one)) for one in self.segments)
        joined = [*(one.start for one in found), dim] == [0, *(one.stop for one in found)]
        short = any(one.stop - one.start < min(LEAST_DIM, dim) for one in found)
        if not joined or short or any(one.bits not in CODE_BITS for one in found):
            raise OptionError(
                f"segments are {self.segments}; expected [start, stop, bits] that follow one another up to {dim}, each of at "
                f"least {LEAST_DIM} coordinates, with bits in {', '.join(map(str, CODE_BITS))}"
            )
        return found
