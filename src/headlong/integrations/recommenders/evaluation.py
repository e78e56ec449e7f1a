"""Recall and NDCG over the whole catalogue, as papers define them, from exact rankings.

::

    recall@k = mean over users of |best k of u, and held of u| / min(k, |held of u|)
    ndcg@k   = mean over users of sum_r [rank r is held] / log2(r + 1)  /  sum_{r <= min(k, held)} 1 / log2(r + 1)

RecBole divides recall by all held items, however small k is. Users without a held item count in neither mean. Items that a
user has seen are left out before anything is ranked, so nothing is sampled and no score is masked afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix

from headlong.arrays import hidden_rows
from headlong.engines.contract import Verbs
from headlong.errors import InputError, ShapeError, named
from headlong.number_checks import wholes

ROWS = 1024
"""Users that are ranked at once."""


class Evaluation(NamedTuple):
    """Measures for each ``k``; ``users`` that had a held item; ``proved``: every ranking was."""

    recall: dict[int, float]
    ndcg: dict[int, float]
    users: int
    proved: bool


def evaluate(
    engine: Verbs, hidden: ArrayLike, held: csr_matrix, *, seen: csr_matrix | None = None, k: Sequence[int] = (10,)
) -> Evaluation:
    """``hidden [users, dim]``, ``held`` and ``seen`` CSR ``[users, items]``: stored entries count, whatever their number."""
    ks = sorted(set(wholes(k, "k", 1, 2**40)))
    if not ks:
        raise InputError("k is empty; expected whole numbers from 1")
    if not hasattr(engine, "layer") or not callable(getattr(engine, "topk", None)):
        raise InputError(f"engine is {named(engine)}; expected one over the items: headlong.compile(headlong.Layer(items))")
    hidden = hidden_rows(hidden, engine.layer.dim, vocab=engine.layer.vocab)
    for name, rows in (("held", held), ("seen", seen)):
        if getattr(rows, "format", None) != "csr" and (name == "held" or rows is not None):
            raise InputError(f"{name} is {named(rows)}; expected SciPy's CSR rows [users, items]")
        if rows is not None and rows.shape != (len(hidden), engine.layer.vocab):
            raise ShapeError(f"{name} has shape {list(rows.shape)}; expected [{len(hidden)}, {engine.layer.vocab}]")
    most, gains = ks[-1], 1 / np.log2(np.arange(2, ks[-1] + 2))
    recall, ndcg, users, proved = np.zeros(len(ks)), np.zeros(len(ks)), 0, True
    for start in range(0, len(hidden), ROWS):
        some = slice(start, start + ROWS)
        top = engine.topk(hidden[some], min(most, engine.layer.vocab), eps=np.inf, exclude=None if seen is None else seen[some])
        ids, wanted = np.asarray(top.ids), held[some]
        proved &= bool(np.asarray(top.proved).all())
        for row, best in enumerate(ids):
            mine = wanted.indices[wanted.indptr[row] : wanted.indptr[row + 1]]
            if not len(mine):
                continue
            hits = np.isin(best, mine)
            users += 1
            for place, one in enumerate(ks):
                few = min(one, len(mine))
                recall[place] += hits[:one].sum() / few
                ndcg[place] += (hits[:one] * gains[: len(hits[:one])]).sum() / gains[:few].sum()
    if not users:
        raise InputError("no user has a held item; expected CSR rows with at least one")
    means = [dict(zip(ks, map(float, part / users), strict=True)) for part in (recall, ndcg)]
    return Evaluation(means[0], means[1], users, proved)
