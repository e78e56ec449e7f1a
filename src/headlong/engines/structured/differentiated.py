"""Reads differentiated softmax: each block is a matrix with an engine of its own, and the answers meet in one softmax.

::

    top-k   the best of the blocks' best, by logit          lse   logaddexp of the blocks' normalisers
    sample  the largest of the blocks' winning scores       (each block has noise of its own)

A logit is a logit whichever block it comes from, so ids are proved where each block proves its own; a sum of
normalisers is never off by more than the worst of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from headlong.answers import Answer, Cost, LogProb, TopK, summed
from headlong.dtypes import UNIT, Doubles, Ids
from headlong.engines.build import reading
from headlong.engines.few_allowed_classes import lse_of
from headlong.engines.full import Full
from headlong.engines.merged import best_of, merged_lse
from headlong.engines.method import PLAIN, Running
from headlong.engines.structured.base import Scored, StructuredEngine, register_engine
from headlong.layers.differentiated import Block, BlocksLayer
from headlong.layers.structured import StructuredLayer
from headlong.number_checks import real
from headlong.promise import Promise
from headlong.question import Filters, Question


@register_engine
class BlocksEngine(StructuredEngine):
    """One engine for each block; promises what they keep together."""

    kind: ClassVar[str] = "blocks"
    draws_tempered: ClassVar[bool] = True

    def __init__(self, layer: StructuredLayer, options: Any, promise: Promise, running: Running = PLAIN) -> None:
        super().__init__(layer, options, promise, running)
        assert isinstance(layer, BlocksLayer)
        self.blocks = layer.blocks
        self.parts = [
            reading(block.layer, Full(), promise, running=running._replace(seed=_seed(self.seed, number)))
            for number, block in enumerate(layer.blocks)
        ]
        sizes = [block.layer.vocab for block in layer.blocks]
        self._firsts = np.concatenate([[0], np.cumsum(sizes)])
        self._order: Ids = np.arange(layer.vocab) if layer.order is None else layer.order
        self._place = np.argsort(self._order)

    def _best(self, hidden: Doubles, k: int, eps: float) -> Answer:
        found = [
            engine.topk(x, min(k, engine.layer.vocab), eps=eps)
            for engine, x in zip(self.parts, self._views(hidden), strict=True)
        ]
        logits = np.concatenate([one.logits for one in found], axis=1)
        ids = np.concatenate([self._names(number, one.ids) for number, one in enumerate(found)], axis=1)
        logits, ids = best_of(logits, ids, k, self.layer.vocab)
        lse, error = merged_lse(tuple(one.lse for one in found), tuple(one.error for one in found))
        proved = np.all([one.proved for one in found], axis=0)
        log_probs = logits - np.where(np.isfinite(lse), lse, 0.0)[:, None]
        return Answer(ids, logits, log_probs, lse, error, proved=proved).at(self._of_all_parts(found))

    def _score(self, hidden: Doubles, ids: Ids, eps: float) -> Scored:
        place = self._place[ids]
        owner = np.searchsorted(self._firsts, place, side="right") - 1
        logits, found = np.empty(ids.shape), []
        for number, (engine, x) in enumerate(zip(self.parts, self._views(hidden), strict=True)):
            mine = owner == number
            places = np.where(mine, place - self._firsts[number], 0)
            found.append(engine.log_prob(x, places if mine.any() else places[:, :0], eps=eps))
            if mine.any():
                logits[mine] = found[-1].logits[mine]
        lse, error = merged_lse(tuple(one.lse for one in found), tuple(one.error for one in found))
        return Scored(logits, lse, self._logit_error(hidden), error, self._of_all_parts(found))

    def _everything(self, hidden: Doubles) -> Scored:
        logits, found = np.empty((len(hidden), self.layer.vocab)), []
        for number, (engine, x) in enumerate(zip(self.parts, self._views(hidden), strict=True)):
            every = np.broadcast_to(np.arange(engine.layer.vocab), (len(hidden), engine.layer.vocab))
            found.append(engine.log_prob(x, every, eps=np.inf))
            logits[:, self._names(number, np.arange(engine.layer.vocab))] = found[-1].logits
        lse, error = lse_of(logits), self._logit_error(hidden)
        cost = self._of_all_parts(found)._replace(dense=np.ones(len(hidden), bool))
        rounding = (self.layer.vocab + 16 + 8 * np.abs(np.where(np.isfinite(lse), lse, 0.0))) * UNIT
        return Scored(logits, lse, error, error + rounding, cost)

    def _draw(self, hidden: Doubles, filters: Filters) -> Answer:
        found = [
            engine.ask(x, Question("draw", filters=filters._replace(seed=_seed(filters.seed, number))))
            for number, (engine, x) in enumerate(zip(self.parts, self._views(hidden), strict=True))
        ]
        winner = np.argmax([one.score for one in found], axis=0)[None]
        ids = np.stack([self._names(number, one.ids) for number, one in enumerate(found)])
        logits, score, proved = (np.stack([getattr(one, name) for one in found]) for name in ("logits", "score", "proved"))
        won = [np.take_along_axis(part, winner, 0)[0] for part in (ids, logits, score)]
        return Answer(won[0], won[1], score=won[2], proved=np.asarray(proved.all(axis=0))).at(self._of_all_parts(found))

    def _of_all_parts(self, found: Sequence[TopK | LogProb | Answer]) -> Cost:
        return summed([one.cost for one in found], f"{self.kind}/{self.isa}")

    def _storage(self) -> str:
        parts = " + ".join(f"{one.layer.vocab} x {one.layer.dim} {one.method.name}" for one in self.parts)
        return f"{parts}, {super()._storage()}"

    def _views(self, hidden: Doubles) -> list[Doubles]:
        """What each block reads of the hidden vectors."""
        return [_view(block, hidden) for block in self.blocks]

    def _names(self, number: int, places: Ids) -> Ids:
        """Class ids of the places within a block; -1 stays."""
        return np.where(places < 0, -1, self._order[np.maximum(places, 0) + self._firsts[number]])

    def _logit_error(self, hidden: Doubles) -> Doubles:
        """How far float64 can have carried a logit, projections included."""
        sizes = [
            (engine.layer.dim + self.layer.dim + 8)
            * float(engine.norms.max())
            * (1.0 if block.projection is None else float(np.linalg.norm(block.projection.astype(np.float64))))
            for engine, block in zip(self.parts, self.blocks, strict=True)
        ]
        bias = max(0.0 if one.layer.bias is None else float(np.abs(one.layer.bias).max()) for one in self.parts)
        return np.asarray((max(sizes) * np.linalg.norm(hidden, axis=1) + 8 * bias) * UNIT)


def _view(block: Block, hidden: Doubles) -> Doubles:
    if block.projection is not None:
        return real_rows(hidden @ block.projection.astype(np.float64).T)
    return np.ascontiguousarray(hidden[:, block.start : block.start + block.layer.dim])


def real_rows(x: Doubles) -> Doubles:
    """Projected vectors, refused where they leave float32's range."""
    real(float(np.abs(x).max(initial=0.0)), "a projected hidden vector", 0.0, float(np.finfo(np.float32).max), "rescale it")
    return np.ascontiguousarray(x)


def _seed(seed: int, number: int) -> int:
    """Noise of its own for every block."""
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:8], "little")
