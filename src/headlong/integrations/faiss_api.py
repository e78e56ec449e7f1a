"""FAISS's verbs over an engine: ``add`` rows, ``search`` for the k largest inner products, exactly.

::

    index = IndexFlatIP(dim)            # the name says what it answers: as faiss.IndexFlatIP does
    index.train(queries)                # optional: queries like the ones to come make it read less
    index.add(rows)                     # any number of times
    D, I = index.search(queries, k)     # D [n, k] float32 inner products falling, I [n, k] int64, -1 where k > ntotal

``metric="log_prob"`` answers ``D`` as log-probabilities under the softmax over all rows. The engine is compiled at the
first search after an ``add``. ``nprobe`` and friends do not exist: every id is proved.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headlong
from headlong.checks import whole
from headlong.errors import DtypeError, InputError, OptionError, ShapeError

Floats = NDArray[np.float32]
METRICS = ("inner_product", "log_prob")
ROWS = 1024
"""Queries answered at once."""


class IndexFlatIP:
    """Maximum inner product over ``dim`` coordinates; ``options`` go to :func:`headlong.compile`."""

    def __init__(self, dim: int, metric: str = "inner_product", **options: Any) -> None:
        if metric not in METRICS:
            raise OptionError(f"metric is {metric!r}; choose from {', '.join(METRICS)}")
        self.d, self.metric, self.options = whole(dim, "dim", 1, 2**31 - 1), metric, options
        self.is_trained = True
        self._parts: list[Floats] = []
        self._queries: Floats | None = None
        self._engine: Any = None

    @classmethod
    def over(cls, layer: headlong.Layer, metric: str = "inner_product", **options: Any) -> IndexFlatIP:
        """Over the rows of a layer that is there already (mapped from a file, say): nothing is copied."""
        if layer.bias is not None:
            raise InputError("the layer has a bias; expected rows alone: an inner product knows none")
        index = cls(layer.dim, metric, **options)
        index._parts = [layer.weight]
        return index

    @property
    def ntotal(self) -> int:
        """Rows added so far."""
        return sum(map(len, self._parts))

    @property
    def engine(self) -> Any:
        """The engine over everything added so far; compiled when it is first asked for."""
        if self._engine is None:
            if not self.ntotal:
                raise InputError("the index is empty; add(rows) first")
            rows = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
            self._parts = [rows]
            eps = math.inf if self.metric == "inner_product" else 0.01
            self._engine = headlong.compile(
                headlong.Layer(rows), **{"eps": eps, "delta": 0.0, "calibration": self._queries, **self.options}
            )
        return self._engine

    def train(self, x: Any) -> None:
        """Remember queries like the ones to come: they decide how little of a row has to be read."""
        queries = self._checked(x, "x")
        if not len(queries):
            raise ShapeError(f"x has shape {list(queries.shape)}; expected at least one query to learn from")
        self._queries, self._engine = queries.copy(), None

    def add(self, x: Any) -> None:
        """Append rows ``[n, dim]``; their ids go on from ``ntotal``."""
        rows = self._checked(x, "x")
        if len(rows):
            self._parts.append(rows.copy())
            self._engine = None

    def search(self, x: Any, k: int) -> tuple[Floats, NDArray[np.int64]]:
        """``(D, I) [n, k]``: the k largest of each query, largest first, equal ones by id."""
        queries = self._checked(x, "x")
        k = whole(k, "k", 1, 2**31 - 1)
        distances = np.full((len(queries), k), -np.inf, np.float32)
        ids = np.full((len(queries), k), -1, np.int64)
        most = min(k, self.ntotal)
        for start in range(0, len(queries) if most else 0, ROWS):
            part = slice(start, start + ROWS)
            top = self.engine.topk(queries[part], k=most)
            with np.errstate(over="ignore"):  # products beyond float32's range are infinite in D, and ranked all the same
                distances[part, :most] = top.logits if self.metric == "inner_product" else top.log_probs
            ids[part, :most] = top.ids
        return distances, ids

    def reconstruct(self, key: int) -> Floats:
        """Row ``key`` as it is stored."""
        if not 0 <= key < self.ntotal:
            raise ShapeError(f"key is {key}; expected 0 to {self.ntotal - 1}")
        for part in self._parts:
            if key < len(part):
                return np.asarray(part[key], np.float32)
            key -= len(part)
        raise AssertionError("ntotal counts the rows of all parts")

    def reset(self) -> None:
        """Forget all rows; what ``train`` saw is kept."""
        self._parts, self._engine = [], None

    def _checked(self, x: Any, name: str) -> Floats:
        if np.iscomplexobj(x):
            raise DtypeError(f"{name} is {np.asarray(x).dtype}; expected real numbers")
        with np.errstate(over="ignore"):  # infinite then, which the layer refuses with the row's number
            rows = np.ascontiguousarray(x, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.d:
            raise ShapeError(f"{name} has shape {list(rows.shape)}; expected [n, {self.d}]")
        return rows


class Headlong:
    """The module that ann-benchmarks loads (``fit``, ``query``, ``batch_query``, ``set_query_arguments``), for "dot".

    ``definition.yml``: ``module: headlong.integrations.faiss_api``, ``constructor: Headlong``, ``base_args: ["@metric"]``.
    """

    def __init__(self, metric: str = "dot", method: str = "auto") -> None:
        if metric not in ("dot", "angular"):
            raise OptionError(f"metric is {metric!r}; expected 'dot' or 'angular': this searches inner products")
        self.metric, self.method = metric, method
        self.index: IndexFlatIP | None = None
        self.results: NDArray[np.int64] = np.empty((0, 0), np.int64)

    def fit(self, rows: Any) -> None:
        """Index ``rows [n, dim]``; for "angular" their directions."""
        rows = np.asarray(rows, np.float32)
        if self.metric == "angular":
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
        self.index = IndexFlatIP(rows.shape[1], method=self.method)
        self.index.add(rows)
        repr(self.index.engine)  # building time is counted here, not in the first query

    def set_query_arguments(self, *_: Any) -> None:
        """There is nothing to set: every answer is exact."""

    def query(self, q: Any, n: int) -> NDArray[np.int64]:
        """The ids of the ``n`` largest inner products."""
        return np.asarray(self._fitted().search(np.asarray(q, np.float32)[None], n)[1][0])

    def batch_query(self, queries: Any, n: int) -> None:
        """Many at once; :meth:`get_batch_results` has the answers."""
        self.results = self._fitted().search(queries, n)[1]

    def _fitted(self) -> IndexFlatIP:
        if self.index is None:
            raise InputError("nothing is indexed; call fit(rows) first")
        return self.index

    def get_batch_results(self) -> NDArray[np.int64]:
        """``[queries, n]``, the ids of the last :meth:`batch_query`."""
        return self.results

    def get_memory_usage(self) -> float:
        """Kilobytes of rows and previews."""
        if self.index is None:
            return 0.0
        engine = self.index.engine
        return float((engine.layer.weight.nbytes + sum(level.codes.nbytes for level in engine.plan.levels)) / 1024)

    def done(self) -> None:
        """Free what was built."""
        self.index = None

    def __str__(self) -> str:
        return f"headlong({self.method})"
