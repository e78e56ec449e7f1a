"""Coarse to fine: a look at all classes with a radius for each, closer looks where it matters, then exact rows.

With calibration vectors the first look is a whitened prefix, 5 to 10 % of float32's bytes on trained layers, or few bits of all
coordinates where the energy falls off slowly; without them, and where no coordinates lead, int8 codes of everything. Either
way the radius holds for every query: ids are proved. The normaliser takes more rows: with ``delta`` above 0 a sample of them,
drawn by the query's content and the engine's seed, until a bet against any other value is won; with ``delta`` 0 as many as a
proof needs. A query for which that is expensive is finished densely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headlong import native
from headlong.engines.method import Method, register, sure
from headlong.engines.method_choice import SHARED, crossover
from headlong.engines.methods.block_normalisers import least_found
from headlong.engines.methods.changed_rows import plan_again
from headlong.engines.methods.normaliser_choice import with_normalisers
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.number_checks import flag, real, whole
from headlong.plan import DENSE_SHARE, Dense, Plan
from headlong.previews.blocks.boxes import KEPT, blocks_of, shape_of
from headlong.previews.blocks.choice import at_once, stand_ins, tighter, worth, worth_sampling
from headlong.previews.blocks.trial import CLASSES, on_trial
from headlong.previews.encode import Encoded, encode_all
from headlong.previews.few_bits import Planes, balanced, energy_of, filled, planes_plan, sampled
from headlong.previews.first_look import CANDIDATES, Choice, best_look
from headlong.previews.int8 import all_closer_centred, better_centred, int8_plan, mean_row
from headlong.previews.judges import apart
from headlong.previews.prefix import prefix_groups, prefix_plan
from headlong.previews.whitening import Basis, Directions, directions, whiten
from headlong.promise import Promise

MOST_DIM = 8192
"""Beyond, the basis itself is a large matrix to decompose and to read."""
WORTH_SHARING = 128
"""Dimensions from which rotating a row takes longer than coding it."""
MANY = 1024
"""Classes below which a look at all of them is short."""


@register
@dataclass(frozen=True)
class Cascade(Method):
    """``width``     coordinates of the prefix; None: that or few bits, as calibration vectors say; 0: int8 codes of all.
                  Without calibration vectors a width takes the layer's own principal directions
    ``bits``      of a coordinate on average, up to 8, in the whitened basis, where the energy is; None: a prefix, or int8 as
                  the rows are
    ``blocks``    bound sixteen neighbouring classes at once where ids alone are asked for (``eps=inf``; samples);
                  None: where calibration vectors show that it reads less, or, on trial, rows of a large layer do; on a
                  device from half a million classes on
    """

    width: int | None = None
    bits: float | None = None
    blocks: bool | None = None

    name: ClassVar[str] = "cascade"
    few_bits: ClassVar[bool] = True
    """Whether few bits of all coordinates may be the first pass where ``width`` and ``bits`` are left to the vectors."""
    deeper: ClassVar[bool] = True
    """Whether finer codes are kept for the classes that the first pass leaves undecided."""

    def __post_init__(self) -> None:
        if self.blocks is not None:
            flag(self.blocks, "blocks")
        if self.width is not None:
            whole(self.width, "width", 0, 2**15, "0 codes all coordinates")
        if self.bits is not None:
            real(self.bits, "bits", 0.0, 8.0)

    def plan(self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        plan, free = self._looks(layer, calibration, threads, promise), self.width is None and self.bits is None
        return with_normalisers(layer, plan, promise, calibration, threads) if free else plan

    def _looks(self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        """What ids are found by, and normalisers where no tree finds them."""
        stood_in = calibration is None and self._stood_in(layer, promise)
        chosen_by = stand_ins(layer) if stood_in else calibration
        tried = self._tries_blocks(layer, calibration, promise)
        plan, basis, coded = self._levels(layer, chosen_by, threads, promise, tried and chosen_by is not None, stood_in)
        if not tried:
            return plan
        if chosen_by is None:  # the basis, where there is one, is that of principal directions
            chosen_by, basis = stand_ins(layer), None
        if calibration is None and not self.blocks:
            return on_trial(layer, plan, chosen_by, basis, coded, threads)
        return self._with_blocks(layer, plan, basis, chosen_by, threads, coded)

    def again(self, plan: Plan, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        return plan_again(plan, layer, threads) if calibration is None else self.plan(layer, calibration, threads, promise)

    def _tries_blocks(self, layer: Layer, calibration: Doubles | None, promise: Promise) -> bool:
        """Whether blocks are built: asked for, or to see whether calibration vectors, or rows instead, read less by them."""
        if self.blocks is None and calibration is None:
            return self._free(promise) and layer.vocab >= CLASSES and layer.dim <= MOST_DIM
        return layer.vocab >= MANY if self.blocks is None else self.blocks

    def _with_blocks(
        self, layer: Layer, plan: Plan, basis: Basis | None, vectors: Doubles, threads: int, coded: Encoded | None
    ) -> Plan:
        """The plan with blocks, where that was asked for or ``vectors`` show that they read less; ``coded`` in ``basis``."""
        if basis is None:
            basis = whiten(layer.weight, vectors)
        boxes = blocks_of(layer, basis, threads, coded)
        blocks = tighter(layer, plan, boxes, basis, vectors, DENSE_SHARE, threads)
        most, pair, together, trial = worth(layer, plan, blocks, vectors, DENSE_SHARE)
        if most < 1 and not self.blocks:
            return plan
        blocks = blocks._replace(least=least_found(layer, plan, blocks, vectors, DENSE_SHARE))
        samples = worth_sampling(layer, plan, blocks, vectors, DENSE_SHARE, bool(self.blocks))
        most, pair, trial = (layer.vocab, layer.vocab, math.inf) if self.blocks else (most, pair, trial)
        batch = at_once(most, pair, together)
        return plan._replace(
            blocks=blocks._replace(samples=samples, most=most, batch=batch, together=together, trial=trial)
        )

    def _levels(
        self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise, blocks: bool, stood_in: bool
    ) -> tuple[Plan, Basis | None, Encoded | None]:
        """The look at all classes, the whitened basis where there is one, and there what ``blocks`` are made of, where one pass
        over the rows is enough for both. ``stood_in``: rows are in place of the vectors."""
        dense, basis = Dense(crossover(layer, promise.eps), DENSE_SHARE, native.code_product()), None
        if self.bits is not None:
            return self._planes(layer, calibration, self.bits, dense, threads), None, None
        if self._may_prefix(layer, calibration):
            rotation, (width, bits), energy = self._chosen(layer, calibration, threads, promise, stood_in)
            basis = rotation.basis() if width is not None or blocks else None
            if bits is not None:
                balance = balanced(rotation, energy)
                return planes_plan(layer, balance, Planes(filled(energy, bits), 6), dense, threads), basis, None
            if width is not None:
                assert basis is not None
                proved = promise.delta == 0 and not math.isinf(promise.eps)
                coded = self._coded_for_both(layer, basis, width, proved, threads) if blocks else (None, None)
                plan = prefix_plan(layer, basis, width, dense, threads, self.deeper, proved, coded[0])
                return plan, basis, coded[1]
        centred = all_closer_centred(layer) if calibration is None else better_centred(layer, calibration)
        centre = mean_row(layer.weight) if centred else None
        return int8_plan(layer, dense, centre, threads, promise.delta == 0 and not math.isinf(promise.eps)), basis, None

    def _chosen(
        self, layer: Layer, vectors: Doubles | None, threads: int, promise: Promise, stood_in: bool
    ) -> tuple[Directions, Choice, Doubles]:
        """The basis' directions, the first look in it, and its coordinates' energy. Nothing keeps what chooses: it is large."""
        plain = vectors is None
        vectors = np.zeros((1, layer.dim)) if vectors is None else vectors
        judges, vectors = apart(vectors, layer.vocab, promise) if self.width is None else (vectors, vectors)
        rotation = directions(layer.weight, vectors, plain)
        del vectors
        if self.width is not None:
            return rotation, Choice(self.width), np.zeros(0)
        few, rows = self.few_bits and self.deeper, sampled(layer, rotation)
        return rotation, best_look(layer, rotation, rows, judges, promise, DENSE_SHARE, few, threads, stood_in), energy_of(rows)

    def _coded_for_both(
        self, layer: Layer, basis: Basis, width: int, proved: bool, threads: int
    ) -> tuple[Encoded | None, Encoded | None]:
        """What a prefix and what blocks are made of, in one pass; nothing where that is too much to hold until both are."""
        if layer.vocab > KEPT or layer.dim < WORTH_SHARING:
            return None, None
        views = prefix_groups(layer, width, self.deeper, proved), shape_of(layer.dim).groups()
        prefix, blocks = encode_all(layer, basis, views, threads)
        return prefix, blocks

    def _planes(self, layer: Layer, calibration: Doubles | None, bits: float, dense: Dense, threads: int) -> Plan:
        """Codes of few bits, where the energy is."""
        vectors = np.zeros((1, layer.dim)) if calibration is None else calibration
        rotation = directions(layer.weight, vectors, plain=calibration is None)
        energy = energy_of(sampled(layer, rotation))
        planes = Planes(filled(energy, bits), 6 if self.deeper else 0)
        return planes_plan(layer, balanced(rotation, energy), planes, dense, threads)

    def promise(self, wanted: Promise) -> Promise:
        return sure(wanted)

    def _stood_in(self, layer: Layer, promise: Promise) -> bool:
        """Whether rows of the layer stand in for calibration vectors: of layers that are not read in microseconds anyway."""
        large = layer.vocab * layer.dim >= SHARED and min(CANDIDATES) < layer.dim <= min(MOST_DIM, layer.vocab)
        return self._free(promise) and large and self.deeper

    def _free(self, promise: Promise) -> bool:
        """Whether rows of the layer may choose what is read: of nothing that was asked for, and for ids alone."""
        return self.width is None and self.bits is None and math.isinf(promise.eps)

    def _may_prefix(self, layer: Layer, calibration: Doubles | None) -> bool:
        if self.width is None:
            return calibration is not None and min(CANDIDATES) < layer.dim <= min(MOST_DIM, layer.vocab)
        if self.width == 0:
            return False
        whole(self.width, "width", 0, layer.dim, "a prefix has at most all coordinates")
        return True
