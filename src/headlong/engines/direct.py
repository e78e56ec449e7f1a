"""One native call for a plain question: NumPy vectors, no class mask, an engine whose executor is native.

A decoder asks between other layers, when the caches are empty, and there Python's own steps (checks, the choice of what
answers, nine small arrays) cost as much as the reading. ``csrc/bind/direct_call.cpp`` does the same steps in one call; it gives
None for whatever is not plain: that goes the long way, where it is answered or refused in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from headlong import native
from headlong.answers import Cost, Promise, TopK
from headlong.engines.blocks import BlockReader
from headlong.plan import Plan

Direct = Callable[[Any, Any, Any], TopK | None]


def direct(
    executor: Any, plan: Plan, promise: Promise, chance: tuple[float, int], threads: int | None, path: str
) -> Direct | None:
    """``topk(hidden, k, eps)`` of this executor in one native call; None where there is none."""
    blocks = executor if isinstance(executor, BlockReader) else None
    beneath: Any = executor if blocks is None else blocks.beneath
    if not native.is_native(beneath) or (blocks is not None and blocks.affine is None):
        return None
    searches = () if blocks is None else tuple((k, search.capsule) for k, search in blocks.searches)
    call: Direct = native.direct_call(
        beneath.capsule, searches, executor, (TopK, Cost), path, promise.eps, *chance,
        0 if threads is None else threads, plan.dense.batch, 0 if blocks is None else blocks.batch,
        0 if blocks is None else blocks.most, blocks is None or blocks.sure, promise.delta_ids == 0,
        () if blocks is None else blocks.affine, (0.0, math.inf) if plan.seen is None else plan.seen, True,
        math.inf if blocks is None else blocks.least,
    )  # fmt: skip
    return call


def direct_search(
    reader: BlockReader, search: Any, plan: Plan, promise: Promise, threads: int | None, path: str
) -> Direct | None:
    """The same by ``search`` alone, which knows more classes than ``reader``: None for what blocks do not answer."""
    if not native.is_native(reader.beneath) or reader.affine is None:
        return None
    beneath: Any = reader.beneath
    call: Direct = native.direct_call(
        beneath.capsule, ((0, search.capsule),), (reader, search), (TopK, Cost), path, promise.eps, 0.0, 0,
        0 if threads is None else threads, plan.dense.batch, reader.batch, reader.most, True, True, reader.affine,
        (0.0, math.inf), False, math.inf,
    )  # fmt: skip
    return call
