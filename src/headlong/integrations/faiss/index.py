"""FAISS's verbs over an engine: ``add`` rows, ``search`` for the k nearest, exactly.

::

    index = IndexFlatIP(dim)            # the names say what they answer: as faiss.IndexFlatIP, faiss.IndexFlatL2 do
    index.train(queries)                # optional: queries like the ones to come make it read less
    index.add(rows)                     # any number of times
    D, I = index.search(queries, k)     # D [n, k] float32, I [n, k] int64, best first; -1 where k > ntotal

    inner_product   D = <x, y>, falling           log_prob   its log-probability under the softmax over all rows
    l2              D = |x - y|^2, rising         cosine     the product of directions

The engine is compiled at the first search, and again once a sixteenth of the rows came or went. ``nprobe`` and friends do
not exist: every id is proved. An l2 search reads ``<x, y> - |y|^2 / 2``, whose second part is a bias in float32; the k are
told apart by float64 distances, and equal ones are in the order of ids. FAISS renumbers: rows behind one that is removed move
up. The engine's ids stay, so ``LazyEngine.names`` has the id of the row at each place, ascending.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

import headlong
from headlong.arrays import as_numpy
from headlong.dtypes import HIDDEN, Floats, Ids
from headlong.errors import DtypeError, IdError, InputError, NonFiniteError, OptionError, ShapeError
from headlong.integrations.faiss.distances import distances, distances_at, nearest_of_all, pieces, products, told_apart
from headlong.integrations.faiss.selectors import (
    IDSelectorBatch,
    Params,
    id_list,
    is_selector,
    members,
    selector_of,
)
from headlong.integrations.faiss.verbs import Given, Verbs, as_faiss, count, into, run_of, threshold, written_to

METRIC_INNER_PRODUCT, METRIC_L2 = 0, 1
METRICS = ("inner_product", "l2", "cosine", "log_prob")
NUMBERS = {METRIC_INNER_PRODUCT: "inner_product", METRIC_L2: "l2"}
ROWS, SPARE, MORE = 1024, 8, 64
"""Queries answered at once; rows fetched beyond k, so that a bias in float32 cannot hide one of the k, at first and then."""
LONGEST = float(np.finfo(np.float32).max)
"""The largest squared length of a row, which float32 has to hold."""
FIRST, SOME, BEST = 4, 64, 256
"""Queries of a range search that are answered at once, at first and then, and rows that are tried before all of them..."""
MANY = 1 << 16
"""...where there are more than these: all products of fewer take no longer than that trial."""


def ranges(found: list[tuple[Floats, Ids]]) -> tuple[Any, Floats, Ids]:
    """``(lims, D, I)``: parts behind one another, and where each starts."""
    lims = np.concatenate([[0], np.cumsum([len(ids) for _, ids in found])]).astype(np.uint64)
    empty: tuple[Floats, Ids] = (np.empty(0, np.float32), np.empty(0, np.int64))
    distances, ids = (np.concatenate([part[place] for part in (*found, empty)]) for place in (0, 1))
    return lims, distances, ids


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

    def places(self, ids: ArrayLike) -> Ids:
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


class IndexFlat(Verbs):
    """``dim`` coordinates; ``options`` go to :func:`headlong.compile`. ``metric`` by name, or by FAISS's number: as there, l2
    where none is given."""

    public = ("d", "metric", "options", "is_trained", "verbose")

    def __init__(self, dim: int, metric: str | int = METRIC_L2, **options: Any) -> None:
        name = NUMBERS.get(metric, metric) if isinstance(metric, int) else metric
        if not isinstance(name, str) or name not in METRICS:
            raise as_faiss(OptionError, f"metric is {metric!r}; choose from {', '.join(METRICS)}")
        self.d, self.metric, self.options = count(dim, "dim"), name, options
        self.is_trained, self.verbose = True, False
        self._parts: list[Floats] = []  # joined when they are asked for
        self._queries: Floats | None = None
        self._reader = LazyEngine(name, options)

    @classmethod
    def of(cls, arrays: dict[str, Any], metric: str, **options: Any) -> Self:
        """From what :meth:`arrays` answered."""
        index = cls.__new__(cls)
        IndexFlat.__init__(index, arrays["rows"].shape[1], metric, **options)
        index._check_lengths(arrays["rows"])  # noqa: SLF001
        index._parts, index._queries = [arrays["rows"]], arrays.get("queries")  # noqa: SLF001
        return index

    def arrays(self) -> dict[str, Any]:
        """``rows``, and ``queries`` where there was training."""
        return {"rows": self._rows()} | ({} if self._queries is None else {"queries": self._queries})

    @property
    def metric_type(self) -> int:
        """FAISS's number of the metric."""
        return METRIC_L2 if self.metric == "l2" else METRIC_INNER_PRODUCT

    @property
    def engine(self) -> Any:
        """The engine over everything added so far; compiled when it is first asked for."""
        return self._reader.engine(self._rows(), self._queries)

    def train(self, x: ArrayLike) -> None:
        """Remember queries like the ones to come: they decide how little of a row has to be read."""
        queries = self._checked(x, "x")
        if not len(queries):
            raise as_faiss(ShapeError, f"x has shape {list(queries.shape)}; expected at least one query to learn from")
        self._queries = queries.copy()
        self._reader.forget()

    def add(self, x: ArrayLike) -> None:
        """Append rows ``[n, dim]``; their ids go on from ``ntotal``."""
        rows = self._checked(x, "x")
        self._check_lengths(rows)
        if len(rows):
            self._parts.append(rows.copy())
            self._reader.added(rows, self._parts[0].dtype)

    def _check_lengths(self, rows: Floats) -> None:
        """NonFiniteError where a distance would be one that float32 cannot hold, whatever the query."""
        for some in pieces(len(rows) if self.metric == "l2" else 0, self.d):
            squares = np.square(rows[some].astype(np.float64)).sum(1)
            if squares.max() > LONGEST:
                at = int(squares.argmax())
                length = f"{math.sqrt(squares[at]):.3g}"
                said = f"row {some.start + at} of x has the length {length}, whose square is beyond float32; rescale the rows"
                raise as_faiss(NonFiniteError, said)

    def add_with_ids(self, x: ArrayLike, ids: ArrayLike) -> None:
        """As in FAISS, a flat index numbers its own rows."""
        raise as_faiss(
            InputError, "a flat index numbers its rows 0, 1, ...; expected add(x), or IndexIDMap(index).add_with_ids(x, ids)"
        )

    def search(self, x: ArrayLike, k: int, *, params: Params = None, D: Given = None, I: Given = None) -> tuple[Floats, Ids]:  # noqa: E741, N803
        queries, k = self._checked(x, "x"), count(k, "k")
        distances, ids = written_to(D, (len(queries), k), np.float32, "D"), written_to(I, (len(queries), k), np.int64, "I")
        distances[:], ids[:] = self._worst, -1
        allowed = self._allowed(params)
        most = min(k, self.ntotal if allowed is None else len(allowed))
        for start in range(0, len(queries) if most else 0, ROWS):
            part = slice(start, start + ROWS)
            distances[part, :most], ids[part, :most] = self._some(queries[part], most, allowed)
        return distances, ids

    def range_search(self, x: ArrayLike, thresh: float, *, params: Params = None) -> tuple[Any, Floats, Ids]:
        """``(lims, D, I)``: all rows nearer than ``thresh``, which is D below it for l2 and above it elsewhere.

        Query i has ``D[lims[i]:lims[i + 1]]``, in the order of ids.
        """
        queries, thresh, allowed = self._checked(x, "x"), threshold(thresh, "thresh"), self._allowed(params)
        return ranges([one for block in self._blocks(queries, thresh, allowed) for one in block])

    def range_batches(self, x: ArrayLike, thresh: float, *, params: Params = None) -> Iterator[tuple[slice, Any, Floats, Ids]]:
        """:meth:`range_search` of some queries after the other: ``(which, lims, D, I)``, where ``which`` are queries of ``x``.

        What is held is what some tens of queries find, so that ranges with many rows need not fit into memory at once.
        """
        queries, thresh, allowed = self._checked(x, "x"), threshold(thresh, "thresh"), self._allowed(params)
        start = 0
        for block in self._blocks(queries, thresh, allowed):
            yield slice(start, start + len(block)), *ranges(block)
            start += len(block)

    def _blocks(self, queries: Floats, thresh: float, allowed: Ids | None) -> Iterator[list[tuple[Floats, Ids]]]:
        """What each query finds, some queries at a time."""
        few = (self.ntotal if allowed is None else len(allowed)) <= MANY
        every, done = few, 0  # or where the queries before had more near rows than are tried: the next will, too
        while done < len(queries):
            some = queries[done : done + (SOME if done else FIRST)]
            near = self._of_every(some, thresh, allowed) if every else self._nearer(some, thresh, allowed)
            every = few or 2 * sum(len(ids) >= BEST for _, ids in near) > len(near)
            done += len(near)
            yield near

    def remove_ids(self, x: Any) -> int:
        """Take rows out, by ids or by a selector; the rows behind them move up. How many there were."""
        gone = members(x if is_selector(x) else IDSelectorBatch(x), np.arange(self.ntotal))
        if gone.any():
            kept = self._rows()[~gone]
            self._parts = [kept] if len(kept) else []
            self._reader.removed(gone)
        return int(gone.sum())

    def merge_from(self, otherIndex: IndexFlat, add_id: int = 0) -> None:  # noqa: N803  # FAISS's name
        """Move the other's rows behind these; the other is empty then."""
        if otherIndex is self or not isinstance(otherIndex, IndexFlat) or add_id:
            raise as_faiss(InputError, "expected another flat index and add_id 0: ids go on from ntotal")
        if (otherIndex.d, otherIndex.metric) != (self.d, self.metric):
            other = f"d={otherIndex.d}, metric={otherIndex.metric!r}"
            raise as_faiss(ShapeError, f"the other has {other}; expected d={self.d}, metric={self.metric!r}")
        self._parts = [*self._parts, *otherIndex._parts]
        self._reader.forget()
        otherIndex.reset()

    def search_and_reconstruct(
        self, x: ArrayLike, k: int, *, params: Params = None, D: Given = None, I: Given = None, R: Given = None,  # noqa: E741, N803
    ) -> tuple[Floats, Ids, Floats]:  # fmt: skip
        """:meth:`search` and the rows ``R [n, k, dim]`` themselves, NaN where there is none."""
        distances, ids = self.search(x, k, params=params, D=D, I=I)
        rows = written_to(R, (*ids.shape, self.d), np.float32, "R")
        rows[:] = np.nan
        rows[ids >= 0] = self.reconstruct_batch(ids[ids >= 0])
        return distances, ids, rows

    def reset(self) -> None:
        """Forget all rows; what ``train`` saw is kept."""
        self._parts = []
        self._reader.forget()

    @property
    def _worst(self) -> float:
        return math.inf if self.metric == "l2" else -math.inf

    def _allowed(self, params: Params) -> Ids | None:
        sel = selector_of(params)
        return None if sel is None else np.flatnonzero(members(sel, np.arange(self.ntotal)))

    def _some(self, queries: Floats, k: int, allowed: Ids | None) -> tuple[Floats, Ids]:
        if self.metric == "l2":
            return self._nearest(queries, k, allowed)
        top, ids = self._top(queries, k, allowed)
        with np.errstate(over="ignore"):  # products beyond float32's range are infinite in D, and ranked all the same
            values = np.asarray(top.log_probs if self.metric == "log_prob" else top.logits).astype(np.float32)
        return values, ids

    def _top(self, queries: Floats, k: int, allowed: Ids | None) -> tuple[Any, Ids]:
        """The engine's answer, and the places of its ids among the rows."""
        engine = self.engine  # which makes the names
        top = engine.topk(queries, k=k, allowed=None if allowed is None else self._reader.names[allowed])
        return top, self._reader.places(top.ids)

    def _nearest(self, queries: Floats, k: int, allowed: Ids | None) -> tuple[Floats, Ids]:
        """The k nearest by float64 distances: some more by the rounded biases, measured again; of all rows, where too many are
        as near as the k-th."""
        most, rows, wide = self.ntotal if allowed is None else len(allowed), self._rows(), queries.astype(np.float64)
        found, ids, open_ = np.empty((len(queries), k)), np.empty((len(queries), k), np.int64), np.arange(len(queries))
        for spare in (SPARE, MORE):
            x = wide[open_]
            top, places = self._top(queries[open_], min(k + spare, most), allowed)
            exact = told_apart(x, rows, places, distances_at(x, rows, places))
            order = np.lexsort((places, exact), axis=1)[:, :k]
            found[open_], ids[open_] = (np.take_along_axis(part, order, axis=1) for part in (exact, places))
            # What was not fetched has a logit below the last one, and its distance that much and the bias's rounding above:
            # that of rows which could be as near, and none longer than the query and that distance together is.
            own, kth = np.square(x).sum(1), found[open_, -1]
            heaviest = np.minimum(self._reader.heaviest, (np.sqrt(own) + np.sqrt(kth)) ** 2)
            beyond = own - 2 * (np.asarray(top.logits)[:, -1] + heaviest * 2.0**-23)
            open_ = open_[(places.shape[1] < most) & ~(kth * (1 + 1e-12) < beyond)]
            if not len(open_):
                break
        among = np.arange(self.ntotal) if allowed is None else allowed
        for row in open_:
            found[row], ids[row] = nearest_of_all(wide[row], rows, among, k)
        with np.errstate(over="ignore"):
            return found.astype(np.float32), ids

    def _nearer(self, queries: Floats, thresh: float, allowed: Ids | None) -> list[tuple[Floats, Ids]]:
        """What is nearer to each query, by id as FAISS's: from its best rows, or from all where those are all near."""
        most = self.ntotal if allowed is None else len(allowed)
        if not most:
            return [(np.empty(0, np.float32), np.empty(0, np.int64))] * len(queries)
        best, ids = self._some(queries, min(BEST, most), allowed)
        near = self._is_near(best, thresh)
        order = np.argsort(ids, axis=1)
        best, ids = np.take_along_axis(best, order, axis=1), np.take_along_axis(ids, order, axis=1)
        inside = np.take_along_axis(near, order, axis=1)
        found = [(best[row, inside[row]], ids[row, inside[row]]) for row in range(len(queries))]
        at = np.flatnonzero(near[:, -1]) if most > BEST else np.empty(0, np.int64)
        for row, values in zip(at, self._of_every(queries[at], thresh, allowed), strict=True):
            found[row] = values
        return found

    def _of_every(self, queries: Floats, thresh: float, allowed: Ids | None) -> list[tuple[Floats, Ids]]:
        """As :meth:`_nearer`, from all products: of some rows at a time, of which the near ones are kept."""
        places = np.arange(self.ntotal) if allowed is None else allowed
        wide, shift = queries.astype(np.float64), np.zeros((len(queries), 1))  # what a softmax takes off
        if self.metric == "log_prob" and len(queries):
            best, ids = self._some(queries, 1, allowed)
            shift = best - np.einsum("nd,nd->n", wide, self._rows()[ids[:, 0]].astype(np.float64))[:, None]
        found: list[list[tuple[Floats, Ids]]] = [[] for _ in queries]
        for part in pieces(len(places), max(self.d, len(queries))):
            some = places[part]
            rows = self._rows()[some[0] : some[-1] + 1] if allowed is None else self._rows()[some]
            exact = distances(wide, rows) if self.metric == "l2" else products(wide, rows) + shift
            with np.errstate(over="ignore"):
                values = exact.astype(np.float32)
            near = self._is_near(values, thresh)
            for one, value, inside in zip(found, values, near, strict=True):
                if inside.any():
                    one.append((value[inside], some[inside]))
        return [ranges(found.pop(0))[1:] for _ in queries]  # parts go as they are put together

    def _is_near(self, values: Floats, thresh: float) -> NDArray[np.bool_]:
        return values < thresh if self.metric == "l2" else values > thresh

    @property
    def ntotal(self) -> int:
        """Rows added so far."""
        return sum(map(len, self._parts))

    def reconstruct_n(self, n0: int = 0, ni: int = -1, x: Given = None) -> Floats:
        """Rows ``n0 ... n0 + ni - 1``; ni -1: to the end."""
        return into(x, self.reconstruct_batch(run_of(n0, ni, self.ntotal - count(n0, "n0", 0))))

    def reconstruct_batch(self, key: ArrayLike, x: Given = None) -> Floats:
        keys = id_list(key)
        if keys.size and not 0 <= keys.min() <= keys.max() < self.ntotal:
            raise as_faiss(IdError, f"key holds {keys.min()}..{keys.max()}; expected 0 to {self.ntotal - 1}")
        rows = np.asarray(self._rows()[keys], np.float32) if keys.size else np.empty((0, self.d), np.float32)
        return into(x, rows)

    def _rows(self) -> Floats:
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0] if self._parts else np.empty((0, self.d), np.float32)

    def _checked(self, x: ArrayLike, name: str) -> Floats:
        given = as_numpy(x, name)
        if given.dtype.kind not in "fiub" and given.dtype not in HIDDEN:
            raise as_faiss(DtypeError, f"{name} is {given.dtype}; expected real numbers")
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(given, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.d:
            raise as_faiss(ShapeError, f"{name} has shape {list(rows.shape)}; expected [n, {self.d}]")
        finite = np.isfinite(rows).all(1)
        if not finite.all():
            raise as_faiss(NonFiniteError, f"row {int(np.argmin(finite))} of {name} holds NaN or infinity; drop or repair it")
        if self.metric == "cosine":
            rows = rows / np.maximum(np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True), 1e-30).astype(np.float32)
        return rows

    def __getstate__(self) -> dict[str, Any]:
        """An engine is made again from the rows rather than stored."""
        return {**self.__dict__, "_reader": LazyEngine(self.metric, self.options)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(d={self.d}, metric={self.metric!r}, ntotal={self.ntotal})"


class IndexFlatIP(IndexFlat):
    """The largest inner products, or ``metric="log_prob"``, ``"cosine"``."""

    def __init__(self, dim: int, metric: str | int = "inner_product", **options: Any) -> None:
        super().__init__(dim, metric, **options)

    @classmethod
    def over(cls, layer: headlong.Layer, metric: str = "inner_product", **options: Any) -> IndexFlatIP:
        """Over the rows of a layer that is there already (mapped from a file, say): nothing is copied."""
        if layer.bias is not None:
            raise as_faiss(InputError, "the layer has a bias; expected rows alone: an inner product has no bias")
        index = cls(layer.dim, metric, **options)
        index._parts = [layer.weight]
        return index


class IndexFlatL2(IndexFlat):
    """The smallest squared distances."""

    def __init__(self, dim: int, **options: Any) -> None:
        super().__init__(dim, "l2", **options)
