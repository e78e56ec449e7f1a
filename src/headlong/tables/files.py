"""Tables of vectors on disk, known by their first bytes: Parquet, Arrow's files and streams, Lance, PostgreSQL's binary COPY.

::

    whole(path, column)              [n, dim]; mapped where an Arrow file holds one uncompressed batch
    opened(path, column)             how many rows of how many numbers; ``blocks`` streams them, some rows at a time

A folder is one of Lance, or of Parquet or Arrow files, which are read in the order of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headlong.arrays import Array
from headlong.errors import MalformedFileError, MissingPackageError, ShapeError, StoreError, cause
from headlong.store import mapped_bytes
from headlong.tables import postgres
from headlong.tables.arrow import column_of, pyarrow, rows_of, vectors

PARQUET, ARROW_FILE, ARROW_STREAM, LANCE, COPY = "Parquet", "Arrow file", "Arrow stream", "Lance", "PostgreSQL COPY"
STREAM_NAMES, ENDS = (".arrow", ".arrows", ".ipc", ".feather"), {".parquet": PARQUET, ".arrow": ARROW_FILE}
DECODED = 1 << 14
"""Rows of a Parquet file that are decoded at once."""


BUFFER = 1 << 20
"""Bytes of it that are read at once, so that a row group need not fit into memory."""


class Rows(NamedTuple):
    """``length`` rows of ``dim`` numbers; ``blocks(start, stop, step)`` gives rows start..stop-1, ``step`` at a time (the last
    fewer). ``stamp`` changes where the files were written to."""

    name: str
    length: int
    dim: int
    stamp: str
    blocks: Callable[[int, int, int], Iterator[Array]]


def kind(path: str) -> str:
    """What a file or a folder is; empty for what is none of these."""
    place = Path(path)
    try:
        if place.is_dir():
            if (place / "_versions").is_dir():
                return LANCE
            return next((of for end, of in ENDS.items() if any(one.suffix == end for one in place.iterdir())), "")
        if not place.is_file():
            return ""
        with place.open("rb") as file:
            start = file.read(16)
    except OSError:
        return ""
    if start.startswith(postgres.MAGIC):
        return COPY
    if start.startswith(b"PAR1"):
        return PARQUET
    if start.startswith(b"ARROW1"):
        return ARROW_FILE
    return ARROW_STREAM if start.startswith(b"\xff\xff\xff\xff") and place.suffix in STREAM_NAMES else ""


def whole(path: str, column: str | None = None) -> Array:
    """``[n, dim]`` of a column of vectors, read-only."""
    found = kind(path)
    if found == COPY:
        return postgres.vectors(mapped_bytes(path, found), column, path)
    with readable(path):
        chosen = column_of(_schema(path, found), column, path) if found in (PARQUET, LANCE) else column
        return vectors(tables_of(path, chosen), chosen, path)


def tables_of(path: str, column: str | None = None) -> Any:
    """An Arrow table of all columns, or of one where others would have to be decoded, too."""
    found, columns = kind(path), None if column is None else [column]
    if found == LANCE:
        return _lance(path).to_table(columns=columns)
    if found == PARQUET:
        from pyarrow import parquet

        return pyarrow().concat_tables([parquet.read_table(one, columns=columns) for one in _files(path)])
    if found not in (ARROW_FILE, ARROW_STREAM):
        raise MalformedFileError(f"{path} is no table that is known; expected Parquet, Arrow or Lance")
    return pyarrow().concat_tables([_reader(one).read_all() for one in _files(path)])


def opened(path: str, column: str | None = None) -> Rows:
    """The rows of a column of vectors, to be streamed."""
    found = kind(path)
    if found in (COPY, ARROW_FILE, ARROW_STREAM):
        return of_array(whole(path, column), path, _stamp(path))  # mapped, or as large as it is
    with readable(path):
        chosen = column_of(_schema(path, found), column, path)
        files = [path] if found == LANCE else _files(path)
        counts = [_lance(path).count_rows()] if found == LANCE else [_parquet(one).metadata.num_rows for one in files]

        def blocks(start: int, stop: int, step: int) -> Iterator[Array]:
            return joined(_pieces(files, counts, chosen, path, start, stop), step, stop - start)

        first = next(iter(_pieces(files, counts, chosen, path, 0, 1)), np.empty((0, 0), np.float32))
        return Rows(path, sum(counts), first.shape[1], _stamp(path), blocks)


def of_array(rows: Array, name: str, stamp: str) -> Rows:
    """The rows of an array ``[n, dim]``."""

    def blocks(start: int, stop: int, step: int) -> Iterator[Array]:
        for at in range(start, stop, step):
            yield rows[at : min(at + step, stop)]

    return Rows(name, len(rows), rows.shape[1], stamp, blocks)


def joined(parts: Iterator[Array], step: int, count: int) -> Iterator[Array]:
    """The same ``count`` rows, ``step`` at a time; none is held twice."""
    part: Array | None = None
    for first in range(0, count, step):
        out, at, size = None, 0, min(step, count - first)
        while at < size:
            part = next(parts) if part is None else part
            if out is None:
                out = np.empty((size, part.shape[1]), part.dtype)
            taken = min(len(part), size - at)
            out[at : at + taken] = part[:taken]
            at += taken
            part = part[taken:] if taken < len(part) else None
        assert out is not None
        yield out


def _pieces(files: list[str], counts: list[int], column: str, name: str, start: int, stop: int) -> Iterator[Array]:
    """Rows start..stop-1 of files behind one another, as they come; vectors of one length."""
    first, dim = 0, None
    for file, count in zip(files, counts, strict=True):
        low, high = max(start - first, 0), min(stop - first, count)
        if low < high:
            with readable(file):
                for at, column_part in _batches(file, column, low, high):
                    rows = rows_of(column_part, f"{name}: column {column!r}", first + at)
                    if rows.shape[1] != (dim or rows.shape[1]):
                        said = f"row {first + at:,} of {name} has {rows.shape[1]} numbers where those before have {dim:,}"
                        raise ShapeError(f"{said}; expected vectors of one length")
                    dim = rows.shape[1]
                    yield rows
        first += count


def _batches(file: str, column: str, low: int, high: int) -> Iterator[tuple[int, Any]]:
    """The column's rows low..high-1 with the number of each first one."""
    if kind(file) == LANCE:
        scan = _lance(file).scanner(columns=[column], offset=low, limit=high - low, batch_size=DECODED)
        at = low
        for batch in scan.to_reader():
            yield at, batch.column(0)
            at += len(batch)
        return
    reader = _parquet(file)
    sizes = [reader.metadata.row_group(group).num_rows for group in range(reader.metadata.num_row_groups)]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    groups = [group for group, size in enumerate(sizes) if size and starts[group] < high and starts[group + 1] > low]
    at = int(starts[groups[0]])
    for batch in reader.iter_batches(DECODED, row_groups=groups, columns=[column], use_threads=False):
        first, last = max(low - at, 0), min(high - at, len(batch))
        if first < last:
            yield at + first, batch.column(0).slice(first, last - first)
        at += len(batch)
        if at >= high:
            return


def _files(path: str) -> list[str]:
    """The file, or those of a folder."""
    place = Path(path)
    if not place.is_dir():
        return [path]
    end = next(end for end, of in ENDS.items() if of == kind(path))
    return [str(one) for one in sorted(place.iterdir()) if one.suffix == end]


def _schema(path: str, found: str) -> Any:
    return _lance(path).schema if found == LANCE else _parquet(_files(path)[0]).schema_arrow


def _parquet(file: str) -> Any:
    pyarrow()
    from pyarrow import parquet

    return parquet.ParquetFile(file, buffer_size=BUFFER, pre_buffer=False)


def _lance(path: str) -> Any:
    try:
        import lance
    except ImportError as error:
        raise MissingPackageError(f"{path} is read by the package lance, which is absent: pip install pylance") from error
    return lance.dataset(path)


def _reader(file: str) -> Any:
    pa = pyarrow()
    from pyarrow import ipc

    source = pa.memory_map(file)
    return ipc.open_file(source) if kind(file) == ARROW_FILE else ipc.open_stream(source)


def _stamp(path: str) -> str:
    """Sizes and times of all files of it."""
    place = Path(path)
    files = [one for one in sorted(place.rglob("*")) if one.is_file()] if place.is_dir() else [place]
    said = [one.stat() for one in files]
    return " ".join(f"{one.st_size}:{one.st_mtime_ns}" for one in said)


@contextmanager
def readable(path: str) -> Iterator[None]:
    """What Arrow says of a file that it cannot read, as one of our errors."""
    pa = pyarrow()
    try:
        yield
    except (StoreError, ShapeError):
        raise
    except (pa.ArrowException, ValueError) as error:
        if type(error).__module__.startswith("headlong"):
            raise
        raise MalformedFileError(f"{path} cannot be read as a table: {error}") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {cause(error)}") from error
