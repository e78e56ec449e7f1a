"""Offline scoring: the functions by themselves, and the examples under Ray and Spark where those are installed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.errors import InputError
from headlong.integrations.offline import Scorer, in_pandas, spark_schema

CLIENTS = Path(__file__).resolve().parents[1] / "helpers/offline_clients.py"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HIDDEN = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> str:
    weight = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    hl.compile(hl.Layer(weight), "codes", delta=0.0).save(tmp_path / "head.safetensors")
    return str(tmp_path / "head.safetensors")


def test_a_batch_of_columns(path: str) -> None:
    expected = hl.load(path).topk(HIDDEN, 4)
    found = Scorer(path, k=4)({"row": np.arange(6), "hidden": HIDDEN})
    assert list(found) == ["row", "hidden", "ids", "log_probs", "error", "proved"]
    assert (found["ids"] == expected.ids).all() and (found["log_probs"] == expected.log_probs).all()
    assert Scorer(hl.load(path), k=4)({"hidden": list(HIDDEN)})["ids"].shape == (6, 4)
    assert Scorer(path)({"hidden": []})["ids"].shape == (0, 10)
    with pytest.raises(InputError, match="the batch has the columns row; expected 'hidden'"):
        Scorer(path)({"row": [1]})


class Vector:
    """As ``pyspark.ml.linalg.DenseVector`` is read."""

    def __init__(self, row: Any) -> None:
        self.row = row

    def toArray(self) -> Any:  # noqa: N802  # Spark's name
        return np.asarray(self.row, np.float64)


def test_columns_that_hold_no_vectors_are_named(path: str) -> None:
    scorer = Scorer(path, k=4)
    found = scorer({"hidden": [Vector(row) for row in HIDDEN]})
    assert (found["ids"] == scorer({"hidden": HIDDEN})["ids"]).all()
    wrong: list[tuple[Any, str]] = [
        (None, r"row 1 of the batch has no 'hidden' \(null\)"),
        (np.float32("nan"), r"row 1 of the batch has no 'hidden' \(null\)"),
        (float("nan"), r"row 1 of the batch has no 'hidden' \(null\)"),
        ([1.0, None] * 4, "row 1 of the batch has NaN or infinity in 'hidden'"),
        (HIDDEN[0, :5], r"row 1 of the batch has 'hidden' of shape \[5\]; expected 8 numbers"),
        ({"type": 1}, "row 1 of the batch has a dict in 'hidden'"),
        ("words", "row 1 of the batch has a str in 'hidden'"),
        (np.full(8, np.inf), "NaN or infinity in 'hidden'; drop or repair"),
    ]
    for value, said in wrong:
        with pytest.raises(InputError, match=said):
            scorer({"hidden": [HIDDEN[0], value]})


class Frame(dict[str, Any]):
    """What of a ``pandas.DataFrame`` is used."""

    @property
    def columns(self) -> list[str]:
        return list(self)

    def assign(self, **added: Any) -> Frame:
        return Frame({**self, **added})


def test_frames_are_read_by_their_columns(path: str) -> None:
    (found,) = in_pandas(path, k=4)(iter([Frame(row=[0, 1], hidden=list(HIDDEN[:2]))]))
    assert (np.stack(found["ids"]) == hl.load(path).topk(HIDDEN[:2], 4).ids).all() and found["row"] == [0, 1]
    with pytest.raises(InputError, match="the batch has the columns row, vector; expected 'hidden'"):
        next(in_pandas(path)(iter([Frame(row=[0], vector=[HIDDEN[0]])])))


def test_frames_of_pandas(path: str) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed; Spark brings it")
    parts = [{"row": [0, 1], "hidden": list(HIDDEN[:2])}, {"row": [2], "hidden": [HIDDEN[2]]}]
    frames = [pandas.DataFrame(part) for part in parts]
    found = pandas.concat(in_pandas(path, k=4)(iter(frames)))
    assert (np.stack(list(found["ids"])) == hl.load(path).topk(HIDDEN[:3], 4).ids).all()
    assert found["proved"].all()


class Struct:
    """What of ``pyspark.sql.types.StructType`` is used."""

    def __init__(self, *fields: tuple[str, Any]) -> None:
        self.json = [{"name": name, "type": kind, "nullable": False, "metadata": {}} for name, kind in fields]
        kinds = {name: kind if isinstance(kind, str) else kind["type"] for name, kind in fields}
        types = [(name, SimpleNamespace(simpleString=lambda kind=kind: kind)) for name, kind in kinds.items()]
        self.fields = [SimpleNamespace(name=name, dataType=kind) for name, kind in types]

    def jsonValue(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        return {"type": "struct", "fields": self.json}

    @classmethod
    def fromJson(cls, given: dict[str, Any]) -> Struct:  # noqa: N802
        return cls(*((field["name"], field["type"]) for field in given["fields"]))


def test_the_schema_names_what_is_added() -> None:
    made = spark_schema(Struct(("a row", "long")))
    assert [field.name for field in made.fields] == ["a row", "ids", "log_probs", "error", "proved"]
    assert [field["type"] for field in made.json][2]["elementType"] == "double"
    with pytest.raises(InputError, match=r"'hidden' holds ml.Vectors, .*vector_to_array\('hidden'\)"):
        spark_schema(Struct(("row", "long"), ("hidden", "vector")))
    with pytest.raises(InputError, match="a column 'error' already; rename it: ids, log_probs, error, proved are added"):
        spark_schema(Struct(("error", "long")))


def test_a_column_is_never_written_over(path: str) -> None:
    with pytest.raises(InputError, match="there is a column 'ids' already; rename it"):
        Scorer(path)({"ids": np.arange(6), "hidden": HIDDEN})


def test_the_schema_of_spark_keeps_names_that_need_quotes() -> None:
    types = pytest.importorskip("pyspark.sql.types", reason="pyspark is not installed")
    inner = types.StructType().add("y `z`", types.StringType())
    given = types.StructType().add("a b", inner).add("hidden", types.ArrayType(types.FloatType()), nullable=False)
    made = spark_schema(given)
    assert made.fields[:2] == given.fields and made.names[2:] == ["ids", "log_probs", "error", "proved"]
    assert made["ids"].dataType == types.ArrayType(types.LongType()) and made["proved"].dataType == types.BooleanType()


def ran(package: str, *command: str) -> str:
    """What a script prints that uses ``package``; skips the test where that is not installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: it is large, and only offline scoring uses it")
    if package == "pyspark" and shutil.which("java") is None:
        pytest.skip("Spark runs on Java 17, which is not installed")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=280, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(("name", "package"), [("ray_scoring", "ray"), ("spark_scoring", "pyspark")])
def test_the_examples_run_on_one_machine(name: str, package: str) -> None:
    assert "the ids of a local engine" in ran(package, str(EXAMPLES / f"{name}.py"))


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("spark", "pyspark")])
def test_what_the_clients_themselves_say_of_columns_without_vectors(path: str, name: str, package: str) -> None:
    said = ran(package, str(CLIENTS), name, path)
    assert re.search(r"a missing column: .*InputError: the batch has the columns vector; expected 'hidden'", said)
    assert re.search(r"a null: .*InputError: row 0 of the batch has no 'hidden' \(null\); drop or fill such rows", said)
    assert re.search(r"a short vector: .*InputError: row 0 of the batch has 'hidden' of shape \[5\]; expected 8 numbers", said)
    if name == "spark":
        best = hl.load(path).topk(np.full((1, 8), 0.5, np.float32), 3).ids[0].tolist()
        assert "holds ml.Vectors, which Spark does not hand to pandas; make it an array first" in said
        assert f"as it was told: {best}" in said


def test_a_batch_that_is_an_arrow_table(path: str) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'headlong[arrow]'")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(HIDDEN.reshape(-1)), 8)
    for given in (pa.table({"row": range(6), "hidden": vectors}), pa.record_batch({"row": range(6), "hidden": vectors})):
        found = Scorer(path, k=4)(given)
        assert found.column_names == ["row", "hidden", "ids", "log_probs", "error", "proved"]
        assert found["ids"].to_pylist() == hl.load(path).topk(HIDDEN, 4).ids.tolist()
    with pytest.raises(InputError, match="the batch has the columns row; expected 'hidden'"):
        Scorer(path)(pa.table({"row": [1]}))
    with pytest.raises(InputError, match="there is a column 'ids' already"):
        Scorer(path)(pa.table({"hidden": vectors, "ids": range(6)}))
