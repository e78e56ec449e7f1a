"""Vectors from Arrow, Parquet, Lance and PostgreSQL are the numbers that were stored; what is none is refused with its row."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.errors import (
    DtypeError,
    HeadlongError,
    InputError,
    MalformedFileError,
    MissingTensorError,
    OptionError,
    ShapeError,
)
from headlong.tables import answers, arrow, files

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'headlong[arrow]'")
from pyarrow import feather, parquet  # noqa: E402

ROWS = np.random.default_rng(0).standard_normal((1000, 16)).astype(np.float32)


def column(rows: Any = ROWS) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def table(rows: Any = ROWS) -> Any:
    return pa.table({"id": np.arange(len(rows)), "embedding": column(rows)})


def lists(rows: Any = ROWS) -> Any:
    return pa.array([row.tolist() for row in rows], pa.list_(pa.float32()))


def _parquet(folder: Path, given: Any, name: str = "a.parquet") -> Path:
    parquet.write_table(given, folder / name, row_group_size=300)
    return folder / name


def _arrow(folder: Path, given: Any, stream: bool = False) -> Path:
    path = folder / ("stream.arrow" if stream else "file.arrow")
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(path, given.schema) as out:
        out.write_table(given, max_chunksize=len(given))
    return path


def _feather(folder: Path, given: Any) -> Path:
    feather.write_feather(given, folder / "a.feather")
    return folder / "a.feather"


def _folder(folder: Path, given: Any) -> Path:
    (folder / "parts").mkdir()
    for part, start in enumerate((0, 400)):
        _parquet(folder / "parts", given.slice(start, 400 if start == 0 else 600), f"part-{part}.parquet")
    return folder / "parts"


def _lance(folder: Path, given: Any) -> Path:
    lance = pytest.importorskip("lance", reason="pylance is not installed")
    lance.write_dataset(given, folder / "rows.lance", max_rows_per_file=400)
    return folder / "rows.lance"


def _datasets(folder: Path, given: Any) -> Path:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.Dataset(given).save_to_disk(folder / "saved")
    return folder / "saved"


def _others(folder: Path, given: Any) -> Path:
    """As writers that know no fixed-size lists leave it."""
    return _parquet(folder, pa.table({"embedding": lists()}))


def _copy(folder: Path, given: Any) -> Path:
    rows = np.stack(given["embedding"].combine_chunks().flatten().to_numpy().reshape(len(given), -1))
    body = b"".join(
        struct.pack(">hi", 1, 4 + 4 * len(row)) + struct.pack(">HH", len(row), 0) + row.astype(">f4").tobytes() for row in rows
    )
    path = folder / "rows.copy"
    path.write_bytes(b"PGCOPY\n\xff\r\n\0" + bytes(8) + body + b"\xff\xff")
    return path


WRITERS: list[Callable[[Path, Any], Path]] = [_parquet, _arrow, _feather, _folder, _lance, _datasets, _others, _copy]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.filterwarnings("ignore")  # of those who write
def test_files_of_every_kind_give_the_rows_that_were_stored(write: Callable[[Path, Any], Path], tmp_path: Path) -> None:
    path = write(tmp_path, table())
    layer = hl.Layer.from_arrow(path)
    assert layer.dtype == "float32" and layer.unchanging and (layer.weight == ROWS).all()
    rows = files.opened(str(path))
    assert (rows.length, rows.dim) == ROWS.shape
    for start, stop, step in ((0, 1000, 128), (250, 777, 100), (299, 301, 1), (1000, 1000, 5)):
        blocks = list(rows.blocks(start, stop, step))
        assert [len(block) for block in blocks[:-1]] == [step] * (len(blocks) - 1)
        assert (np.concatenate([ROWS[:0], *blocks]) == ROWS[start:stop]).all()


def test_half_precision_keeps_its_type(tmp_path: Path) -> None:
    half = ROWS.astype(np.float16)
    for given in (column(half), _parquet(tmp_path, table(half)), _arrow(tmp_path, table(half), stream=True)):
        layer = hl.Layer.from_arrow(given)
        assert layer.dtype == "float16" and (layer.weight == half).all()


def test_one_piece_is_not_copied(tmp_path: Path) -> None:
    given = column()
    for form in (given, pa.chunked_array([given]), pa.table({"e": given}), pa.record_batch({"e": given})):
        assert np.shares_memory(hl.Layer.from_arrow(form).weight, given.values.to_numpy())
    assert (hl.Layer.from_arrow(given.slice(7, 20)).weight == ROWS[7:27]).all()
    path = _arrow(tmp_path, table())
    before = pa.total_allocated_bytes()
    layer = hl.Layer.from_arrow(path)
    assert pa.total_allocated_bytes() - before < ROWS.nbytes / 8 and not layer.weight.flags.owndata  # mapped


class Stream:
    """What of DuckDB's results and of data frames is read."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        return self.given.__arrow_c_stream__(schema)


def test_whatever_hands_out_arrow_streams_is_read() -> None:
    for given in (Stream(table()), Stream(pa.chunked_array([column(ROWS[:300]), column(ROWS[300:])]))):
        assert (hl.Layer.from_arrow(given).weight == ROWS).all()
    tensor = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [16]), column())
    assert (hl.Layer.from_arrow(tensor).weight == ROWS).all()


def test_results_of_duckdb_and_frames_of_polars_and_pandas() -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    connection = duckdb.connect()
    connection.register("items", table())
    for sql in ("select embedding::FLOAT[16] as e from items order by id", "select * from items order by id"):
        assert (hl.Layer.from_arrow(connection.sql(sql)).weight == ROWS).all()


def test_data_frames_are_read() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.from_arrow(table())
    assert (hl.Layer.from_arrow(frame, "embedding").weight == ROWS).all()
    assert (hl.Layer.from_arrow(frame["embedding"]).weight == ROWS).all()


def test_a_dataset_is_read_in_the_order_of_its_rows() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    chosen = datasets.Dataset(table()).select([5, 3, 900])
    assert (hl.Layer.from_arrow(chosen).weight == ROWS[[5, 3, 900]]).all()


REFUSED: list[tuple[Any, type[HeadlongError], str]] = [
    (pa.array([[1.0, 2.0], [3.0]], pa.list_(pa.float32())), ShapeError, "row 1 of data has 1 numbers where those"),
    (pa.chunked_array([[[1.0]], [[1.0], [1.0, 2.0]]], pa.list_(pa.float32())), ShapeError, "row 2 of data has 2 numbers"),
    (pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)), InputError, "row 1 of data is null"),
    (pa.array([[1.0, 2.0], [3.0, None]], pa.list_(pa.float32(), 2)), InputError, "row 1 of data has a null among its numbers"),
    (pa.array([1.0, 2.0]), DtypeError, "data is double; expected a fixed-size list"),
    (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), DtypeError, "data holds int64; expected float"),
    (pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2)), DtypeError, "data holds vectors of double; expected float or"),
    (pa.array(["words"]), DtypeError, "data is string"),
    (pa.table({"a": [1], "b": ["c"]}), MissingTensorError, "data has the columns a, b, none of vectors; name the one to read"),
    (pa.table({"a": [[1.0]], "b": [[2.0]]}), MissingTensorError, "data has the columns of vectors a, b; name the one"),
    (5, InputError, "data is an int; expected an Arrow table"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "said"), REFUSED)
def test_what_holds_no_vectors_is_refused_with_its_row(given: Any, error: type[HeadlongError], said: str) -> None:
    with pytest.raises(error, match=said):
        hl.Layer.from_arrow(given)


def test_a_row_is_numbered_from_the_start_of_the_file(tmp_path: Path) -> None:
    rows = [[1.0, 2.0]] * 400 + [[1.0]] + [[1.0, 2.0]] * 300
    path = _parquet(tmp_path, pa.table({"e": pa.array(rows, pa.list_(pa.float32()))}))
    for read in (lambda: files.whole(str(path)), lambda: list(files.opened(str(path)).blocks(0, 701, 50))):
        with pytest.raises(ShapeError, match=r"row 400 of .* has 1 numbers where those before have 2"):
            read()


def test_columns_are_named_and_their_absence_is_said(tmp_path: Path) -> None:
    path = _parquet(tmp_path, pa.table({"a": column(), "b": column(ROWS + 1)}))
    assert (files.whole(str(path), "b") == ROWS + 1).all()
    for read in (files.whole, files.opened, hl.Layer.from_arrow):
        with pytest.raises(MissingTensorError, match="has no column 'c'; it has a, b"):
            read(str(path), "c")


@pytest.mark.parametrize("write", [_parquet, _arrow, _copy])
def test_damaged_files_are_refused(write: Callable[[Path, Any], Path], tmp_path: Path) -> None:
    path = write(tmp_path, table())
    content = path.read_bytes()
    for cut in (len(content) // 2, len(content) - 1, 40, 17):
        path.write_bytes(content[:cut])
        with pytest.raises(HeadlongError, match=re.escape(str(path))):
            files.whole(str(path))


VECTORS = bytes.fromhex(
    "5047434f50590aff0d0a000000000000000000000100000010000300003f8000004000000040400000000100000010000300003f000000bfa0000037fb"
    "a882ffff"
)
"""``copy (select e from t) to ... (format binary)`` by PostgreSQL 18.4 with pgvector 0.8.5, of [1,2,3], [0.5,-1.25,3e-5]..."""
MIXED = bytes.fromhex(
    "5047434f50590aff0d0a0000000000000000000004000000040000000100000010000300003f80000040000000404000000000000a000300003c004000"
    "420000000001610004000000040000000200000010000300003f000000bfa0000037fba8820000000a000300003800bd0042000000000362626200040000"
    "000400000003ffffffff0000000a000300003c003c003c00ffffffffffff"
)
"""...and of a table (int, vector(3), halfvec(3), text), whose third row has no vector and no text."""


def test_vectors_that_postgresql_wrote(tmp_path: Path) -> None:
    path = tmp_path / "items.copy"
    path.write_bytes(VECTORS)
    found = files.whole(str(path))
    assert found.dtype == np.float32 and (found == np.array([[1, 2, 3], [0.5, -1.25, 3e-5]], np.float32)).all()
    path.write_bytes(MIXED)
    half = files.whole(str(path), "2")
    assert half.dtype == np.float16 and (half == np.array([[1, 2, 3], [0.5, -1.25, 3], [1, 1, 1]], np.float16)).all()
    with pytest.raises(ShapeError, match=r"row 2 of .* has no vector \(null\)"):
        files.whole(str(path), "1")
    with pytest.raises(MissingTensorError, match="2 of 4 fields of its first row look like vectors"):
        files.whole(str(path))
    with pytest.raises(MissingTensorError, match="has 4 fields, numbered from 0; there is no '9'"):
        files.whole(str(path), "9")
    path.write_bytes(VECTORS[:15] + b"\0\1" + VECTORS[17:])
    with pytest.raises(MalformedFileError, match="cut off|damaged|goes on"):
        files.whole(str(path))


def test_answers_leave_as_tables(tmp_path: Path) -> None:
    engine = hl.compile(hl.Layer(ROWS), delta=0.0)
    top = engine.topk(ROWS[:5], k=3)
    for name in ("a.parquet", "a.arrow", "a.feather"):
        answers.write(tmp_path / name, [answers.table(top), answers.table(engine.topk(ROWS[5:7], k=3))])
        read = parquet.read_table(tmp_path / name) if name == "a.parquet" else feather.read_table(tmp_path / name)
        assert read.column_names == ["log_probs", "ids", "logits", "lse", "error", "proved", "rows", "bytes", "dense"]
        assert (arrow.vectors(read, "log_probs") == engine.topk(ROWS[:7], k=3).log_probs).all()
        assert read["ids"].to_pylist() == engine.topk(ROWS[:7], k=3).ids.tolist() and all(read["proved"].to_pylist())
    some = ROWS[:2]
    for answer in (engine.lse(some), engine.log_prob(some, [[1], [2]]), engine.entropy(some), engine.sample(some)):
        assert len(answers.table(answer)) == 2
    with pytest.raises(OptionError, match=r"a\.csv is no name of a table"):
        answers.write(tmp_path / "a.csv", answers.table(top))
