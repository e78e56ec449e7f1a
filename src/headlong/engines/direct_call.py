"""One native call for a question without a mask: NumPy or torch vectors, an engine whose reader is native.

A decoder asks between other layers, when the caches are empty, and there Python's own steps (checks, the choice of what
answers, nine small arrays) cost as much as the reading. ``csrc/bind/direct_call.cpp`` does the same steps in one call; it gives
None for whatever it does not take: that goes the long way, where it is answered or refused in words.
"""

from __future__ import annotations

from typing import Any, Protocol

from headlong import native
from headlong.answers import Cost, LogProb, Lse, Sample, TopK
from headlong.arrays import answer_like, as_numpy
from headlong.dtypes import BFLOAT16
from headlong.engines.arguments import FLOAT32_ROOM, RANGES
from headlong.links import Link
from headlong.promise import Promise

CLASSES = TopK, Lse, LogProb, Sample, Cost, BFLOAT16


class Direct(Protocol):
    """The verbs of an engine, in one native call each; None where that cannot answer."""

    def topk(self, hidden: Any, k: Any, eps: Any) -> TopK | None: ...

    def lse(self, hidden: Any, eps: Any) -> Lse | None: ...

    def log_prob(self, hidden: Any, ids: Any, eps: Any) -> LogProb | None: ...

    def sample(
        self,
        hidden: Any,
        n: Any,
        temperature: Any,
        top_k: Any,
        top_p: Any,
        min_p: Any,
        seed: Any,
        row0: Any,
        class0: Any,
        eps: Any,
        last: bool,
    ) -> Sample | None: ...


def direct(
    reader: native.Executor, link: Link, promise: Promise, bet: tuple[float, int], threads: int | None, path: str
) -> Direct | None:
    """The verbs of this reader; None where there is no such call.

    ``bet``  how often a bet may be lost, and the seed of the rows that it draws
    """
    if not native.is_native(reader):
        return None
    ranges = RANGES | {"float32 room": FLOAT32_ROOM}
    kept, count = (promise.eps, *bet, promise.delta >= 1), 0 if threads is None else threads
    found: Direct = native.direct_call(reader, kept, count, path, CLASSES, ranges, as_numpy, answer_like, link)
    return found
