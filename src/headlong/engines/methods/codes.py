"""Rotated codes of every class: a few bits of every coordinate; exact except with a chosen probability, or proved.

A scan of the codes gives every class an estimate and a radius; those that could be among the best, and those that hold much of
the mass, are scored exactly (``csrc/codes``). The rotation is drawn at compile time, so a likely radius holds for any hidden
vector and any layer; with ``delta`` 0 the same codes prove. Where the squares of a layer's numbers leave float32, or where it
has one coordinate, there are no codes, and every query reads all rows.

``auto`` times the plausible lists of segments on calibration vectors and keeps the fastest (:mod:`headlong.engines.contest`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from headlong.encode.basis import LEAST_DIM, basis_for, energy
from headlong.encode.segments import by_water_filling, plausible, uniform
from headlong.encode.tiles import codes_of
from headlong.engines.method import Method, register
from headlong.engines.methods.blocks import with_blocks
from headlong.errors import InputError, OptionError
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.number_checks import flag, real, whole, wholes
from headlong.plan import CODE_BITS, Plan, Segment
from headlong.promise import Promise


@register
@dataclass(frozen=True)
class Coded(Method):
    """``bits``      of a coordinate on average, from 1 to 8, spread by water-filling; None: by what is promised, or eight of
                  every coordinate where there are no calibration vectors
    ``segments``  ``[[start, stop, bits], ...]`` of the whitened coordinates in place of that; None: by ``bits``
    ``rotation``  the seed of the random rotation
    ``blocks``    bound sixteen neighbouring classes at once where ids alone are asked for (``eps=inf``; samples);
                  None: where calibration vectors show that it reads less, or, on trial, rows of a large layer do
    """

    bits: float | None = None
    segments: Sequence[Sequence[int]] | None = None
    rotation: int = 0
    blocks: bool | None = None

    name: ClassVar[str] = "codes"

    def __post_init__(self) -> None:
        if self.bits is not None:
            real(self.bits, "bits", 1.0, 8.0)
        whole(self.rotation, "rotation", 0, 2**63 - 1)
        if self.blocks is not None:
            flag(self.blocks, "blocks")
        if self.segments is not None:
            self._listed()

    def plan(self, layer: Layer, calibration: Doubles | None, threads: int, wanted: Promise) -> Plan:
        basis = basis_for(layer, calibration)
        if self.segments is not None:
            segments = self._named(layer.dim)
        elif self.bits is not None:
            segments = by_water_filling(energy(layer, basis, calibration), self.bits)
        elif calibration is None:
            segments = uniform(layer)
        else:
            segments = plausible(layer, energy(layer, basis, calibration), wanted)[0]
        plan = Plan(codes=codes_of(layer, basis, segments, self.rotation))
        return with_blocks(plan, layer, basis, calibration, threads, wanted, self.blocks)

    def promise(self, wanted: Promise, plan: Plan) -> Promise:
        """Of all rows, everything is proved."""
        return wanted._replace(delta=0.0) if plan.codes is None else wanted

    def _named(self, dim: int) -> tuple[Segment, ...]:
        found = self._listed()
        joined = [*(one.start for one in found), dim] == [0, *(one.stop for one in found)]
        short = any(one.stop - one.start < min(LEAST_DIM, dim) for one in found)
        if not joined or short or any(one.bits not in CODE_BITS for one in found):
            raise OptionError(
                f"segments are {self.segments}; expected [start, stop, bits] that follow one another up to {dim}, each of at "
                f"least {LEAST_DIM} coordinates, with bits in {', '.join(map(str, CODE_BITS))}"
            )
        return found

    def _listed(self) -> tuple[Segment, ...]:
        given: Any = self.segments
        try:
            return tuple(Segment(*wholes(one, "a segment", 0, 2**40)) for one in given)
        except (TypeError, RuntimeError, InputError) as error:  # RuntimeError: a tensor without numbers
            raise OptionError(f"segments are {self.segments!r}; expected a list of [start, stop, bits]") from error
