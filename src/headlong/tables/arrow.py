"""A column of vectors as ``[n, dim]``: fixed-size lists of numbers, without a copy where they lie in one piece.

::

    vectors(table, "embedding")      a Table, RecordBatch, array, or whatever has ``__arrow_c_stream__``: DuckDB, polars, pandas

A list column of no fixed size (what Parquet files of others come as) is read where every row has the length of the first;
where one has another, the error names it. A null in a vector, or in its place, is refused, as no number stands for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headlong.arrays import Array
from headlong.errors import DtypeError, InputError, MissingPackageError, MissingTensorError, ShapeError, named

FLOATS = ("halffloat", "float", "double")
"""Arrow's names of what vectors are made of."""


def pyarrow() -> Any:
    """The package, or an error that names the extra which brings it."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingPackageError("tables are read by pyarrow, which is absent: pip install 'headlong[arrow]'") from error
    return pa


def is_arrow(given: object) -> bool:
    """Whether this hands out Arrow's arrays: by the protocol, or as a dataset of Hugging Face or Lance."""
    protocol = hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")
    return protocol or _library(given) in ("datasets", "lance")


def vectors(given: Any, column: str | None = None, name: str = "the table") -> Array:
    """``[n, dim]`` of the column ``column``, or of the only one that holds vectors; read-only."""
    found = _columns(given, column, name)
    pa = pyarrow()
    if isinstance(found, pa.ChunkedArray | pa.Array):
        if column is not None:
            raise MissingTensorError(f"{name} is one array, without columns; leave {column!r} out")
        return rows_of(found, name)
    chosen = column_of(found.schema, column, name)
    return rows_of(found.column(chosen), f"{name}: column {chosen!r}")


def as_table(given: Any, name: str) -> Any:
    """A ``pyarrow.Table`` of all columns."""
    pa = pyarrow()
    found = _columns(given, None, name)
    if isinstance(found, pa.RecordBatch):
        return pa.Table.from_batches([found])
    if not isinstance(found, pa.Table):
        raise InputError(f"{name} is {found.type}, one column; expected a table, with columns by name")
    return found


def column_of(schema: Any, column: str | None, name: str) -> str:
    """The column that was named, or the only one of vectors."""
    if column is not None:
        if schema.names.count(column) != 1:
            has = f"several columns {column!r}" if column in schema.names else f"no column {column!r}"
            raise MissingTensorError(f"{name} has {has}; it has {', '.join(schema.names) or 'none'}")
        return column
    lists = [field.name for field in schema if _numbers(field.type) is not None]
    if len(lists) != 1:
        which = f"of vectors {', '.join(lists)}" if lists else f"{', '.join(schema.names)}, none of vectors"
        raise MissingTensorError(f"{name} has the columns {which}; name the one to read")
    return str(lists[0])


def rows_of(column: Any, name: str, first: int = 0) -> Array:
    """``[n, dim]`` of an array or a chunked one; ``first`` is the number of its first row, for messages."""
    pa = pyarrow()
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    numbers = _numbers(column.type)
    if numbers is None:
        raise DtypeError(f"{name} is {column.type}; expected a fixed-size list of float or halffloat in each row")
    if str(numbers) not in FLOATS:
        raise DtypeError(f"{name} holds {numbers}; expected float, halffloat or double: cast it first")
    parts: list[Array] = []
    dim = _fixed(column.type)
    for chunk in chunks:
        if len(chunk):
            parts.append(_rows(chunk, dim if not parts else parts[0].shape[1], name, first))
        first += len(chunk)
    if not parts:
        return np.empty((0, dim or 0), numbers.to_pandas_dtype())
    found = parts[0] if len(parts) == 1 else np.concatenate(parts)
    found.flags.writeable = False
    return found


def _rows(chunk: Any, dim: int | None, name: str, first: int) -> Array:
    chunk = _stored(chunk)
    if chunk.null_count:
        row = int(np.flatnonzero(chunk.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"row {first + row:,} of {name} is null; drop or fill such rows")
    if _fixed(chunk.type) is None:
        lengths = np.diff(chunk.offsets.to_numpy())
        dim = int(lengths[0]) if dim is None else dim
        if (other := np.flatnonzero(lengths != dim)).size:
            row = int(other[0])
            said = f"row {first + row:,} of {name} has {lengths[row]:,} numbers where those before have {dim:,}"
            raise ShapeError(f"{said}; expected vectors of one length: drop or repair it")
    values = chunk.flatten()
    if values.null_count:
        row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]) // max(1, dim or 0)
        raise InputError(f"row {first + row:,} of {name} has a null among its numbers; drop or fill such rows")
    found: Array = values.to_numpy(zero_copy_only=True).reshape(len(chunk), -1)
    return found


def _stored(chunk: Any) -> Any:
    """The array behind an extension type, such as a tensor of one axis."""
    return chunk.storage if hasattr(chunk.type, "storage_type") else chunk


def _fixed(kind: Any) -> int | None:
    """The length of every row, where the type says it."""
    kind = getattr(kind, "storage_type", kind)
    return int(kind.list_size) if str(kind).startswith("fixed_size_list") else None


def _numbers(kind: Any) -> Any:
    """What the lists of a column hold; None for what holds none. A tensor of several axes is no vector."""
    if len(getattr(kind, "shape", ())) > 1:
        return None
    kind = getattr(kind, "storage_type", kind)
    if not is_list(kind):
        return None
    return kind.value_type if str(kind.value_type) in FLOATS or not hasattr(kind.value_type, "value_type") else None


def is_list(kind: Any) -> bool:
    """Whether a row of this type is a list."""
    return str(kind).startswith(("fixed_size_list", "list<", "large_list<"))


def _columns(given: Any, column: str | None, name: str) -> Any:
    """A Table, a RecordBatch, or an array."""
    pa = pyarrow()
    if isinstance(given, pa.Table | pa.RecordBatch | pa.ChunkedArray | pa.Array):
        return given
    library = _library(given)
    try:
        if library == "datasets" and hasattr(given, "with_format"):
            return given.with_format("arrow")[:]
        if library == "lance" and hasattr(given, "to_table"):
            return given.to_table() if column is None else given.to_table(columns=[column])
        if hasattr(given, "__arrow_c_stream__"):
            try:
                return pa.RecordBatchReader.from_stream(given).read_all()
            except pa.ArrowInvalid:  # a stream of arrays, as a column is
                return pa.chunked_array(given)
        if hasattr(given, "__arrow_c_array__"):
            return pa.array(given)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{name} gives no Arrow table: {error}") from error
    raise InputError(
        f"{name} is {named(given)}; expected an Arrow table or array, or an object with __arrow_c_stream__, such as a result "
        "of DuckDB or a data frame"
    )


def _library(given: object) -> str:
    return type(given).__module__.partition(".")[0]
