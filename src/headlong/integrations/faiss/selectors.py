"""Which ids a search may answer: FAISS's selectors, by the same names; FAISS's own objects do as well.

::

    index.search(x, k, params=SearchParameters(sel=IDSelectorRange(0, 1000)))
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headlong.arrays import as_numpy
from headlong.dtypes import Ids
from headlong.errors import DtypeError, named
from headlong.integrations.faiss.verbs import count
from headlong.number_checks import flag

Mask = NDArray[np.bool_]


class IDSelector(ABC):
    """``member(ids) -> [n]`` bool."""

    @abstractmethod
    def member(self, ids: Ids) -> Mask:
        """Which of ``ids`` are selected."""

    def is_member(self, key: int) -> bool:
        return bool(self.member(np.array([key], np.int64))[0])


class IDSelectorAll(IDSelector):
    """Every id."""

    def member(self, ids: Ids) -> Mask:
        return np.ones(len(ids), bool)


class IDSelectorRange(IDSelector):
    """``imin <= id < imax``; ``assume_sorted`` is FAISS's hint for inverted lists, which nothing here has."""

    def __init__(self, imin: int, imax: int, assume_sorted: bool = False) -> None:
        self.imin, self.imax = (count(end, name, -(2**63)) for end, name in ((imin, "imin"), (imax, "imax")))
        self.assume_sorted = flag(assume_sorted, "assume_sorted")

    def member(self, ids: Ids) -> Mask:
        return (ids >= self.imin) & (ids < self.imax)


class IDSelectorBatch(IDSelector):
    """The ids of a list."""

    def __init__(self, ids: ArrayLike) -> None:
        self.ids = id_list(ids)

    def member(self, ids: Ids) -> Mask:
        return np.isin(ids, self.ids)


class IDSelectorArray(IDSelectorBatch):
    """The ids of a list, as FAISS searches them one by one."""


class IDSelectorBitmap(IDSelector):
    """Bit ``id % 8`` of byte ``id // 8``, the lowest bit first."""

    def __init__(self, bitmap: ArrayLike) -> None:
        array = as_numpy(bitmap, "bitmap")
        if array.dtype != np.uint8:
            raise DtypeError(f"bitmap is {array.dtype}; expected bytes, uint8")
        self.bits = np.unpackbits(array, bitorder="little").astype(bool)

    def member(self, ids: Ids) -> Mask:
        inside: Mask = (ids >= 0) & (ids < len(self.bits))
        inside[inside] = self.bits[ids[inside]]
        return inside


class IDSelectorNot(IDSelector):
    """The ids that another selector does not select."""

    def __init__(self, sel: IDSelector) -> None:
        self.sel = sel

    def member(self, ids: Ids) -> Mask:
        return ~members(self.sel, ids)


class _Both(IDSelector):
    join: ClassVar[np.ufunc]

    def __init__(self, lhs: IDSelector, rhs: IDSelector) -> None:
        self.lhs, self.rhs = lhs, rhs

    def member(self, ids: Ids) -> Mask:
        found: Mask = self.join(members(self.lhs, ids), members(self.rhs, ids))
        return found


class IDSelectorAnd(_Both):
    """In both."""

    join = np.logical_and


class IDSelectorOr(_Both):
    """In one of two."""

    join = np.logical_or


class IDSelectorXOr(_Both):
    """In one of two and not in the other."""

    join = np.logical_xor


class SearchParameters:
    """``sel``: a selector; None: all rows."""

    def __init__(self, sel: IDSelector | None = None) -> None:
        self.sel = sel


Params = SearchParameters | None
"""Or FAISS's own."""


def selector_of(params: Params) -> Any:
    """``params.sel`` of our parameters or of FAISS's; None: all rows."""
    if params is not None and not isinstance(params, (SearchParameters, *_of_faiss("SearchParameters"))):
        advice = ": pass SearchParameters(sel=selector)" if is_selector(params) else ""
        raise DtypeError(f"params is {named(params)}; expected SearchParameters{advice}")
    return getattr(params, "sel", None)


def is_selector(sel: object) -> TypeGuard[IDSelector]:
    """Whether it is one of ours or of FAISS's, by its type."""
    return isinstance(sel, (IDSelector, *_of_faiss("IDSelector")))


def _of_faiss(name: str) -> tuple[Any, ...]:
    """FAISS's class of that name, where somebody has imported FAISS."""
    faiss = sys.modules.get("faiss")
    return () if faiss is None else (getattr(faiss, name),)


def members(sel: IDSelector, ids: Ids) -> Mask:
    """Which ``ids`` a selector of ours or of FAISS's has."""
    if isinstance(sel, IDSelector):
        return sel.member(ids)
    if not is_selector(sel):
        raise DtypeError(f"a selector is {named(sel)}; expected an IDSelector")
    # FAISS's objects answer one id a call in Python; its own index asks them in C++ which rows to remove
    faiss = sys.modules["faiss"]
    index = faiss.IndexIDMap(faiss.IndexFlatL2(1))
    index.add_with_ids(np.zeros((len(ids), 1), np.float32), ids)
    index.remove_ids(sel)
    return ~np.isin(ids, faiss.vector_to_array(index.id_map))


def id_list(ids: ArrayLike) -> Ids:
    """Integer ids in a row."""
    array = as_numpy(ids, "ids")
    if array.size and array.dtype.kind not in "iu":
        raise DtypeError(f"ids are {array.dtype}; expected integers")
    return array.astype(np.int64).reshape(-1)
