"""Ids of your own over a flat index, as ``faiss.IndexIDMap`` and ``faiss.IndexIDMap2``.

::

    index = IndexIDMap(IndexFlatIP(dim))
    index.add_with_ids(rows, ids)
    D, I = index.search(queries, k)          # I holds your ids
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from headlong.arrays import as_numpy
from headlong.dtypes import Floats, Ids
from headlong.errors import DtypeError, IdError, InputError, MalformedFileError, ShapeError, named
from headlong.integrations.faiss.index import IndexFlat
from headlong.integrations.faiss.selectors import (
    IDSelectorBatch,
    Params,
    SearchParameters,
    id_list,
    is_selector,
    members,
    selector_of,
)
from headlong.integrations.faiss.verbs import Given, Verbs, as_faiss, count, gathered, run_of


class IndexIDMap(Verbs):
    """Ids of your own over a flat index."""

    public = ("index", "id_map")

    def __init__(self, index: IndexFlat) -> None:
        if not isinstance(index, IndexFlat):
            raise as_faiss(DtypeError, f"the index is {named(index)}; expected a flat index of this module")
        if index.ntotal:
            raise as_faiss(InputError, f"the index has {index.ntotal} rows; expected an empty one: their ids are not known")
        self.index, self.id_map = index, np.empty(0, np.int64)

    @classmethod
    def over(cls, index: IndexFlat, ids: Ids) -> Self:
        """``index`` and the ids of the rows that are in it."""
        if len(ids) != index.ntotal:
            raise MalformedFileError(f"{len(ids):,} ids for {index.ntotal} rows; expected one for each: write the index again")
        found = cls.__new__(cls)
        found.index, found.id_map = index, np.array(ids, np.int64)
        return found

    ntotal, d, metric_type, is_trained = (
        property(attrgetter(f"index.{name}")) for name in ("ntotal", "d", "metric_type", "is_trained")
    )

    def train(self, x: ArrayLike) -> None:
        self.index.train(x)

    def add_with_ids(self, x: ArrayLike, ids: ArrayLike) -> None:
        """Rows ``[n, dim]`` and an id for each."""
        keys, rows = id_list(ids), as_numpy(x, "x")
        if rows.ndim != 2 or len(keys) != len(rows):
            raise as_faiss(ShapeError, f"{len(keys)} ids for x of shape {list(rows.shape)}; expected [n, dim] and one for each")
        self.index.add(rows)
        self.id_map = np.concatenate([self.id_map, keys])

    def add(self, x: ArrayLike) -> None:
        raise as_faiss(InputError, "add(x) would leave rows without ids; expected add_with_ids(x, ids)")

    def search(self, x: ArrayLike, k: int, *, params: Params = None, D: Given = None, I: Given = None) -> tuple[Floats, Ids]:  # noqa: E741, N803
        """As the index's, with your ids; ``params.sel`` selects by them, too."""
        distances, places = self.index.search(x, k, params=self._inner(params), D=D, I=I)
        places[:] = self._named(places)
        return distances, places

    def range_search(self, x: ArrayLike, thresh: float, *, params: Params = None) -> tuple[Any, Floats, Ids]:
        lims, distances, places = self.index.range_search(x, thresh, params=self._inner(params))
        return lims, distances, self._named(places)

    def range_batches(self, x: ArrayLike, thresh: float, *, params: Params = None) -> Iterator[tuple[slice, Any, Floats, Ids]]:
        """As the index's, with your ids."""
        for which, lims, distances, places in self.index.range_batches(x, thresh, params=self._inner(params)):
            yield which, lims, distances, self._named(places)

    def reconstruct_batch(self, key: ArrayLike, x: Given = None) -> Floats:
        """A row for each of the ids ``key [n]``."""
        keys, order = id_list(key), np.argsort(self.id_map, kind="stable")
        places = np.searchsorted(self.id_map, keys, sorter=order)
        found = order[np.minimum(places, len(order) - 1)] if len(order) else np.zeros(len(keys), np.int64)
        missing = self.id_map[found] != keys if len(order) else np.ones(len(keys), bool)
        if missing.any():
            raise as_faiss(IdError, f"no row has id {int(keys[missing][0])}")
        return self.index.reconstruct_batch(found, x)

    def reconstruct_n(self, n0: int = 0, ni: int = -1, x: Given = None) -> Floats:
        """The rows with the ids ``n0 ... n0 + ni - 1``; ni -1: as many as there are rows."""
        return self.reconstruct_batch(run_of(n0, ni, self.ntotal), x)

    def search_and_reconstruct(
        self, x: ArrayLike, k: int, *, params: Params = None, D: Given = None, I: Given = None, R: Given = None,  # noqa: E741, N803
    ) -> tuple[Floats, Ids, Floats]:  # fmt: skip
        """:meth:`search` and the rows ``R [n, k, dim]`` themselves, NaN where there is none."""
        distances, places, rows = self.index.search_and_reconstruct(x, k, params=self._inner(params), D=D, I=I, R=R)
        places[:] = self._named(places)
        return distances, places, rows

    def remove_ids(self, x: Any) -> int:
        """By ids or a selector; how many there were."""
        gone = members(x if is_selector(x) else IDSelectorBatch(x), self.id_map)
        self.id_map = self.id_map[~gone]
        return self.index.remove_ids(np.flatnonzero(gone))

    def merge_from(self, otherIndex: IndexIDMap, add_id: int = 0) -> None:  # noqa: N803  # FAISS's name
        """Move the other's rows behind these, their ids raised by ``add_id``; the other is empty then."""
        if otherIndex is self or not isinstance(otherIndex, IndexIDMap):
            raise as_faiss(InputError, f"{named(otherIndex)} was given; expected another IndexIDMap")
        moved = otherIndex.id_map + count(add_id, "add_id", -(2**63))
        self.index.merge_from(otherIndex.index)
        self.id_map, otherIndex.id_map = np.concatenate([self.id_map, moved]), np.empty(0, np.int64)

    def reset(self) -> None:
        self.index.reset()
        self.id_map = np.empty(0, np.int64)

    def _inner(self, params: Params) -> Any:
        sel = selector_of(params)
        return None if sel is None else SearchParameters(IDSelectorBatch(np.flatnonzero(members(sel, self.id_map))))

    def _named(self, places: Ids) -> Ids:
        return gathered(self.id_map, places)


class IndexIDMap2(IndexIDMap):
    """The same: rows are found by their ids in both."""
