"""One native call for a question without a mask: NumPy or torch vectors, an engine whose executor is native.

A decoder asks between other layers, when the caches are empty, and there Python's own steps (checks, the choice of what
answers, nine small arrays) cost as much as the reading. ``csrc/bind/direct_call.cpp`` does the same steps in one call; it gives
None for whatever it does not take: that goes the long way, where it is answered or refused in words.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from headlong import native
from headlong.answers import Cost, LogProb, Lse, Sample, TopK
from headlong.arrays import answer_like, as_numpy
from headlong.dtypes import BFLOAT16
from headlong.engines.arguments import FLOAT32_ROOM, RANGES
from headlong.engines.by_blocks import EDGE, FIRST_ASKED, BlockReader
from headlong.engines.by_codes import CodesReader
from headlong.links import Link
from headlong.promise import Promise

CLASSES = TopK, Lse, LogProb, Sample, Cost, BFLOAT16


class Direct(Protocol):
    """The verbs of an engine, in one native call each; None where that cannot answer."""

    def topk(self, hidden: Any, k: Any, eps: Any) -> TopK | None: ...

    def lse(self, hidden: Any, eps: Any) -> Lse | None: ...

    def log_prob(self, hidden: Any, ids: Any, eps: Any) -> LogProb | None: ...

    def sample(
        self, hidden: Any, n: Any, temperature: Any, top_k: Any, top_p: Any, min_p: Any, seed: Any, row0: Any, class0: Any
    ) -> Sample | None: ...


def direct(
    executor: Any, link: Link, promise: Promise, bet: tuple[float, int], threads: int | None, path: str
) -> Direct | None:
    """The verbs of this executor; None where there is no such call.

    ``bet``  how often a bet may be lost, and the seed of the rows that it draws
    """
    blocks = executor if isinstance(executor, BlockReader) else None
    above = executor if blocks is None else blocks.inner
    codes = above if isinstance(above, CodesReader) else None
    inner: Any = above if codes is None else codes.inner
    if not native.is_native(inner) or (blocks is not None and blocks.affine is None):
        return None
    numbers: dict[str, Any] = {}
    if codes is not None:
        numbers |= {"codes": codes.codes.capsule, "delta": bet[0]}
    search = None
    if blocks is not None:
        search = blocks.search.capsule
        numbers |= _of_blocks(blocks) | {"least": blocks.least, "samples": blocks.samples}
    kept = (promise.eps, *bet, promise.delta == 0 or codes is not None)
    return _bound(inner, search, (executor, codes), numbers, kept, link, threads, path)


def direct_search(
    reader: BlockReader, search: Any, promise: Promise, threads: int | None, path: str
) -> Direct | None:
    """``topk`` by ``search`` alone, which knows more classes than ``reader``: None for what blocks do not answer."""
    if not native.is_native(reader.rows) or reader.affine is None:
        return None
    numbers = {"every": False, "least": math.inf, **_of_blocks(reader)}
    kept = promise.eps, 0.0, 0, True
    return _bound(reader.rows, search.capsule, (reader, search), numbers, kept, reader.link, threads, path)


def _of_blocks(reader: BlockReader) -> dict[str, Any]:
    sizes = {"batch": reader.batch, "most": reader.most, "together": reader.together}
    return sizes | {"affine": reader.affine, "edge": EDGE, "first": FIRST_ASKED}


def _bound(
    executor: Any, search: Any, owners: Any, numbers: dict[str, Any], kept: tuple[Any, ...], link: Link,
    threads: int | None, path: str,
) -> Direct:  # fmt: skip
    count = 0 if threads is None else threads
    ranges = RANGES | {"float32 room": FLOAT32_ROOM}
    found: Direct = native.direct_call(
        executor.capsule, search, owners, numbers, kept, count, path, CLASSES, ranges, as_numpy, answer_like, link
    )
    return found
