"""The rows of an index as they were added, and what comes in: arrays and tensors of any kind that ``arrays`` reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from headlong.arrays import as_numpy
from headlong.dtypes import HIDDEN, Floats, Ids
from headlong.errors import DtypeError, IdError, NonFiniteError, ShapeError, named
from headlong.integrations.faiss_absent import Absent, as_faiss, count
from headlong.integrations.faiss_selectors import id_list


class Verbs(Absent, ABC):
    """What an index does in the same way whether rows have numbers or ids of your own."""

    @abstractmethod
    def search(self, x: Any, k: int, *, params: Any = None, D: Any = None, I: Any = None) -> tuple[Floats, Ids]:  # noqa: E741, N803
        """``(D, I) [n, k]``: the k best of each query, best first, equal ones by id; ``params.sel`` says among which rows."""

    @abstractmethod
    def reconstruct_batch(self, key: Any, x: Any = None) -> Floats:
        """A row for each of ``key [n]``."""

    def assign(self, x: Any, k: int = 1, labels: Any = None) -> Ids:
        """The ids alone."""
        return self.search(x, k, I=labels)[1]

    def reconstruct(self, key: int, x: Any = None) -> Floats:
        """The first row of that number, or with that id, as it is stored."""
        return into(x, self.reconstruct_batch([count(key, "key", -(2**63))])[0])


class Rows(Verbs):
    """``d`` coordinates a row, in ``_parts`` that are joined when they are asked for."""

    d: int
    metric: str
    _parts: list[Floats]

    @property
    def ntotal(self) -> int:
        """Rows added so far."""
        return sum(map(len, self._parts))

    def reconstruct_n(self, n0: int = 0, ni: int = -1, x: Any = None) -> Floats:
        """Rows ``n0 ... n0 + ni - 1``; ni -1: to the end."""
        return into(x, self.reconstruct_batch(run_of(n0, ni, self.ntotal - count(n0, "n0", 0))))

    def reconstruct_batch(self, key: Any, x: Any = None) -> Floats:
        keys = id_list(key)
        if keys.size and not 0 <= keys.min() <= keys.max() < self.ntotal:
            raise as_faiss(IdError, f"key holds {keys.min()}..{keys.max()}; expected 0 to {self.ntotal - 1}")
        rows = np.asarray(self._rows()[keys], np.float32) if keys.size else np.empty((0, self.d), np.float32)
        return into(x, rows)

    def _rows(self) -> Floats:
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0] if self._parts else np.empty((0, self.d), np.float32)

    def _checked(self, x: Any, name: str) -> Floats:
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


def run_of(first: Any, some: Any, every: int) -> Ids:
    """``first ... first + some - 1``; -1: ``every`` one of them."""
    start, length = count(first, "n0", 0), count(some, "ni", -1)
    return np.arange(start, start + (every if length == -1 else length))


def gathered(ids: Ids, places: Ids) -> Ids:
    """``ids[places]``, -1 where there is no place."""
    return np.where(places < 0, -1, np.append(ids, -1)[places])


def written_to(given: Any, shape: tuple[int, ...], dtype: Any, name: str) -> Any:
    """The caller's array for an answer, or a new one."""
    if given is None:
        return np.empty(shape, dtype)
    if not isinstance(given, np.ndarray) or given.shape != shape or given.dtype != dtype or not given.flags.writeable:
        found = named(given)
        if isinstance(given, np.ndarray):
            found = f"{given.dtype} of shape {list(given.shape)}{'' if given.flags.writeable else ', read-only'}"
        raise as_faiss(ShapeError, f"{name} is {found}; expected an array of {np.dtype(dtype)} {list(shape)} to write to")
    return given


def into(given: Any, rows: Floats) -> Floats:
    """``rows``, in the caller's array ``x`` where there is one."""
    if given is None:
        return rows
    found: Floats = written_to(given, rows.shape, np.float32, "x")
    found[:] = rows
    return found
