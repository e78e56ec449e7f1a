"""Trees and bands, best branch first: one executor opens nodes that can matter, and samples are drawn on the way down.

::

    a sample walks from the root: at each node one uniform picks a branch            (the path has probability p(class))
    score = a Gumbel of its own: the largest of log p + noise over all classes is one, whichever class has it

The uniforms are Philox words of (seed, row, draw, level), so a draw is the same in any split of a batch.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from headlong import native
from headlong.answers import Answer
from headlong.dtypes import Doubles, Ids
from headlong.engines.method import PLAIN, Running
from headlong.engines.reference.descent import Part, Paths, Reading, Steps, rounding
from headlong.engines.reference.gumbel import philox
from headlong.engines.structured.base import Scored, StructuredEngine, register_engine
from headlong.errors import NonFiniteError
from headlong.layers.bands import BandsLayer
from headlong.layers.structured import StructuredLayer
from headlong.layers.tree import TreeLayer
from headlong.promise import Promise
from headlong.question import Filters


def native_tree(paths: Paths, dim: int, level: str) -> Any:
    """What searches, natively."""
    steps = paths.steps
    nodes = (steps.part, steps.first, steps.starts, steps.children, steps.two_way)
    tables = (np.ascontiguousarray(table, np.int64) for table in (paths.owner, paths.above, paths.leaf))
    arrays = [part if isinstance(part, bool) else np.ascontiguousarray(part, np.int64) for part in nodes]
    parts = [(part.weight, part.bias, part.projection) for part in steps.parts]
    return native.descent(dim, parts, [*arrays, *tables], level)


class WalkingEngine(StructuredEngine):
    """Proves everything: no promise has a probability."""

    kind: ClassVar[str]

    def __init__(self, layer: StructuredLayer, options: Any, promise: Promise, running: Running = PLAIN) -> None:
        super().__init__(layer, options, promise, running)
        self.steps = self._steps()
        self.rounding = rounding(self.steps)
        if not np.isfinite(self.rounding.slope):
            raise NonFiniteError("a weight is NaN or infinity; repair it, or train again")
        self._paths = Paths(self.steps)
        self._executor = None if self.isa == native.REFERENCE else native_tree(self._paths, layer.dim, self.isa)

    @abstractmethod
    def _steps(self) -> Steps:
        """The layer in the form that executors take."""

    def _best(self, hidden: Doubles, k: int, eps: float) -> Answer:
        if self._executor is None:
            return super()._best(hidden, k, eps)
        log_probs, ids, rows, read = self._executor.best(hidden, k, self._count)
        zero, yes = np.zeros(len(hidden)), np.ones(len(hidden), bool)
        found = Answer(ids, log_probs, log_probs, zero, self.rounding(hidden), proved=yes)
        return found.at(self._cost(rows, read, ~yes))

    def _score(self, hidden: Doubles, ids: Ids, eps: float) -> Scored:
        if self._executor is None:
            return super()._score(hidden, ids, eps)
        log_probs, rows, read = self._executor.log_probs(hidden, ids, self._count)
        zero = np.zeros(len(hidden))
        return Scored(log_probs, zero, self.rounding(hidden), zero, self._cost(rows, read, np.zeros(len(hidden), bool)))

    def _everything(self, hidden: Doubles) -> Scored:
        batch, zero = len(hidden), np.zeros(len(hidden))
        rows = sum(len(part.weight) for part in self.steps.parts)
        read = float(sum(part.weight.nbytes for part in self.steps.parts))
        cost = self._cost(np.full(batch, rows), np.full(batch, read), np.ones(batch, bool))
        return Scored(self._paths.everything(hidden), zero, self.rounding(hidden), zero, cost)

    def _draw(self, hidden: Doubles, filters: Filters) -> Answer:
        shape = len(hidden), filters.n
        ids, logits, score = np.empty(shape, np.int64), np.empty(shape), np.empty(shape)
        rows, read = np.zeros(len(hidden), np.int64), np.zeros(len(hidden))
        for b in range(len(hidden)):
            reading, row = Reading(self.steps, hidden[b]), (filters.row0 + b) % 2**64
            ids[b], logits[b] = self._walk(reading, filters, row)
            score[b] = -np.log(-np.log(_uniforms(filters.seed, row, filters.n, 0)))
            rows[b], read[b] = reading.rows, reading.bytes
        found = Answer(ids, logits, score=score, proved=np.ones(shape, bool))
        return found.at(self._cost(rows, read, np.zeros(len(hidden), bool)))

    def _walk(self, reading: Reading, filters: Filters, row: int) -> tuple[Ids, Doubles]:
        """All draws of a row go down together; a node is opened once for those that come by."""
        steps, level = self.steps, 0
        at, log_probs = np.zeros(filters.n, np.int64), np.zeros(filters.n)
        while (at >= 0).any():
            level += 1
            uniform = _uniforms(filters.seed, row, filters.n, level)
            for node in np.unique(at[at >= 0]).tolist():
                here = np.flatnonzero(at == node)
                values = reading.open(node)
                reach = np.cumsum(np.exp(values))
                branch = np.searchsorted(reach, uniform[here] * reach[-1], side="right")
                branch = np.minimum(branch, len(values) - 1)
                at[here] = steps.children[steps.starts[node] + branch]
                log_probs[here] += values[branch]
        return ~at, log_probs


def _uniforms(seed: int, row: int, count: int, level: int) -> Doubles:
    """``(0, 1)``, one for each draw: 53 bits and a half."""
    key = int.from_bytes(hashlib.sha256(f"walk {seed}".encode()).digest()[:8], "little")
    depth, low_row, high_row = (np.full(count, word, np.uint64) for word in (level, row & 0xFFFFFFFF, row >> 32))
    high, low, *_ = philox((np.arange(count, dtype=np.uint64), depth, low_row, high_row), (key & 0xFFFFFFFF, key >> 32))
    return ((high >> np.uint64(5)).astype(np.float64) * 2.0**26 + (low >> np.uint64(6)).astype(np.float64) + 0.5) * 2.0**-53


@register_engine
class TreeEngine(WalkingEngine):
    """Exact top-k of the tree's own distribution.

    ::

        opened nodes = {n : p(n) >= p of the k-th best class}, at most depth / p of it: few where the distribution is peaked
    """

    kind: ClassVar[str] = "tree"

    def _steps(self) -> Steps:
        layer = self.layer
        assert isinstance(layer, TreeLayer)
        starts = layer.branch_starts
        nodes = len(starts) - 1
        first = np.arange(nodes) if layer.two_way else starts[:-1]
        part = Part(layer.weight, layer.bias, None)
        children = np.ascontiguousarray(layer.children.reshape(-1))
        depth = int(layer.depths.max()) + 1
        return Steps((part,), np.zeros(nodes, np.int64), first, starts, children, layer.two_way, depth)


@register_engine
class BandsEngine(WalkingEngine):
    """The short list always, a band only while its token beats the k-th best class; one that is opened is read whole.

    ::

        p(class in band j) <= p(token j)
    """

    kind: ClassVar[str] = "bands"

    def _steps(self) -> Steps:
        layer = self.layer
        assert isinstance(layer, BandsLayer)
        parts = [Part(layer.head.weight, layer.head.bias, None)]
        parts += [Part(band.layer.weight, band.layer.bias, band.projection) for band in layer.bands]
        order = np.arange(layer.vocab) if layer.order is None else layer.order
        nodes = len(parts)
        children = np.concatenate([~order[: layer.short], np.arange(1, nodes), ~order[layer.short :]])
        starts = np.concatenate([[0], np.cumsum([len(part.weight) for part in parts])])
        return Steps(tuple(parts), np.arange(nodes), np.zeros(nodes, np.int64), starts, children, False, 2)
