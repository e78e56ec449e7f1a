"""Which classes a call may answer: ``allowed`` and ``exclude`` as one byte per class.

    there_i = (allowed is None or i in allowed) and (exclude is None or i not in exclude)

Both are class ids: ``[m]`` for the whole call, or one row of ids per query (``[batch, m]``, padded with -1, or a list of
lists or sets), in any order, doubles welcome; or a set, booleans ``[vocab]`` or ``[batch, vocab]``, the same as uint8 bits that
``numpy.packbits`` packed along the classes, or SciPy's sparse rows ``[batch, vocab]``, whose stored entries are the classes.
A plain array of int64 or int32 is marked and checked by the native module in one pass; what that does not take or refuses is
gone through here once more, which says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.arrays import as_numpy, checked_ids, kind_of, shape_of
from headlong.errors import InputError, ShapeError
from headlong.question import Mask

Marks = NDArray[np.uint8]


def class_mask(allowed: Any, exclude: Any, batch: int, vocab: int) -> Mask:
    """``[1, vocab]`` or ``[batch, vocab]`` uint8, 1 where a class may be answered; None where every class may."""
    marks = [
        _marked(ids, batch, vocab, name, at)
        for ids, name, at in ((exclude, "exclude", 0), (allowed, "allowed", 1))
        if ids is not None
    ]
    return None if not marks else marks[0] if len(marks) == 1 else np.ascontiguousarray(marks[0] & marks[1])


def all_left(mask: Marks) -> list[int]:
    """How many classes each row leaves."""
    return [int(np.count_nonzero(row)) for row in mask.view(np.bool_)]


def classes_of(row: Marks) -> NDArray[np.int64]:
    """The ids that a row of a mask leaves, ascending."""
    ids: NDArray[np.int64] = np.flatnonzero(row.view(np.bool_))  # of bytes, NumPy counts and lists them ten times slower
    return ids


def check_some_left(mask: Mask) -> None:
    """A sample needs a class in every row."""
    if mask is not None and not (left := mask.view(np.bool_).any(axis=1)).all():
        raise InputError(f"no class is left to sample in row {int(np.argmin(left))} of allowed/exclude; leave it at least one")


def _marked(ids: Any, batch: int, vocab: int, name: str, at: int) -> Marks:
    """``at`` (0 or 1) at the given ids, else the other: ``[1, vocab]`` for ids of the whole call, ``[batch, vocab]`` for one
    row of ids per query."""
    ids = _sparse_rows(ids, batch, vocab, name)
    if str(getattr(ids, "dtype", "")) in ("bool", "torch.bool", "uint8", "torch.uint8"):
        return _of_booleans(as_numpy(ids, name), batch, vocab, name, at)
    rows = _rows(ids, batch, name)
    marked = np.empty((len(rows), vocab), np.uint8)
    if isinstance(rows, np.ndarray) and native.mark(marked, rows, at):
        return marked
    for number, row in enumerate(rows):
        place = f"{name}[{number}]" if len(rows) > 1 else name
        if row.ndim != 1:
            raise ShapeError(f"{place} has shape {shape_of(row)}; expected a flat list of ids")
        if not native.mark(marked[number : number + 1], row[None, :], at):
            some = checked_ids(row, vocab, place, lowest=-1)
            marked[number] = 1 - at
            marked[number, some[some >= 0]] = at
    return marked


def _of_booleans(given: NDArray[Any], batch: int, vocab: int, name: str, at: int) -> Marks:
    rows = given[None] if given.ndim == 1 else given
    packed = given.dtype != bool
    wide = -(-vocab // 8) if packed else vocab
    if rows.ndim != 2 or rows.shape[1] != wide or len(rows) not in (1, batch):
        kind = "uint8, which is bits as numpy.packbits packs them (ids are of other types)," if packed else "booleans"
        raise ShapeError(f"{name} is {kind} of shape {shape_of(given)}; expected [{wide}] or [{batch}, {wide}]")
    if packed:
        rows = np.unpackbits(rows, axis=1, count=vocab).view(np.bool_)
    return np.ascontiguousarray(rows if at else ~rows).view(np.uint8)


def _sparse_rows(ids: Any, batch: int, vocab: int, name: str) -> Any:
    """The ids of each sparse row; everything else as it is."""
    if not (type(ids).__module__.startswith("scipy.sparse") and hasattr(ids, "tocsr")):
        return ids
    if ids.shape not in ((1, vocab), (batch, vocab)):
        raise ShapeError(f"{name} is sparse, of shape {list(ids.shape)}; expected [{batch}, {vocab}], a row for each query")
    rows = ids.tocsr()
    split: list[NDArray[Any]] = np.split(rows.indices, rows.indptr[1:-1])
    return split[0] if len(split) == 1 else split


def _rows(ids: Any, batch: int, name: str) -> Any:
    """``[1 or batch, m]``, or a list of arrays where the rows came one by one."""
    if isinstance(ids, (set, frozenset)):
        ids = sorted(ids)
    if isinstance(ids, Sequence) and any(isinstance(row, (set, frozenset)) for row in ids):
        ids = [sorted(row) if isinstance(row, (set, frozenset)) else row for row in ids]
    if not isinstance(ids, np.ndarray) and isinstance(ids, Sequence) and len(ids) > 0 and all(map(_is_row, ids)):
        rows = [as_numpy(row, f"{name}[{i}]") for i, row in enumerate(ids)]
        if len(rows) == batch:
            return rows
        raise ShapeError(f"{name} has {len(rows):,} rows; {_expected(batch)}")
    array = as_numpy(ids, name)
    if array.ndim == 1:
        return array[None, :]
    if array.ndim == 2 and len(array) == batch:
        return array
    raise ShapeError(f"{name} has shape {shape_of(array)}; {_expected(batch)}")


def _expected(batch: int) -> str:
    return f"expected ids [m] for the whole call, or {batch} rows, one per query"


def _is_row(value: object) -> bool:
    is_list = isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes))
    return is_list or kind_of(value) == "torch"
