"""FAISS's names over headlong's engines: indexes, ids of your own, selectors, files.

::

    from headlong.integrations.faiss import IndexFlatIP, IndexFlatL2, IndexIDMap, SearchParameters, IDSelectorRange

Flat indexes are in ``index.py``, ids of your own in ``ids.py``, selectors in ``selectors.py``. What is not
here is refused by name (``verbs.py``).
"""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np

from headlong.errors import AbsentError, DtypeError, MalformedFileError, StoreError, an, named
from headlong.integrations.faiss.ids import IndexIDMap as IndexIDMap
from headlong.integrations.faiss.ids import IndexIDMap2 as IndexIDMap2
from headlong.integrations.faiss.index import METRIC_INNER_PRODUCT as METRIC_INNER_PRODUCT
from headlong.integrations.faiss.index import METRIC_L2 as METRIC_L2
from headlong.integrations.faiss.index import IndexFlat as IndexFlat
from headlong.integrations.faiss.index import IndexFlatIP as IndexFlatIP
from headlong.integrations.faiss.index import IndexFlatL2 as IndexFlatL2
from headlong.integrations.faiss.selectors import IDSelectorAll as IDSelectorAll
from headlong.integrations.faiss.selectors import IDSelectorAnd as IDSelectorAnd
from headlong.integrations.faiss.selectors import IDSelectorArray as IDSelectorArray
from headlong.integrations.faiss.selectors import IDSelectorBatch as IDSelectorBatch
from headlong.integrations.faiss.selectors import IDSelectorBitmap as IDSelectorBitmap
from headlong.integrations.faiss.selectors import IDSelectorNot as IDSelectorNot
from headlong.integrations.faiss.selectors import IDSelectorOr as IDSelectorOr
from headlong.integrations.faiss.selectors import IDSelectorRange as IDSelectorRange
from headlong.integrations.faiss.selectors import IDSelectorXOr as IDSelectorXOr
from headlong.integrations.faiss.selectors import SearchParameters as SearchParameters
from headlong.integrations.faiss.verbs import as_faiss
from headlong.store import open_file, write_file

FORMAT = "headlong index"


def write_index(index: IndexFlat | IndexIDMap, path: str | os.PathLike[str]) -> None:
    """The rows, the metric, what ``train`` saw and, of an ``IndexIDMap``, your ids, in one safetensors file."""
    rows = _flat(index)
    ids = {"id_map": index.id_map} if isinstance(index, IndexIDMap) else {}
    write_file(path, {**rows.arrays(), **ids}, {"format": FORMAT, "metric": rows.metric, "kind": type(rows).__name__})


def read_index(path: str | os.PathLike[str], **options: Any) -> IndexFlat | IndexIDMap:
    """What :func:`write_index` wrote; ``options`` go to :func:`headlong.compile`."""
    try:
        file = open_file(path)
    except StoreError as error:
        raise as_faiss(type(error), str(error)) from error
    kinds = {kind.__name__: kind for kind in (IndexFlat, IndexFlatIP, IndexFlatL2)}
    if file.metadata.get("format") != FORMAT or file.metadata.get("kind") not in kinds:
        raise as_faiss(MalformedFileError, f"{os.fspath(path)} holds no index; expected a file of write_index")
    arrays = {name: file.read(name) for name in file.tensors}
    ids = arrays.pop("id_map", None)
    rows = kinds[file.metadata["kind"]].of(arrays, file.metadata["metric"], **options)
    return rows if ids is None else IndexIDMap.over(rows, ids)


def clone_index(index: IndexFlat | IndexIDMap) -> IndexFlat | IndexIDMap:
    """An index of its own over the same rows."""
    _flat(index)
    return copy.deepcopy(index)


def _flat(index: Any) -> IndexFlat:
    """The index with the rows."""
    rows = index.index if isinstance(index, IndexIDMap) else index
    if not isinstance(rows, IndexFlat):
        raise as_faiss(DtypeError, f"the index is {named(rows)}; expected one of this module")
    return rows


FACTORY = {"Flat": IndexFlat, "IDMap,Flat": IndexIDMap, "IDMap2,Flat": IndexIDMap2}


def index_factory(d: int, description: str, metric: int = METRIC_L2, **options: Any) -> IndexFlat | IndexIDMap:
    """``"Flat"``, ``"IDMap,Flat"`` or ``"IDMap2,Flat"``; ``options`` go to :func:`headlong.compile`."""
    if not isinstance(description, str) or description not in FACTORY:
        raise AbsentError(
            f"index_factory(d, {description!r}) is not here; it makes {', '.join(FACTORY)}: every answer is exact"
        )
    flat = (
        (IndexFlatIP if metric == METRIC_INNER_PRODUCT else IndexFlatL2)(d, **options)
        if isinstance(metric, int) and metric in (0, 1)
        else IndexFlat(d, metric)
    )
    return flat if description == "Flat" else FACTORY[description](flat)


def normalize_L2(x: Any) -> None:  # noqa: N802  # FAISS's name
    """Divide each row of ``x [n, dim]`` float32 by its length, in place; rows of zeros stay."""
    if not isinstance(x, np.ndarray) or x.dtype != np.float32 or x.ndim != 2 or not x.flags.writeable:
        closed = isinstance(x, np.ndarray) and not x.flags.writeable
        found = "read-only array" if closed else getattr(x, "dtype", type(x).__name__)
        raise as_faiss(DtypeError, f"x is {an(str(found))}; expected a float32 array [n, dim] to change in place")
    length = np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    x /= np.where(length > 0, length, 1.0).astype(np.float32)


def __getattr__(name: str) -> Any:
    if name[:1].isupper():  # FAISS's classes and constants
        raise AbsentError(f"FAISS's {name} is not here; flat indexes are, with ids of your own: index_factory(d, 'IDMap,Flat')")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
