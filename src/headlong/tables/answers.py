"""Answers as Arrow tables: a column for each field, a row for each query; ids, and what belongs to them, as fixed-size lists.

::

    table(engine.topk(hidden, k=10))     ids: fixed_size_list<int64>[10], log_probs, logits, lse, error, proved, rows, bytes
    write("answers.parquet", table)      Parquet, or by the name's end (.arrow, .feather) an Arrow file
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from headlong.answers import Cost, View, named_fields
from headlong.arrays import as_numpy, to_host
from headlong.errors import OptionError, ShapeError, named
from headlong.number_checks import file_name
from headlong.store import replacing
from headlong.tables.arrow import is_list, pyarrow
from headlong.tables.files import readable, tables_of

ENDS = (".parquet", ".arrow", ".feather")


def table(answer: View) -> Any:
    """The answer as a ``pyarrow.Table``. An id that is not there is -1, as in the arrays."""
    if not isinstance(answer, View):
        raise ShapeError(f"answer is {named(answer)}; expected what an engine answered")
    found: dict[str, Any] = {}
    for name, value in named_fields(answer).items():
        if isinstance(value, Cost):
            found |= {"rows": value.rows, "bytes": value.bytes, "dense": value.dense}
        elif value is not None and not isinstance(value, tuple):
            found[name] = value
    return columns({name: as_numpy(to_host(value), name) for name, value in found.items()})


def columns(arrays: dict[str, Any]) -> Any:
    """A table of ``[n]`` and ``[n, m]`` arrays."""
    pa = pyarrow()
    made = {}
    for name, value in arrays.items():
        flat = pa.array(np.ascontiguousarray(value).reshape(-1))
        made[name] = pa.FixedSizeListArray.from_arrays(flat, value.shape[1]) if value.ndim == 2 else flat
    return pa.table(made)


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether a file of this name is written as a table."""
    return Path(path).suffix in ENDS


def check_name(path: str | os.PathLike[str]) -> None:
    """OptionError where a file of this name is not written as a table."""
    if not is_table(path):
        raise OptionError(f"{os.fspath(path)} is no name of a table; expected one that ends in {', '.join(ENDS)}")


def write(path: str | os.PathLike[str], found: Any) -> None:
    """A table, or tables of the same columns behind one another, in a file: whole or not at all."""
    check_name(path)
    pa = pyarrow()
    found = pa.concat_tables(found) if isinstance(found, list) else found
    from pyarrow import (
        feather,
        parquet,
    )

    with replacing(Path(path)) as file:
        if Path(path).suffix == ".parquet":
            parquet.write_table(found, file)
        else:
            feather.write_feather(found, file, compression="uncompressed")


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The columns of a table by name: ``[n]``, or ``[n, m]`` where rows are lists of ``m``."""
    name = file_name(path)
    with readable(name):
        return arrays(tables_of(name), name)


def arrays(found: Any, name: str = "the table") -> dict[str, Any]:
    """The columns of an Arrow table that are numbers, by name."""
    made = {}
    for column in found.column_names:
        value = found.column(column).combine_chunks()
        width = None
        if is_list(value.type):
            lengths = np.unique(value.value_lengths().to_numpy(zero_copy_only=False))
            if len(lengths) > 1:
                said = f"{name}: column {column!r} has lists of {lengths[0]:g} to {lengths[-1]:g}"
                raise ShapeError(f"{said}; expected one length")
            width, value = int(lengths[0]) if len(lengths) else 0, value.flatten()
        flat = value.to_numpy(zero_copy_only=False)
        if flat.dtype.kind in "iufb":
            made[column] = flat if width is None else flat.reshape(-1, width) if width else flat.reshape(len(found), 0)
    return made
