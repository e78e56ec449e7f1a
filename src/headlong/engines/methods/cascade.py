"""Coarse to fine: a look at all classes with a radius for each, closer looks where it matters, then exact rows.

With calibration vectors the first look is a whitened prefix, 5 to 10 % of float32's bytes on trained layers, or few bits of all
coordinates where the energy falls off slowly; without them, and where no coordinates lead, int8 codes of everything. Either
way the radius holds for every query: ids are proved. The normaliser takes more rows: with ``delta`` above 0 a sample of them,
drawn by the query's content and the engine's seed, until a bet against any other value is won; with ``delta`` 0 as many as a
proof needs. A query for which that is dear is finished densely.

``widths="calibrated"`` narrows the first look by what calibration vectors teach, and then ids may fail, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from headlong.answers import Promise
from headlong.checks import flag, real, whole
from headlong.engines.base import register
from headlong.errors import OptionError
from headlong.kernels import Doubles
from headlong.layers.matrix import Layer
from headlong.plan import Dense, Plan
from headlong.previews.conformal import likely_factor, split, tail_factor
from headlong.previews.few_bits import Planes, balanced, energy_of, filled, planes_of, planes_plan
from headlong.previews.first_look import CANDIDATES, best_look
from headlong.previews.int8 import better_centred, int8_plan, mean_row
from headlong.previews.prefix import prefix_plan, tail_of
from headlong.previews.sphere import random_basis
from headlong.previews.whitening import whiten

MOST_DIM = 8192
"""Beyond, the basis itself is a large matrix to decompose and to read."""

LEARNED = ("calibrated", "likely")
WHOLE_BITS = (1, 2, 3, 4, 8)


@register
@dataclass(frozen=True)
class Cascade:
    """``share``   a query with more than this share of the classes as candidates is finished densely
    ``batch``   larger batches are read densely from the start
    ``centre``  code the rows less their mean (int8 codes alone); None: only where calibration vectors favour it
    ``width``   coordinates of the prefix; None: that or few bits, as calibration vectors say; 0: int8 codes of all
    ``widths``  "sure": radii that hold for every query; "calibrated": narrower ones, learned from half of the calibration
              vectors, that hold for queries like them but for ``delta_ids`` (and half of ``delta``), both above 0
              "likely": sure ones for ids, which stay proved, and learned ones for the normaliser that is estimated
              "rotation": those of ``bits`` codes but for the draw of the rotation, with the same rates
    ``bits``    1, 2, 3, 4 or 8 of every coordinate on a random rotation, or, with calibration vectors and a fraction, that many
              on average in the whitened basis, where the energy is; None: a prefix, or int8 as the rows are
    ``rotation``  the seed of the random rotation
    ``deeper``  keep int8 codes of the coordinates behind the prefix, for the classes that it leaves open
    ``few``     whether few bits of all coordinates may be the first look where ``width`` and ``bits`` are left to the vectors
    ``whiten``  the prefix's basis: whitened by the calibration vectors, or the layer's own principal directions
    """

    share: float = 0.25
    batch: float = math.inf
    centre: bool | None = None
    width: int | None = None
    widths: str = "sure"
    deeper: bool = True
    whiten: bool = True
    bits: float | None = None
    rotation: int = 0
    few: bool = True

    name: ClassVar[str] = "cascade"

    def __post_init__(self) -> None:
        real(self.share, "share", 0.0, 1.0)
        real(self.batch, "batch", 0.0, math.inf)
        if self.centre is not None:
            flag(self.centre, "centre")
        flag(self.deeper, "deeper")
        flag(self.whiten, "whiten")
        flag(self.few, "few")
        if self.width is not None:
            whole(self.width, "width", 0, 2**15, "0 codes all coordinates")
        if self.widths not in ("sure", "calibrated", "likely", "rotation"):
            raise OptionError(f"widths is {self.widths!r}; expected 'sure', 'calibrated', 'likely' or 'rotation'")
        if self.bits is not None:
            real(self.bits, "bits", 0.0, 8.0)
        if self.widths == "rotation" and self.bits not in WHOLE_BITS:
            raise OptionError(f"widths='rotation' takes bits of 1, 2, 3, 4 or 8 on a random rotation; got bits={self.bits}")
        whole(self.rotation, "rotation", 0, 2**63 - 1)

    def placed(self) -> Cascade:
        """As a device reads it: int8 codes."""
        return replace(self, few=False)

    def plan(self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        dense = Dense(self.batch, self.share)
        if self.bits is not None:
            return self._planes(layer, calibration, dense, threads, promise)
        if self._may_prefix(layer, calibration):
            vectors = np.zeros((1, layer.dim)) if calibration is None else calibration
            rate, queries = _rate(promise), None
            if self.widths in LEARNED:
                vectors, queries = split(vectors, rate)
            basis = whiten(layer.weight, vectors, plain=not self.whiten)
            width, bits = self.width, None
            if width is None:
                few = self.few and self.widths == "sure" and self.deeper
                width, bits = best_look(layer, basis, vectors, promise, self.share, few, threads)
            if bits is not None:
                planes = Planes(filled(energy_of(basis, layer), bits), 6)
                return planes_plan(layer, balanced(basis, layer), planes, dense, threads)
            if width is not None:
                factor, likely = None, 1.0
                if queries is not None and self.widths == "likely":
                    likely = likely_factor(layer.weight, basis, tail_of(width, layer.dim), queries, rate)
                elif queries is not None:
                    factor = tail_factor(layer.weight, basis, width, queries, rate)
                return prefix_plan(layer, basis, width, dense, threads, factor, self.deeper, likely)
        centred = self.centre
        if centred is None:
            centred = calibration is not None and better_centred(layer, calibration)
        return int8_plan(layer, dense, mean_row(layer.weight) if centred else None, threads)

    def _planes(
        self, layer: Layer, calibration: Doubles | None, dense: Dense, threads: int, promise: Promise
    ) -> Plan:
        """Codes of few bits: alike on a random rotation, or where the energy is."""
        assert self.bits is not None
        deeper = (4 if self.bits in (3, 4) else 8) if self.deeper else 0
        if self.bits in WHOLE_BITS:
            basis = random_basis(layer.dim, mean_row(layer.weight), self.rotation)
            rate = _rate(promise) if self.widths == "rotation" else None
            planes = Planes(((0, layer.dim, planes_of(int(self.bits))),), deeper, rate)
        else:
            vectors = np.zeros((1, layer.dim)) if calibration is None else calibration
            basis = whiten(layer.weight, vectors, plain=calibration is None or not self.whiten)
            planes = Planes(filled(energy_of(basis, layer), self.bits), 6 if self.deeper else 0)
            basis = balanced(basis, layer)
        return planes_plan(layer, basis, planes, dense, threads)

    def promise(self, eps: float, delta: float = 0.0, delta_ids: float = 0.0) -> Promise:
        delta = 0.0 if math.isinf(eps) else delta
        if self.widths == "likely":
            if math.isinf(eps) or not 0 < delta < 1:
                raise OptionError(
                    f"widths='likely' narrows a normaliser that may fail; eps={eps:g} and delta={delta:g} ask for none: "
                    "pass eps below infinity and delta between 0 and 1, or use widths='sure'"
                )
            return Promise(eps, delta, 0.0, frozenset({"calibration", "query"}))
        if self.widths != "sure":
            if not (0 < delta_ids < 1 and (math.isinf(eps) or 0 < delta < 1)):
                raise OptionError(
                    f"widths={self.widths!r} may fail, which delta={delta:g} and delta_ids={delta_ids:g} do not allow; "
                    "pass both between 0 and 1 (eps=inf: delta_ids alone), or use widths='sure'"
                )
            drawn = {"query"} if delta > 0 or self.widths == "calibrated" else set()
            source = "calibration" if self.widths == "calibrated" else "rotation"
            return Promise(eps, delta, delta_ids, frozenset({source, *drawn}))
        return Promise(eps, delta, 0.0, frozenset({"query"} if delta > 0 else ()))

    def _may_prefix(self, layer: Layer, calibration: Doubles | None) -> bool:
        if self.widths in LEARNED and (calibration is None or self.width == 0):
            raise OptionError(
                f"widths={self.widths!r} takes calibration vectors and a prefix; pass calibration=hidden and no width=0"
            )
        if self.width is None:
            return calibration is not None and min(CANDIDATES) < layer.dim <= min(MOST_DIM, layer.vocab)
        if self.width == 0:
            return False
        if calibration is None and self.whiten:
            raise OptionError(
                f"width is {self.width}, but no calibration vectors came; pass calibration=hidden, whiten=False, or width=0"
            )
        whole(self.width, "width", 0, layer.dim, "a prefix has at most all coordinates")
        return True


def _rate(promise: Promise) -> float:
    """How often a calibrated radius may fail: as ids may, and half as often as the normaliser, whose sample has the rest."""
    if promise.delta_ids == 0:
        return promise.delta / 2
    return promise.delta_ids if math.isinf(promise.eps) else min(promise.delta_ids, promise.delta / 2)
