"""An executor whose ids and normalisers come from rotated codes where that was timed to be faster.

topk, lse, but for ``delta`` or proved      codes: ``csrc/codes/ask.cpp``; a row that they leave too open is scanned in full
samples, and normalisers under links that are not affine      the executor beneath
"""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from headlong import native
from headlong.engines.reference.codes import CodesInNumPy
from headlong.layers.matrix import Layer
from headlong.links import Affine
from headlong.native import Doubles, Mask
from headlong.plan import Plan

Answer = tuple[NDArray[Any], ...]


class CodesReader:
    """The verbs of an executor, ``beneath`` answering what codes do not; ``delta`` is the whole of what may fail."""

    def __init__(self, layer: Layer, plan: Plan, rows: native.Executor, beneath: native.Executor, delta: float) -> None:
        assert plan.codes is not None
        self.plan, self.beneath, self.delta = plan.codes, beneath, delta
        self.affine = isinstance(layer.link, Affine)
        level = native.isa()
        if level == native.REFERENCE:
            self.codes: Any = CodesInNumPy(layer, plan.codes, rows)
        else:
            self.codes = native.code_reader(rows, plan.codes, level)
        self.draws_entropies = self.affine and level != native.REFERENCE
        self.isa, self.logits, self.sample = beneath.isa, beneath.logits, beneath.sample

    @property
    def capsule(self) -> Any:
        """For engines that read several matrices in one native call."""
        return self.beneath.capsule  # type: ignore[attr-defined]

    def _take(self, hidden: Doubles, eps: float) -> bool:
        return len(hidden) > 0 and self.plan.take(len(hidden), eps) and (self.affine or math.isinf(eps))

    def topk(
        self, hidden: Doubles, k: int, eps: float, mask: Mask, dense: bool, threads: int, delta: float = 0.0, seed: int = 0
    ) -> Answer:
        """``logits, ids, log_probs [batch, k], lse, error, proved, rows, bytes, dense [batch]``."""
        if not self._take(hidden, eps):
            return self.beneath.topk(hidden, k, eps, mask, dense, threads, delta, seed)
        found: Answer = self.codes.topk(hidden, k, eps, mask, threads, self.delta, seed)
        return found

    def lse(
        self, hidden: Doubles, eps: float, mask: Mask, dense: bool, threads: int, delta: float = 0.0, seed: int = 0
    ) -> Answer:
        """``lse, error, rows, bytes, dense [batch]``."""
        if not self._take(hidden, eps):
            return self.beneath.lse(hidden, eps, mask, dense, threads, delta, seed)
        _, _, _, lse, error, _, *cost = self.codes.topk(hidden, 0, eps, mask, threads, self.delta, seed)
        return (lse, error, *cost)

    def entropy(self, hidden: Doubles, eps: float, mask: Mask, threads: int, seed: int) -> Answer:
        """``entropy, error, lse, rows, bytes, dense [batch]``."""
        found: Answer = self.codes.entropy(hidden, eps, mask, threads, self.delta, seed)
        return found
