"""What ann-benchmarks' runner loads: copy this folder to ``ann_benchmarks/algorithms/headlong`` there.

::

    fit(rows), query(q, n), batch_query(queries, n), set_query_arguments(path), get_additional()
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headlong
from headlong.errors import InputError, OptionError
from headlong.integrations.faiss.index import IndexFlat

METRICS = {"dot": "inner_product", "angular": "cosine", "euclidean": "l2"}
PATHS = ("auto", "dense")


class Headlong:
    """``metric`` of ann-benchmarks; ``method`` and ``threads`` as :func:`headlong.compile`."""

    def __init__(self, metric: str = "dot", method: str = "auto", threads: int = 1) -> None:
        if metric not in METRICS:
            raise OptionError(f"metric is {metric!r}; expected one of {', '.join(METRICS)}")
        self.metric, self.method, self.threads, self.path = metric, method, threads, "auto"
        self.index: IndexFlat | None = None
        self.results: NDArray[np.int64] = np.empty((0, 0), np.int64)
        self._engine: Any = None

    def fit(self, X: Any) -> None:  # noqa: N803  # ann-benchmarks' name
        """Index the rows ``X [n, dim]``."""
        rows = np.asarray(X, np.float32)
        self.index = IndexFlat(rows.shape[1], METRICS[self.metric], method=self.method, threads=self.threads)
        self.index.add(rows)
        self._engine = self.index.engine  # building time is counted here, not in the first query

    def set_query_arguments(self, path: str = "auto") -> None:
        """ "dense" reads every row: what the engine saves, with ids that are the same."""
        if path not in PATHS:
            raise OptionError(f"path is {path!r}; expected one of {', '.join(PATHS)}")
        self._fitted()._reader.made = self._engine if path == "auto" else self._full()  # noqa: SLF001
        self.path = path

    def query(self, q: Any, n: int) -> NDArray[np.int64]:
        """The ids of the ``n`` nearest; none is -1."""
        ids = self._fitted().search(np.asarray(q, np.float32)[None], n)[1][0]
        return np.asarray(ids[ids >= 0])

    def batch_query(self, X: Any, n: int) -> None:  # noqa: N803
        """Many at once; :meth:`get_batch_results` has the answers."""
        self.results = self._fitted().search(X, n)[1]

    def get_batch_results(self) -> NDArray[np.int64]:
        """``[queries, n]``, the ids of the last :meth:`batch_query`."""
        return self.results

    def get_additional(self) -> dict[str, Any]:
        """What is stored with a result: how the engine reads, and how little of it."""
        if self.index is None:
            return {}
        engine = self.index.engine
        return {"path": self.path, "engine": repr(engine), "kernel": engine.reader.isa}

    def get_memory_usage(self) -> float:
        """Kilobytes of rows and previews."""
        if self.index is None:
            return 0.0
        engine = self.index.engine
        return float((engine.layer.weight.nbytes + (0 if engine.plan.codes is None else engine.plan.codes.tiles.nbytes)) / 1024)

    def done(self) -> None:
        """Free what was built."""
        self.index = self._engine = None

    def _full(self) -> Any:
        """What reads every row."""
        return headlong.compile(self._engine.layer, "full", eps=math.inf, threads=self.threads)

    def _fitted(self) -> IndexFlat:
        if self.index is None:
            raise InputError("nothing is indexed; call fit(rows) first")
        return self.index

    def __str__(self) -> str:
        return f"headlong({self.method}, {self.path})"
