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
from headlong.arrays import answer_as
from headlong.engines.arguments import aimed, asked, told, untold
from headlong.engines.kind import Kind
from headlong.question import Question

FIRST = 16
"""Classes that are asked for at first."""


def ranked(
    engine: Kind, hidden: Any, eps: float | None, until: Callable[[Any], Any] | None, allowed: Any, exclude: Any
) -> Iterator[tuple[Any, Any]]:
    """:meth:`headlong.Engine.ranked`."""
    form, rows, mask = asked(hidden, allowed, exclude, engine.layer.dim, engine.layer.vocab)
    k, aim = min(FIRST, engine.layer.vocab), aimed(eps, engine.promise, form)
    top = TopK.of(engine.ask(rows, Question("best", k, eps=aim, mask=mask)))
    top = top if told(eps, engine.promise) else untold(top)
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
        more = TopK.of(engine.ask(rows, Question("best", k, eps=engine.exact_at, mask=mask)))
        log_probs = engine.exponents(more.logits) - np.where(np.isneginf(top.lse), 0.0, top.lse)[:, None]
        found = answer_as(replace(more, log_probs=log_probs, lse=top.lse, error=top.error), form)
