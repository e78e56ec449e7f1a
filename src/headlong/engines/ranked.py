"""The classes of each row, likeliest first, as many as are taken.

    for ids, log_probs in engine.ranked(hidden): ...        ids, log_probs [batch]: the first of each row, the second, ...

What has been yielded is the beginning of ``topk(k)`` for every ``k``: when more is wanted, twice as many are asked for; the
normaliser stays that of the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from headlong.answers import TopK
from headlong.arrays import answer_as, form_of
from headlong.engines.arguments import aimed, checked_hidden

FIRST = 16
"""Classes that are asked for at first."""


def ranked(
    engine: Any, hidden: Any, eps: float | None, until: Callable[[Any], Any] | None, allowed: Any, exclude: Any
) -> Iterator[tuple[Any, Any]]:
    """:meth:`headlong.Engine.ranked`."""
    form, limits = form_of(hidden), {"allowed": allowed, "exclude": exclude}
    rows = checked_hidden(hidden, engine.layer.dim, vocab=engine.layer.vocab)
    k = min(FIRST, engine.layer.vocab)
    top: TopK = engine.topk(rows, k, eps=aimed(eps, engine.promise, form), **limits)
    found = answer_as(top, form)
    accepted, place = np.zeros(len(rows), bool), 0
    while len(rows):
        for place in range(place, k):  # noqa: B020
            ids, log_probs = found.ids[:, place], found.log_probs[:, place]
            if (ids < 0).all():
                return
            yield ids, log_probs
            if until is not None:
                accepted |= np.asarray(until(ids), bool)
                if accepted.all():
                    return
        if k == engine.layer.vocab:
            return
        place, k = k, min(2 * k, engine.layer.vocab)
        more: TopK = engine.topk(rows, k, eps=engine.exact_at, **limits)
        log_probs = engine.exponents(more.logits) - np.where(np.isneginf(top.lse), 0.0, top.lse)[:, None]
        found = answer_as(replace(more, log_probs=log_probs, lse=top.lse, error=top.error), form)
