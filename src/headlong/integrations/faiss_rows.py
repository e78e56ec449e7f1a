"""The engine of an index, which follows its rows: few that come or go are read beside it, many compile it again.

FAISS's flat indexes renumber: rows behind one that is removed move up. The engine's ids stay, so ``names`` has the id of the
row at each place, ascending.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headlong
from headlong.dtypes import Floats, Ids
from headlong.errors import InputError

FEW = 16
"""Changes are few while they are at most the rows over this."""


class LazyEngine:
    """An engine over the rows of an index, made when it is first asked for; ``heaviest`` is the largest of l2's biases."""

    def __init__(self, metric: str, options: dict[str, Any]) -> None:
        self.metric, self.options = metric, options
        self.forget()

    def forget(self) -> None:
        """The engine: it is made again when it is asked for."""
        self.made: Any = None
        self.names, self.changes, self.heaviest = np.empty(0, np.int64), 0, 0.0

    def engine(self, rows: Floats, queries: Floats | None) -> Any:
        """That over ``rows``, all that there are."""
        if self.made is None:
            if not len(rows):
                raise InputError("the index is empty; add(rows) first")
            self.forget()
            layer = headlong.Layer(rows, self._bias(rows))
            eps = 0.01 if self.metric == "log_prob" else math.inf
            self.made = headlong.compile(layer, **{"eps": eps, "delta": 0.0, "calibration": queries, **self.options})
            self.names = np.arange(len(rows))
        return self.made

    def places(self, ids: Any) -> Ids:
        """The places of the engine's ids among the rows."""
        found = np.asarray(ids)
        return np.where(found < 0, -1, np.searchsorted(self.names, found))

    def added(self, rows: Floats, dtype: Any) -> None:
        """``rows`` came to the end of those that there were, of type ``dtype``."""
        if not self._few(len(rows)) or rows.dtype != dtype:
            return self.forget()
        bias = self._bias(rows)
        if bias is not None and not np.isfinite(bias).all():
            return self.forget()  # the next call raises
        first = self.made.layer.vocab
        self.made = self.made.with_rows(rows, bias)
        self.names = np.concatenate([self.names, np.arange(first, first + len(rows))])
        return None

    def removed(self, gone: NDArray[np.bool_]) -> None:
        """The rows at the places ``gone`` went."""
        if not self._few(int(gone.sum())) or gone.all():
            return self.forget()
        self.made, self.names = self.made.without(self.names[gone]), self.names[~gone]
        return None

    def _few(self, count: int) -> bool:
        self.changes += count
        return self.made is not None and self.changes <= len(self.names) // FEW

    def _bias(self, rows: Floats) -> Floats | None:
        """``-|y|^2 / 2`` for l2."""
        if self.metric != "l2":
            return None
        bias: Floats = (-0.5 * np.square(rows.astype(np.float64)).sum(1)).astype(np.float32)
        self.heaviest = max(self.heaviest, float(np.abs(bias).max()))
        return bias
