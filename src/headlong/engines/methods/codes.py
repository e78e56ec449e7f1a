"""Rotated codes of every class: a few bits of every coordinate; exact except with a chosen probability, or proved.

A scan of the codes gives every class an estimate and a radius; those that could be among the best, and those that hold much of
the mass, are scored exactly (``csrc/codes``). The rotation is drawn at compile time, so a likely radius holds for any hidden
vector and any layer; with ``delta`` 0 the same codes prove. Where the squares of a layer's numbers leave float32, or where it
has one coordinate, there are no codes, and every query reads all rows.

``auto`` times all rows and the plausible lists of segments on calibration vectors and keeps the fastest (:func:`by_the_clock`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from headlong import native
from headlong.dtypes import Doubles
from headlong.encode.basis import LEAST_DIM, basis_for, energy
from headlong.encode.segments import by_water_filling, plausible, uniform
from headlong.encode.tiles import codes_of
from headlong.engines.base import Engine
from headlong.engines.contest import fastest, some_of
from headlong.engines.full import Full
from headlong.engines.method import Making, Method, register
from headlong.engines.methods.blocks import limited, with_blocks
from headlong.errors import InputError, OptionError
from headlong.number_checks import flag, real, whole, wholes
from headlong.plan import CODE_BITS, Codes, Plan, Segment
from headlong.promise import Promise


@register
@dataclass(frozen=True)
class Coded(Method):
    """``bits``      of a coordinate on average, from 1 to 8, spread by water-filling; None: by what is promised, or eight of
                  every coordinate where there are no calibration vectors
    ``segments``  ``[[start, stop, bits], ...]`` of the whitened coordinates in place of that; None: by ``bits``
    ``rotation``  the seed of the random rotation
    ``blocks``    bound sixteen neighbouring classes at once where ids alone are asked for (``eps=inf``; samples);
                  None: where that is sooner on calibration vectors, or, of a large layer, on some of its rows
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

    def plan(self, making: Making) -> Plan:
        layer, calibration, _, wanted = making
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
        return with_blocks(plan, making, basis, self.blocks)

    def promise(self, wanted: Promise, plan: Plan) -> Promise:
        """Reading all rows proves everything."""
        return wanted._replace(delta=0.0) if plan.codes is None else wanted

    def _named(self, dim: int) -> tuple[Segment, ...]:
        found = self._listed()
        joined = [*(one.start for one in found), dim] == [0, *(one.stop for one in found)]
        short = any(one.stop - one.start < min(LEAST_DIM, dim) for one in found)
        if not joined or short or any(one.bits not in CODE_BITS for one in found):
            raise OptionError(
                f"segments are {self.segments}; expected [start, stop, bits] that follow one another up to {dim:,}, each of at "
                f"least {LEAST_DIM} coordinates, with bits in {', '.join(map(str, CODE_BITS))}"
            )
        return found

    def _listed(self) -> tuple[Segment, ...]:
        given: Any = self.segments
        try:
            return tuple(Segment(*wholes(one, "a segment", 0, 2**40)) for one in given)
        except (TypeError, RuntimeError, InputError) as error:  # RuntimeError: a tensor without numbers
            raise OptionError(f"segments are {self.segments!r}; expected a list of [start, stop, bits]") from error


def by_the_clock(engine: Engine, calibration: Doubles, held: Doubles, wanted: Promise, seed: int) -> Engine:
    """The engine by the fastest of all rows and the plausible lists of segments, each without blocks, which would answer in
    its place, asked ``held``; then with the blocks that there are, as far as they are sooner than what won."""
    layer, own, blocks = engine.layer, engine.plan.codes, engine.plan.blocks
    if own is None:
        return engine
    basis = basis_for(layer, calibration)

    def contestants() -> Iterator[tuple[str, Engine]]:
        yield "all rows", engine.with_plan(Plan(), wanted, "")
        for segments in plausible(layer, energy(layer, basis, calibration), wanted):
            codes = own if own.segments == segments else codes_of(layer, basis, segments, seed)
            if codes is not None:
                yield named(codes), engine.with_plan(Plan(codes=codes), wanted, "")

    contest, chosen = fastest(contestants(), some_of(held))
    plan = engine.plan._replace(codes=chosen.plan.codes)
    if blocks is not None and plan.codes is not own:
        plan = limited(plan, blocks, Making(layer, calibration, native.threads(engine.threads), wanted), calibration)
    method = Full() if plan == Plan() else engine.method
    told = f"{engine.reason}; {contest}" + ("; these without blocks" if plan.blocks is not None else "")
    return engine.with_plan(plan, wanted, told, method)


def named(codes: Codes) -> str:
    """The segments in words: "64x8 512x4"."""
    return " ".join(f"{stop - start}x{bits}" for start, stop, bits, _ in codes.segments)
