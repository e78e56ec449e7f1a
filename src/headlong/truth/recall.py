"""The recall of answers against a truth: which of the k nearest were found, and how much a tie leaves open.

::

    recall of a query = |found & truth| / k      with ties: missing places count where as many answers could tie with the k-th
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from headlong.arrays import as_numpy
from headlong.dtypes import Doubles, Ids
from headlong.errors import DtypeError, MissingTensorError, ShapeError
from headlong.number_checks import whole
from headlong.tables import answers, arrow
from headlong.truth.search import Truth, read_truth


class Recall(NamedTuple):
    """``of_each [n]``, its ``mean``, and ``with_ties``: the mean if every answer that could tie with the k-th item does."""

    k: int
    of_each: Doubles
    mean: float
    with_ties: float

    def __str__(self) -> str:
        ties = f" ({self.with_ties:.4%} if what may be a tie is one)" if self.with_ties > self.mean else ""
        complete, worst = float((self.of_each == 1).mean()), float(self.of_each.min())
        said = f"recall@{self.k} {self.mean:.4%}{ties}"
        return f"{said}; {complete:.2%} of {len(self.of_each):,} queries have all, the worst {worst:.2%}"


def recall(truth: Any, found: Any, k: int | None = None) -> Recall:
    """The recall of ``found``, ids ``[n, k]`` or a table with a column ``ids``, against what :func:`headlong.truth.truth` gave
    or wrote.

    ``k``  None: as many as both have. Ids that are named twice count once; -1 is none
    """
    true = truth if isinstance(truth, Truth) else read_truth(truth)
    ids = ids_of(found)
    if len(ids) != len(true.ids):
        raise ShapeError(f"there are answers to {len(ids):,} queries, and the truth of {len(true.ids):,}; expected as many")
    if not len(ids):
        raise ShapeError("there are no queries, so there is no recall")
    most = min(ids.shape[1], true.ids.shape[1])
    k = most if k is None else whole(k, "k", 1, most, "the truth and the answers have no more")
    wanted, given = true.ids[:, :k], np.sort(ids[:, :k], axis=1)
    given[:, 1:][given[:, 1:] == given[:, :-1]] = -1
    hits = np.array([np.isin(one, some[some >= 0]).sum() for one, some in zip(given, wanted, strict=True)])
    there = (wanted >= 0).sum(axis=1)
    beyond = true.scores[:, k] if k < true.scores.shape[1] else None
    tie = true.margin == 0 if beyond is None else true.scores[:, k - 1] == beyond
    last = (true.scores[:, :k] == true.scores[:, k - 1 : k]).sum(axis=1)
    others = (given >= 0).sum(axis=1) - hits
    more = np.where(tie, np.minimum(np.minimum(last, others), there - hits), 0)
    count = np.maximum(there, 1)
    each = hits / count
    return Recall(k, each, float(each.mean()), float(((hits + more) / count).mean()))


def ids_of(found: Any) -> Ids:
    """``[n, k]`` ids: an array, an ``.npy`` file, or the column ``ids`` of a table."""
    if isinstance(found, str | os.PathLike):
        if os.fspath(found).endswith(".npy"):
            found = np.load(found, allow_pickle=False)
        else:
            table = answers.read(found)
            if "ids" not in table:
                raise MissingTensorError(f"{os.fspath(found)} has the columns {', '.join(table)}; expected ids, a list a row")
            found = table["ids"]
    elif arrow.is_arrow(found):
        found = answers.arrays(arrow.as_table(found, "found"))["ids"]
    ids = as_numpy(found, "found")
    if ids.ndim != 2:
        raise ShapeError(f"the ids have shape {list(ids.shape)}; expected [n, k]")
    if ids.dtype.kind not in "iu":
        raise DtypeError(f"the ids are {ids.dtype}; expected whole numbers")
    return ids.astype(np.int64)
