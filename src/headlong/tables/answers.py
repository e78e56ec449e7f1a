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

from headlong.answers import Answer, Cost, named_fields
from headlong.arrays import as_numpy, to_host
from headlong.errors import OptionError, ShapeError, named
from headlong.store import replacing
from headlong.tables.arrow import pyarrow

ENDS = (".parquet", ".arrow", ".feather")


def table(answer: Answer) -> Any:
    """The answer as a ``pyarrow.Table``. An id that is not there is -1, as in the arrays."""
    if not isinstance(answer, Answer):
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


def write(path: str | os.PathLike[str], found: Any) -> None:
    """A table, or tables of the same columns behind one another, in a file: whole or not at all."""
    if not is_table(path):
        raise OptionError(f"{os.fspath(path)} is no name of a table; expected one that ends in {', '.join(ENDS)}")
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
