"""Offline scoring: the functions by themselves, and the examples under Ray and Spark where those are installed."""

from __future__ import annotations

import importlib.util
import os
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

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HIDDEN = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> str:
    weight = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    hl.compile(hl.Layer(weight), "cascade", delta=0.0).save(tmp_path / "head.safetensors")
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


def test_the_schema_names_what_is_added() -> None:
    field = SimpleNamespace(name="row", dataType=SimpleNamespace(simpleString=lambda: "bigint"))
    assert spark_schema(SimpleNamespace(fields=[field])) == (
        "`row` bigint, ids array<bigint>, log_probs array<double>, error double, proved boolean"
    )
    udt = SimpleNamespace(name="hidden", dataType=SimpleNamespace(simpleString=lambda: "vector"))
    with pytest.raises(InputError, match=r"'hidden' holds ml.Vectors, .*vector_to_array\('hidden'\)"):
        spark_schema(SimpleNamespace(fields=[field, udt]))


@pytest.mark.parametrize(("name", "package"), [("ray_scoring", "ray"), ("spark_scoring", "pyspark")])
def test_the_examples_run_on_one_machine(name: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: it is large, and only this example uses it")
    if package == "pyspark" and shutil.which("java") is None:
        pytest.skip("Spark runs on Java 17, which is not installed")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "the ids of a local engine" in done.stdout
