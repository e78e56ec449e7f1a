"""An executor whose ids, normalisers and draws come from rotated codes.

topk, lse, entropy    codes: ``csrc/codes/ask.cpp``; a row that they leave too open is scanned in full
sample                codes: ``csrc/codes/samples.cpp``; in NumPy the inner executor
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headlong import native
from headlong.engines.draws import Rules
from headlong.engines.reference.codes import CodesInNumPy
from headlong.layers.matrix import Layer
from headlong.native import Doubles, FoundDraws, FoundEntropy, FoundLse, FoundTopK, Mask
from headlong.plan import Plan


class CodesReader:
    """The verbs of an executor, ``inner`` answering what codes do not; a call's ``delta`` is the whole of what may fail."""

    def __init__(self, layer: Layer, plan: Plan, rows: native.Executor, inner: native.Executor) -> None:
        assert plan.codes is not None
        self.inner = inner
        level = native.isa()
        self.native = level != native.REFERENCE
        self.codes: Any = native.code_reader(rows, plan.codes, level) if self.native else CodesInNumPy(layer, plan.codes, rows)
        self.isa, self.logits = inner.isa, inner.logits

    @property
    def capsule(self) -> Any:
        """For engines that read several matrices in one native call."""
        return self.inner.capsule  # type: ignore[attr-defined]

    def topk(
        self, hidden: Doubles, k: int, eps: float, mask: Mask, threads: int, delta: float = 0.0, seed: int = 0
    ) -> FoundTopK:
        if not len(hidden):
            return self.inner.topk(hidden, k, eps, mask, threads, delta, seed)
        found: FoundTopK = self.codes.topk(hidden, k, eps, mask, threads, delta, seed)
        return found

    def lse(
        self, hidden: Doubles, eps: float, mask: Mask, threads: int, delta: float = 0.0, seed: int = 0
    ) -> FoundLse:
        if not len(hidden):
            return self.inner.lse(hidden, eps, mask, threads, delta, seed)
        found = self.codes.topk(hidden, 0, eps, mask, threads, delta, seed)
        return FoundLse(found.lse, found.error, found.rows, found.bytes, found.dense)

    def sample(
        self, hidden: Doubles, n: int, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, row0: int,
        mask: Mask, threads: int, class0: int = 0, delta: float = 0.0, chance: int = 0,
    ) -> FoundDraws:  # fmt: skip
        filters = (hidden, n, temperature, top_k, top_p, min_p, seed, row0, mask)
        if not self.native or not len(hidden):
            return self.inner.sample(*filters, threads, class0, delta, chance)
        found: FoundDraws = self.codes.sample(*filters, threads, class0, delta, chance)
        return found

    def sample_each(
        self, hidden: Doubles, n: int, rules: Rules, mask: Mask, threads: int, class0: int, delta: float, chance: int
    ) -> FoundDraws:  # fmt: skip
        """As :meth:`sample`, each row by a rule of its own."""
        doubles = [np.array(part, np.float64) for part in (rules.temperature, rules.top_p, rules.min_p)]
        noise = [np.array(part, np.uint64) for part in (rules.seed, rules.position)]
        k = np.array(rules.top_k, np.int64)
        rest = mask, threads, class0, delta, chance
        found: FoundDraws = self.codes.sample_each(hidden, n, doubles[0], k, *doubles[1:], *noise, *rest)
        return found

    def entropy(self, hidden: Doubles, eps: float, mask: Mask, threads: int, delta: float, seed: int) -> FoundEntropy:
        found: FoundEntropy = self.codes.entropy(hidden, eps, mask, threads, delta, seed)
        return found
