"""The NumPy executor: one query at a time, every logit in float64.

    top-k    the k largest logits, equal ones by id
    lse      log of the sum of all exponentials
    sample   argmax of link(z) / T + gumbel over the classes that the filters keep

The readable twin of ``csrc/executor``, with the same verbs and the same answers: choose it with ``HEADLONG_ISA=numpy``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import UNIT, Doubles, Ids
from headlong.engines.reference.gumbel import gumbels
from headlong.engines.reference.nucleus import kept
from headlong.engines.reference.query import Matrix, Query, logits, ordered
from headlong.links import ROUNDING as LINK_ROUNDING
from headlong.links import evaluated, lowering_error
from headlong.native import FoundDraws, FoundLse, FoundTopK

Mask = NDArray[np.uint8] | None
Answer = TypeVar("Answer", FoundTopK, FoundLse, FoundDraws)


def top(query: Query, k: int) -> Ids:
    """The ids of the k largest logits, largest first, equal logits by id; fewer where there are fewer classes."""
    ids = np.flatnonzero(query.within & query.live)
    if not query.proves:
        return np.asarray(ids[np.lexsort((ids, -query.logits[ids]))][:k])
    ids, query.logits[ids] = ordered(query.matrix, query.hidden, ids, query.logits[ids], k)
    return ids[:k]


def normaliser(query: Query) -> tuple[float, float]:
    """``(lse, error)`` of the log-normaliser, in nats."""
    exponents = query.exponents()
    shift = float(exponents.max())
    if not math.isfinite(shift):
        return -math.inf, 0.0
    value = shift + math.log(float(np.exp(exponents - shift).sum()))
    return value, _rounding(query, shift) if query.proves else math.inf


def _rounding(query: Query, shift: float) -> float:
    """What float64 can have added to the error of a normaliser: of the logits, of the link, of the sum, of its log."""
    link = query.matrix.link
    size = abs(shift) + link.offset
    off = link.steepest * float(query.rounding[query.live].max()) + 2 * lowering_error(link)
    return off + size * LINK_ROUNDING + (len(query.logits) + 16) * UNIT


class Executor:
    """The verbs of ``headlong._native.Executor`` over a :class:`Matrix`, looped over the queries of a batch.

    ``hidden [batch, dim]`` float64; ``mask [1 or batch, vocab]`` (0: the class is not there) or None. ``delta`` and ``seed``
    are not used: what may be estimated from sampled rows is proved here.
    """

    isa = "numpy"

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix._replace(link=evaluated(matrix.link))

    def topk(
        self, hidden: Doubles, k: int, eps: float, mask: Mask, threads: int, delta: float = 0.0, seed: int = 0
    ) -> FoundTopK:
        answers = []
        for query in self._queries(hidden, mask, k):
            ids = top(query, k)
            values = query.logits[ids]
            lse, error = normaliser(query)
            log_probs = self.matrix.link(values) - (lse if math.isfinite(lse) else 0.0)
            ranked = (_pad(values, k, -np.inf), _pad(ids, k, -1), _pad(log_probs, k, -np.inf))
            answers.append((*ranked, lse, error, query.proves, *_cost(query)))
        return _columns(FoundTopK, answers, ("f", k), ("i", k), ("f", k), ("f",), ("f",), ("?",), *_COST)

    def lse(self, hidden: Doubles, eps: float, mask: Mask, threads: int, delta: float = 0.0, seed: int = 0) -> FoundLse:
        found = ((*normaliser(query), *_cost(query)) for query in self._queries(hidden, mask, 0))
        return _columns(FoundLse, list(found), ("f",), ("f",), *_COST)

    def logits(self, hidden: Doubles, ids: Ids, threads: int) -> Doubles:
        """``[batch, m]``: the exact logits of ``ids [batch, m]``."""
        found = [logits(self.matrix, row, chosen) for row, chosen in zip(hidden, ids, strict=True)]
        return np.array(found, np.float64).reshape(ids.shape)

    def sample(
        self, hidden: Doubles, n: int, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, row0: int,
        mask: Mask, threads: int, class0: int = 0, delta: float = 0.0, chance: int = 0,
    ) -> FoundDraws:  # fmt: skip
        """top_k 0, top_p 1, min_p 0 mean off."""
        answers = []
        for b, query in enumerate(self._queries(hidden, mask, top_k)):
            if top_k:
                query.live = np.isin(np.arange(len(query.live)), top(query, top_k))
            exponents = query.exponents(temperature)
            ids = kept(query.logits, exponents, top_p, min_p)
            noise = (gumbels(seed, (row0 + b) % 2**64, draw, ids + class0) for draw in range(n))
            keys = np.array([exponents[ids] + gumbel for gumbel in noise]).reshape(n, len(ids))
            won = keys.argmax(axis=1)
            chosen = ids[won]
            answers.append((chosen, query.logits[chosen], keys.max(axis=1), np.full(n, query.proves), *_cost(query)))
        return _columns(FoundDraws, answers, ("i", n), ("f", n), ("f", n), ("?", n), *_COST)

    def _queries(self, hidden: Doubles, mask: Mask, k: int) -> Iterator[Query]:
        """Each row of the batch, with all of its logits."""
        everything = np.ones(len(self.matrix.weight), bool)
        for b, row in enumerate(hidden):
            yield Query(self.matrix, row, everything if mask is None else mask[b % len(mask)] != 0, k)


_COST = (("i",), ("f",), ("?",))


def _cost(query: Query) -> tuple[int, float, bool]:
    return query.rows, query.bytes, query.proves


def _pad(values: NDArray[Any], count: int, filler: float) -> NDArray[Any]:
    return np.concatenate([values, np.full(count - len(values), filler, values.dtype)])


def _columns(kind: type[Answer], rows: list[tuple[Any, ...]], *columns: tuple[Any, ...]) -> Answer:
    """One array per column from one tuple per query; ``columns`` give the type and the width, for an empty batch too."""
    types = {"f": np.float64, "i": np.int64, "?": np.bool_}
    values = zip(*rows, strict=True) if rows else ([] for _ in columns)
    shapes = ((len(rows), *width) for _, *width in columns)
    return kind(
        *(np.array(column, types[of]).reshape(shape) for column, (of, *_), shape in zip(values, columns, shapes, strict=True))
    )
