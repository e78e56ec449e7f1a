"""Coarse to fine: a look at all classes with a radius for each, closer looks where it matters, then exact rows.

With calibration vectors the first look is a whitened prefix, 5 to 10 % of float32's bytes on trained layers, or few bits of all
coordinates where the energy falls off slowly; without them, and where no coordinates lead, int8 codes of everything. Either
way the radius holds for every query: ids are proved. The normaliser takes more rows: with ``delta`` above 0 a sample of them,
drawn by the query's content and the engine's seed, until a bet against any other value is won; with ``delta`` 0 as many as a
proof needs. A query for which that is expensive is finished densely.

A user names a promise and the randomness that it may rest on (``over``), and the radii follow from that:

    sure         hold for every query: nothing else was allowed
    likely       ids proved; those of the normaliser are learned from half of the calibration vectors ("calibration")
    calibrated   learned for ids as well: ids may fail with ``delta_ids`` ("calibration")
    rotation     of codes of few bits, but for the draw of the random rotation ("rotation")
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from headlong import native
from headlong.engines.method import Method, register, sure
from headlong.engines.method_choice import SHARED, crossover
from headlong.engines.methods.block_normalisers import least_found
from headlong.engines.methods.changed_rows import plan_again
from headlong.engines.methods.learned_answers import ASKED
from headlong.engines.methods.learned_block_bounds import guessed, learned_blocks
from headlong.engines.methods.learned_block_draws import taught_by_blocks
from headlong.engines.methods.learned_draws import taught
from headlong.engines.methods.normaliser_choice import with_normalisers
from headlong.errors import OptionError
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.number_checks import flag, real, whole
from headlong.plan import DENSE_SHARE, Dense, Plan
from headlong.previews.blocks.boxes import KEPT, blocks_of, shape_of
from headlong.previews.blocks.choice import at_once, stand_ins, tighter, worth, worth_sampling
from headlong.previews.blocks.trial import CLASSES, on_trial
from headlong.previews.calibrated_radii import likely_factor, reach, split, tail_factor
from headlong.previews.encode import Encoded, encode_all
from headlong.previews.few_bits import Planes, balanced, energy_of, filled, planes_of, planes_plan, sampled
from headlong.previews.first_look import CANDIDATES, Choice, best_look
from headlong.previews.int8 import all_closer_centred, better_centred, int8_plan, mean_row
from headlong.previews.judges import apart
from headlong.previews.prefix import prefix_groups, prefix_plan, tail_of
from headlong.previews.random_rotations import random_basis
from headlong.previews.whitening import Basis, Directions, directions, whiten
from headlong.promise import Promise

MOST_DIM = 8192
"""Beyond, the basis itself is a large matrix to decompose and to read."""
LEARNED = ("calibrated", "likely")
WHOLE_BITS = (1, 2, 3, 4, 8)
WORTH_SHARING = 128
"""Dimensions from which rotating a row takes longer than coding it."""
MANY = 1024
"""Classes below which a look at all of them is short."""
FEW = 4
"""Bits of every coordinate where radii over the rotation are allowed and no vectors say where the energy is."""


@register
@dataclass(frozen=True)
class Cascade(Method):
    """``width``     coordinates of the prefix; None: that or few bits, as calibration vectors say; 0: int8 codes of all.
                  Without calibration vectors a width takes the layer's own principal directions
    ``bits``      1, 2, 3, 4 or 8 of every coordinate on a random rotation, or, with calibration vectors and a fraction, that
                  many on average in the whitened basis, where the energy is; None: a prefix, or int8 as the rows are
    ``rotation``  the seed of the random rotation
    ``blocks``    bound sixteen neighbouring classes at once where ids alone are asked for (``eps=inf``; samples);
                  None: where calibration vectors show that it reads less, or, on trial, rows of a large layer do; on a
                  device from half a million classes on
    """

    width: int | None = None
    bits: float | None = None
    rotation: int = 0
    blocks: bool | None = None

    name: ClassVar[str] = "cascade"
    retired: ClassVar[frozenset[str]] = frozenset({"share", "batch", "centre", "widths", "whiten", "few", "deeper"})
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
        whole(self.rotation, "rotation", 0, 2**63 - 1)

    def plan(self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        plan, free = self._looks(layer, calibration, threads, promise), self.width is None and self.bits is None
        return with_normalisers(layer, plan, promise, calibration, threads) if free else plan

    def _looks(self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        """What ids are found by, and normalisers where no tree finds them."""
        stood_in = calibration is None and self._stood_in(layer, promise)
        chosen_by = stand_ins(layer) if stood_in else calibration
        tried = self._tries_blocks(layer, calibration, promise)
        plan, basis, coded = self._levels(layer, chosen_by, threads, promise, tried and chosen_by is not None, stood_in)
        if calibration is not None and "calibration" in promise.over:
            plan = plan._replace(seen=reach(calibration))
        if calibration is not None and plan.levels and "calibration" in promise.over and 0 < promise.delta < 1:
            plan = self._taught(layer, plan, calibration, threads, promise)
        if not tried:
            return plan
        if chosen_by is None:  # the basis, where there is one, is that of principal directions
            chosen_by, basis = stand_ins(layer), None
        if calibration is None and not self.blocks:
            return on_trial(layer, plan, chosen_by, basis, coded, threads)
        return self._with_blocks(layer, plan, basis, chosen_by, calibration, threads, promise, coded)

    def again(self, plan: Plan, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        if calibration is not None or promise.radii == "rotation":
            return self.plan(layer, calibration, threads, promise)
        if promise.radii in LEARNED:
            raise OptionError(
                "this engine's radii were learned from calibration vectors, for the classes that were there; expected "
                "compact(calibration=hidden)"
            )
        return plan_again(plan, layer, threads)

    def _taught(self, layer: Layer, plan: Plan, calibration: Doubles, threads: int, promise: Promise) -> Plan:
        """The plan with the number of rows that a normaliser takes: each half of the vectors has its part."""
        half = len(calibration) // 2
        return taught(layer, plan, promise, calibration[:half], calibration[half:], threads)

    def _tries_blocks(self, layer: Layer, calibration: Doubles | None, promise: Promise) -> bool:
        """Whether blocks are built: asked for, or to see whether calibration vectors, or rows instead, read less by them."""
        if self.blocks is None and calibration is None:
            return self._free(promise) and layer.vocab >= CLASSES and layer.dim <= MOST_DIM
        tried = layer.vocab >= MANY if self.blocks is None else self.blocks
        return tried and promise.radii != "rotation"

    def _with_blocks(
        self, layer: Layer, plan: Plan, basis: Basis | None, vectors: Doubles, calibration: Doubles | None, threads: int,
        promise: Promise, coded: Encoded | None,
    ) -> Plan:  # fmt: skip
        """The plan with blocks, where that was asked for or ``vectors`` show that they read less; ``coded`` in ``basis``."""
        queries = None
        if calibration is not None and promise.radii == "calibrated":
            vectors, queries = split(calibration, promise.radii_rate)
        if basis is None:
            basis = whiten(layer.weight, vectors)
        narrowed = partial(guessed, layer, share=DENSE_SHARE, vectors=vectors, delta=promise.delta_ids, threads=threads)
        boxes = blocks_of(layer, basis, threads, found=coded)
        blocks = tighter(layer, plan, boxes, basis, vectors, DENSE_SHARE, threads, narrowed if queries is not None else None)
        if calibration is not None and queries is not None:
            half = len(vectors)
            blocks = learned_blocks(layer, blocks, DENSE_SHARE, vectors, calibration[half:], promise.delta_ids, threads)
        most, pair, together, trial = worth(layer, plan, blocks, vectors, DENSE_SHARE)
        if most < 1 and not self.blocks:
            return plan
        blocks = blocks._replace(least=least_found(layer, plan, blocks, vectors, DENSE_SHARE))
        samples = worth_sampling(layer, plan, blocks, vectors, DENSE_SHARE, bool(self.blocks))
        blocks = blocks._replace(samples=samples)
        most, pair, trial = (layer.vocab, layer.vocab, math.inf) if self.blocks else (most, pair, trial)
        if calibration is not None and queries is None and plan.draws is not None and math.isinf(blocks.least):
            parts = calibration[: len(calibration) // 2], calibration[len(calibration) // 2 :]
            blocks = taught_by_blocks(layer, plan, blocks._replace(most=most), promise, parts, DENSE_SHARE, threads)
        if queries is not None:
            most, together = min(most, ASKED[-1]), min(together, ASKED[-1])
        blocks = blocks._replace(most=most, batch=at_once(most, pair, together), together=together, trial=trial)
        return plan._replace(blocks=blocks)

    def _levels(
        self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise, blocks: bool, stood_in: bool
    ) -> tuple[Plan, Basis | None, Encoded | None]:
        """The look at all classes, the whitened basis where there is one, and there what ``blocks`` are made of, where one pass
        over the rows is enough for both. ``stood_in``: rows are in place of the vectors."""
        dense = Dense(crossover(layer, promise.eps), DENSE_SHARE, native.code_product())
        radii, basis = promise.radii, None
        if self.bits is not None or radii == "rotation":
            return self._planes(layer, calibration, dense, threads, promise), None, None
        if self._may_prefix(layer, calibration):
            vectors, rate, queries = calibration, promise.radii_rate, None
            if vectors is not None and radii in LEARNED:
                vectors, queries = split(vectors, rate)
            rotation, (width, bits), energy = self._chosen(layer, vectors, threads, promise, stood_in)
            basis = rotation.basis() if width is not None or blocks else None
            if bits is not None:
                balance = balanced(rotation, energy)
                return planes_plan(layer, balance, Planes(filled(energy, bits), 6), dense, threads), basis, None
            if width is not None:
                assert basis is not None
                factor, likely = None, 1.0
                if queries is not None and radii == "likely":
                    likely = likely_factor(layer.weight, basis, tail_of(width, layer.dim), queries, rate)
                elif queries is not None:
                    factor = tail_factor(layer.weight, basis, width, queries, rate)
                proved = promise.delta == 0 and not math.isinf(promise.eps)
                coded = self._coded_for_both(layer, basis, width, proved, threads) if blocks else (None, None)
                plan = prefix_plan(layer, basis, width, dense, threads, factor, self.deeper, likely, proved, coded[0])
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
        few, rows = self.few_bits and self.deeper and promise.radii == "sure", sampled(layer, rotation)
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

    def _planes(self, layer: Layer, calibration: Doubles | None, dense: Dense, threads: int, promise: Promise) -> Plan:
        """Codes of few bits: alike on a random rotation, or where the energy is."""
        bits = FEW if self.bits is None else self.bits
        deeper = (4 if bits in (3, 4) else 8) if self.deeper else 0
        if bits in WHOLE_BITS:
            basis = random_basis(layer.dim, mean_row(layer.weight), self.rotation)
            rate = promise.radii_rate if promise.radii == "rotation" else None
            planes = Planes(((0, layer.dim, planes_of(int(bits))),), deeper, rate)
        else:
            vectors = np.zeros((1, layer.dim)) if calibration is None else calibration
            rotation = directions(layer.weight, vectors, plain=calibration is None)
            energy = energy_of(sampled(layer, rotation))
            planes, basis = Planes(filled(energy, bits), 6 if self.deeper else 0), balanced(rotation, energy)
        return planes_plan(layer, basis, planes, dense, threads)

    def promise(self, wanted: Promise, calibrated: bool) -> Promise:
        eps, delta, delta_ids, over = wanted
        delta = sure(wanted).delta
        if not (0 < delta_ids < 1 and (math.isinf(eps) or 0 < delta < 1)):  # ids are to be proved, or nothing may fail
            likely = calibrated and "calibration" in over and self.bits is None and 0 < delta < 1
            return Promise(eps, delta, 0.0, frozenset({"calibration", "query"})) if likely and self.width != 0 else sure(wanted)
        plain = self.bits is None and self.width is None and not calibrated
        if "rotation" in over and (plain or self.bits in WHOLE_BITS):
            return Promise(eps, delta, delta_ids, frozenset({"rotation", *({"query"} if delta > 0 else ())}))
        if "calibration" in over and calibrated and self.bits is None and self.width != 0:
            return Promise(eps, delta, delta_ids, frozenset({"calibration", "query"}))
        return sure(wanted)

    def _stood_in(self, layer: Layer, promise: Promise) -> bool:
        """Whether rows of the layer stand in for calibration vectors: of layers that are not read in microseconds anyway."""
        large = layer.vocab * layer.dim >= SHARED and min(CANDIDATES) < layer.dim <= min(MOST_DIM, layer.vocab)
        return self._free(promise) and large and self.deeper

    def _free(self, promise: Promise) -> bool:
        """Whether rows of the layer may choose what is read: of nothing that was asked for, and for ids alone."""
        return self.width is None and self.bits is None and math.isinf(promise.eps) and promise.radii == "sure"

    def _may_prefix(self, layer: Layer, calibration: Doubles | None) -> bool:
        if self.width is None:
            return calibration is not None and min(CANDIDATES) < layer.dim <= min(MOST_DIM, layer.vocab)
        if self.width == 0:
            return False
        whole(self.width, "width", 0, layer.dim, "a prefix has at most all coordinates")
        return True
