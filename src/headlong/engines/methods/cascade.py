"""int8 codes of all classes with a radius for each, then exact rows.

The radius holds for every query: ids are proved. The normaliser takes more rows: with ``delta`` above 0 a sample of them,
drawn by the query's content and the engine's seed, until a bet against any other value is won; with ``delta`` 0 as many as a
proof needs. A query for which that is expensive is finished densely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from headlong import native
from headlong.engines.method import Method, register, sure
from headlong.engines.method_choice import crossover
from headlong.engines.methods.block_normalisers import least_found
from headlong.engines.methods.changed_rows import plan_again
from headlong.engines.methods.normaliser_choice import with_normalisers
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.number_checks import flag
from headlong.plan import DENSE_SHARE, Dense, Plan
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.choice import at_once, stand_ins, tighter, worth, worth_sampling
from headlong.previews.blocks.trial import CLASSES, on_trial
from headlong.previews.int8 import all_closer_centred, better_centred, int8_plan, mean_row
from headlong.previews.whitening import whiten
from headlong.promise import Promise

MOST_DIM = 8192
"""Beyond, the basis of blocks is a large matrix to decompose and to read."""
MANY = 1024
"""Classes below which a look at all of them is short."""


@register
@dataclass(frozen=True)
class Cascade(Method):
    """``blocks``    bound sixteen neighbouring classes at once where ids alone are asked for (``eps=inf``; samples);
                  None: where calibration vectors show that it reads less, or, on trial, rows of a large layer do
    """

    blocks: bool | None = None

    name: ClassVar[str] = "cascade"

    def __post_init__(self) -> None:
        if self.blocks is not None:
            flag(self.blocks, "blocks")

    def plan(self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        return with_normalisers(layer, self._looks(layer, calibration, threads, promise), promise, calibration, threads)

    def _looks(self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        """What ids are found by, and normalisers where no tree finds them."""
        centred = all_closer_centred(layer) if calibration is None else better_centred(layer, calibration)
        dense = Dense(crossover(layer, promise.eps), DENSE_SHARE, native.code_product())
        proved = promise.delta == 0 and not math.isinf(promise.eps)
        plan = int8_plan(layer, dense, mean_row(layer.weight) if centred else None, threads, proved)
        if not self._tries_blocks(layer, calibration, promise):
            return plan
        if calibration is None and not self.blocks:
            return on_trial(layer, plan, threads)
        return self._with_blocks(layer, plan, stand_ins(layer) if calibration is None else calibration, threads)

    def again(self, plan: Plan, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        return plan_again(plan, layer, threads) if calibration is None else self.plan(layer, calibration, threads, promise)

    def _tries_blocks(self, layer: Layer, calibration: Doubles | None, promise: Promise) -> bool:
        """Whether blocks are built: asked for, or to see whether calibration vectors, or rows instead, read less by them."""
        if self.blocks is not None:
            return self.blocks
        if layer.dim > MOST_DIM:
            return False
        return layer.vocab >= MANY if calibration is not None else layer.vocab >= CLASSES and math.isinf(promise.eps)

    def _with_blocks(self, layer: Layer, plan: Plan, vectors: Doubles, threads: int) -> Plan:
        """The plan with blocks, where that was asked for or ``vectors`` show that they read less."""
        basis = whiten(layer.weight, vectors)
        blocks = tighter(layer, plan, blocks_of(layer, basis, threads), basis, vectors, DENSE_SHARE, threads)
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

    def promise(self, wanted: Promise) -> Promise:
        return sure(wanted)
