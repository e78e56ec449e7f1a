"""FAISS's names over headlong's engines: indexes, ids of your own, selectors, files.

::

    from headlong.integrations.faiss_api import IndexFlatIP, IndexFlatL2, IndexIDMap, SearchParameters, IDSelectorRange

Indexes are in ``faiss_index.py``, selectors in ``faiss_selectors.py``.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np

from headlong.errors import IdError, InputError, MalformedFileError, ShapeError
from headlong.integrations.faiss_index import METRIC_INNER_PRODUCT as METRIC_INNER_PRODUCT
from headlong.integrations.faiss_index import METRIC_L2 as METRIC_L2
from headlong.integrations.faiss_index import Floats, Ids
from headlong.integrations.faiss_index import IndexFlat as IndexFlat
from headlong.integrations.faiss_index import IndexFlatIP as IndexFlatIP
from headlong.integrations.faiss_index import IndexFlatL2 as IndexFlatL2
from headlong.integrations.faiss_selectors import IDSelectorAll as IDSelectorAll
from headlong.integrations.faiss_selectors import IDSelectorAnd as IDSelectorAnd
from headlong.integrations.faiss_selectors import IDSelectorArray as IDSelectorArray
from headlong.integrations.faiss_selectors import IDSelectorBatch as IDSelectorBatch
from headlong.integrations.faiss_selectors import IDSelectorBitmap as IDSelectorBitmap
from headlong.integrations.faiss_selectors import IDSelectorNot as IDSelectorNot
from headlong.integrations.faiss_selectors import IDSelectorOr as IDSelectorOr
from headlong.integrations.faiss_selectors import IDSelectorRange as IDSelectorRange
from headlong.integrations.faiss_selectors import SearchParameters as SearchParameters
from headlong.integrations.faiss_selectors import id_list, members
from headlong.store import open_file, write_file

FORMAT = "headlong index"


class IndexIDMap:
    """Ids of your own over a flat index."""

    def __init__(self, index: IndexFlat) -> None:
        if index.ntotal:
            raise InputError(f"the index has {index.ntotal} rows; expected an empty one: their ids are not known")
        self.index, self.id_map = index, np.empty(0, np.int64)

    @classmethod
    def over(cls, index: IndexFlat, ids: Ids) -> IndexIDMap:
        """``index`` and the ids of the rows that are in it."""
        if len(ids) != index.ntotal:
            raise MalformedFileError(f"{len(ids)} ids for {index.ntotal} rows; expected one for each: write the index again")
        found = cls.__new__(cls)
        found.index, found.id_map = index, np.array(ids, np.int64)
        return found

    @property
    def ntotal(self) -> int:
        return self.index.ntotal

    @property
    def d(self) -> int:
        return self.index.d

    def train(self, x: Any) -> None:
        self.index.train(x)

    def add_with_ids(self, x: Any, ids: Any) -> None:
        """Rows ``[n, dim]`` and an id for each."""
        keys = id_list(ids)
        if len(keys) != len(x):
            raise ShapeError(f"{len(keys)} ids for {len(x)} rows; expected one for each")
        self.index.add(x)
        self.id_map = np.concatenate([self.id_map, keys])

    def add(self, x: Any) -> None:
        raise InputError("add(x) would leave rows without ids; expected add_with_ids(x, ids)")

    def search(self, x: Any, k: int, *, params: Any = None) -> tuple[Floats, Ids]:
        """As the index's, with your ids; ``params.sel`` selects by them, too."""
        distances, places = self.index.search(x, k, params=self._inner(params))
        return distances, self._named(places)

    def range_search(self, x: Any, thresh: float, *, params: Any = None) -> tuple[Any, Floats, Ids]:
        lims, distances, places = self.index.range_search(x, thresh, params=self._inner(params))
        return lims, distances, self._named(places)

    def reconstruct(self, key: int) -> Floats:
        (places,) = np.nonzero(self.id_map == key)
        if not len(places):
            raise IdError(f"no row has id {key}")
        return self.index.reconstruct(int(places[0]))

    def remove_ids(self, x: Any) -> int:
        """By ids or a selector; how many there were."""
        sel = x if hasattr(x, "is_member") else IDSelectorBatch(x)
        gone = members(sel, self.id_map)
        self.id_map = self.id_map[~gone]
        return self.index.remove_ids(np.flatnonzero(gone))

    def reset(self) -> None:
        self.index.reset()
        self.id_map = np.empty(0, np.int64)

    def _inner(self, params: Any) -> Any:
        sel = getattr(params, "sel", None)
        return None if sel is None else SearchParameters(IDSelectorBatch(np.flatnonzero(members(sel, self.id_map))))

    def _named(self, places: Ids) -> Ids:
        return np.where(places < 0, -1, np.append(self.id_map, -1)[places])


def write_index(index: IndexFlat | IndexIDMap, path: str | os.PathLike[str]) -> None:
    """The rows, the metric, what ``train`` saw and, of an ``IndexIDMap``, your ids, in one safetensors file."""
    rows = index.index if isinstance(index, IndexIDMap) else index
    named = {"id_map": index.id_map} if isinstance(index, IndexIDMap) else {}
    write_file(path, {**rows.arrays(), **named}, {"format": FORMAT, "metric": rows.metric, "kind": type(rows).__name__})


def read_index(path: str | os.PathLike[str], **options: Any) -> IndexFlat | IndexIDMap:
    """What :func:`write_index` wrote; ``options`` go to :func:`headlong.compile`."""
    file = open_file(path)
    kinds = {kind.__name__: kind for kind in (IndexFlat, IndexFlatIP, IndexFlatL2)}
    if file.metadata.get("format") != FORMAT or file.metadata.get("kind") not in kinds:
        raise MalformedFileError(f"{os.fspath(path)} holds no index; expected a file of write_index")
    arrays = {name: file.read(name) for name in file.tensors}
    ids = arrays.pop("id_map", None)
    rows = kinds[file.metadata["kind"]].of(arrays, file.metadata["metric"], **options)
    return rows if ids is None else IndexIDMap.over(rows, ids)


def clone_index(index: IndexFlat) -> IndexFlat:
    """An index of its own over the same rows."""
    return copy.deepcopy(index)
