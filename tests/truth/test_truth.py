"""The truth of a search is that of every score in exact arithmetic; killed runs go on, and fit into little memory."""

from __future__ import annotations

import importlib.util
import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from children import python
from headlong.errors import DtypeError, HeadlongError, MalformedFileError, NonFiniteError, OptionError, ShapeError, StoreError
from headlong.truth import Truth, recall, scores, truth

METRICS = ("inner_product", "cosine", "l2")
RNG = np.random.default_rng(0)
ITEMS = RNG.standard_normal((3000, 24)).astype(np.float32)
BROKEN = np.where(np.arange(3000)[:, None] == 1700, np.float32("nan"), ITEMS)
QUERIES = RNG.standard_normal((40, 24)).astype(np.float32)


def every(items: Any, queries: Any, metric: str) -> Any:
    """``[n, m]`` scores in float64, greater is nearer."""
    x, y = queries.astype(np.float64), items.astype(np.float64)
    if metric == "l2":
        return -np.square(x[:, None] - y).sum(-1)
    length = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(y, axis=1)
    return (x @ y.T) / (np.where(length > 0, length, 1) if metric == "cosine" else 1)


def best(items: Any, queries: Any, metric: str, k: int) -> Any:
    return np.argsort(-every(items, queries, metric), axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(("rows", "parts"), [(None, 1), (700, 1), (350, 3)])
def test_the_nearest_are_found_whatever_the_pieces_are(metric: str, rows: int | None, parts: int) -> None:
    found = truth(ITEMS, QUERIES, 10, metric=metric, rows=rows, parts=parts)
    assert (found.ids == best(ITEMS, QUERIES, metric, 10)).all()
    exact = -np.sort(-every(ITEMS, QUERIES, metric), axis=1)
    sign = -1 if metric == "l2" else 1
    np.testing.assert_allclose(found.scores, sign * exact[:, :10], rtol=1e-13)
    np.testing.assert_allclose(found.margin, exact[:, 9] - exact[:, 10], rtol=1e-9)
    again = truth(ITEMS, QUERIES, 10, metric=metric, rows=901)
    assert all((one == other).all() for one, other in zip(found, again, strict=True))  # to the last bit


@pytest.mark.parametrize("metric", METRICS)
def test_many_queries_are_answered_from_codes_alike(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = truth(ITEMS, QUERIES, 10, metric=metric)
    monkeypatch.setattr("headlong.truth.search.MANY", 1)
    found = truth(ITEMS, QUERIES, 10, metric=metric, rows=1300)
    assert all((one == other).all() for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("metric", METRICS)
def test_ties_are_in_the_order_of_ids_and_leave_no_margin(metric: str) -> None:
    items = np.concatenate([ITEMS[:50]] * 30)  # every row thirty times: far beyond what is fetched at first
    found = truth(items, QUERIES, 7, metric=metric, rows=333)
    assert (found.ids == best(ITEMS[:50], QUERIES, metric, 1) + 50 * np.arange(7)).all()
    assert (found.margin == 0).all()
    assert (truth(items, QUERIES, 30, metric=metric, rows=333).margin > 0).all()


@pytest.mark.parametrize("metric", METRICS)
def test_rows_that_float32_cannot_tell_apart_are_in_the_right_order(metric: str) -> None:
    far = np.full((1, 8), 1000, np.float32)  # what float32 makes of lengths and products is coarser than what is between rows
    items = (far + RNG.integers(-3, 4, (500, 8)) * np.float32(2**-10)).astype(np.float32)
    queries = (far + RNG.integers(-3, 4, (5, 8)) * np.float32(2**-10)).astype(np.float32)
    found = truth(items, queries, 9, metric=metric, rows=200)
    for query, ids in zip(queries, found.ids, strict=True):
        x = [Fraction(float(one)) for one in query]
        y = [[Fraction(float(one)) for one in row] for row in items]
        if metric == "l2":
            exact = [sum((a - b) ** 2 for a, b in zip(x, row, strict=True)) for row in y]
        else:
            exact = [-sum(a * b for a, b in zip(x, row, strict=True)) for row in y]
        if metric == "cosine":  # of positive products, by their squares
            exact = [-(e * e) / sum(b * b for b in row) for e, row in zip(exact, y, strict=True)]
            kth = sorted(exact)[8]
            assert all(abs(exact[one] / kth - 1) < 2**-50 or exact[one] < kth for one in ids)
        else:
            assert [exact[one] for one in ids] == sorted(exact)[:9]
            assert (ids == np.lexsort((np.arange(500), [float(e) for e in exact]))[:9]).all()


def test_sums_are_those_of_exact_arithmetic() -> None:
    terms = RNG.standard_normal((300, 37)) * 10.0 ** RNG.integers(-8, 9, (300, 37))
    terms[:, 20:37] = -terms[:, :17]  # most of it cancels
    exact = [float(sum(map(Fraction, row))) for row in terms]
    assert (np.abs(scores.summed(terms) - exact) <= np.spacing(np.abs(exact))).all()
    assert (terms.sum(axis=1) != exact).mean() > 0.5  # and a plain sum is not


def test_fewer_items_than_asked_for_are_all_of_them() -> None:
    found = truth(ITEMS[:3], QUERIES, 5, metric="l2", rows=2)
    assert (found.ids[:, 3:] == -1).all() and (np.sort(found.ids[:, :3], axis=1) == [0, 1, 2]).all()
    assert np.isinf(found.scores[:, 3:]).all() and np.isinf(found.margin).all()
    nobody = truth(ITEMS, QUERIES[:0], 5)
    assert nobody.ids.shape == (0, 5)


def test_vectors_without_a_length_have_the_cosine_nought() -> None:
    items, queries = ITEMS[:20].copy(), QUERIES[:2].copy()
    items[3], queries[1] = 0, 0
    found = truth(items, queries, 20, metric="cosine")
    assert found.scores[0][found.ids[0] == 3] == 0 and (found.ids[1] == np.arange(20)).all()


@pytest.mark.parametrize(
    ("items", "queries", "options", "error", "said"),
    [
        (ITEMS, QUERIES[:, :5], {}, ShapeError, r"queries has shape \[40, 5\]; expected \[batch, 24\]"),
        (ITEMS.astype(np.float64), QUERIES, {}, DtypeError, "the items are float64; expected float32"),
        (BROKEN, QUERIES, {"rows": 500}, NonFiniteError, "row 1700 of the items holds NaN"),
        (np.float32(3e19) * ITEMS, QUERIES, {"metric": "l2"}, NonFiniteError, r"row \d+ of the items is so long"),
        (ITEMS, QUERIES, {"metric": "hamming"}, OptionError, "metric is 'hamming'; expected one of inner_product, cosine, l2"),
        (ITEMS[:0], QUERIES, {}, ShapeError, "items has 0 rows"),
        (ITEMS, QUERIES, {"out": "truth.csv"}, OptionError, "truth.csv is no name of a table"),
        (__file__, QUERIES, {}, MalformedFileError, "is no table that is known"),
    ],
)
def test_what_is_no_question_is_refused(items: Any, queries: Any, options: Any, error: type[HeadlongError], said: str) -> None:
    with pytest.raises(error, match=said):
        truth(items, queries, **options)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'headlong[arrow]'")
    from pyarrow import parquet

    for name, rows in (("items", ITEMS), ("queries", QUERIES)):
        column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
        parquet.write_table(pa.table({"e": column}), tmp_path / f"{name}.parquet", row_group_size=1100)
    return tmp_path


KILLED = """
import os, signal, sys
from headlong.truth import truth
folder, parts = sys.argv[1], int(sys.argv[2])
def progress(done, total):
    if done >= 900:
        os.kill(os.getpid(), signal.SIGKILL)
names = (folder + "/" + name + ".parquet" for name in ("items", "queries", "truth"))
items, queries, out = names
truth(items, queries, 10, out=out, rows=300, parts=parts, progress=progress)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("parts", [1, 2])
def test_a_killed_run_goes_on_where_it_was(files: Path, parts: int) -> None:
    done = python(KILLED, str(files), str(parts))
    assert done.returncode == -9, done.stderr
    assert not (files / "truth.parquet").exists() and list(files.glob("truth.parquet.part-*"))
    asked = ("items.parquet", "queries.parquet")
    how: dict[str, Any] = {"out": files / "truth.parquet", "rows": 300, "parts": parts}
    with pytest.raises(StoreError, match=r"is of another call \(k 10, not 11\); remove it"):
        truth(*(files / name for name in asked), 11, **how)
    with pytest.raises(StoreError, match=r"is of another call \(queries "):
        truth(files / asked[0], QUERIES + 1, 10, **how)
    steps: list[int] = []
    found = truth(*(files / name for name in asked), 10, **how, progress=lambda done, total: steps.append(done))
    assert steps[0] == 1200 and (found.ids == best(ITEMS, QUERIES, "inner_product", 10)).all()
    assert [path.name for path in files.glob("truth*")] == ["truth.parquet"]


LITTLE = """
import resource, sys
import numpy as np
from headlong.truth import truth
import pathlib
folder = sys.argv[1]
truth((folder + "/items.parquet", "e"), folder + "/queries.parquet", 10, metric="l2")  # all is imported, threads are there
before = int(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
found = truth((folder + "/large.parquet", "e"), folder + "/queries.parquet", 10, rows=int(sys.argv[2]), metric="l2")
after = int(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
print(after - before, found.ids.sum())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_rows_beyond_memory_are_streamed(files: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    count, piece = 400_000, 10_000  # 38 MB
    rows = np.random.default_rng(1).standard_normal((count, 24), np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 24)
    parquet.write_table(pa.table({"e": column}), files / "large.parquet", row_group_size=count)  # one group: still streamed
    first, second = (python(LITTLE, str(files), str(some)) for some in (piece, count))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    (little, ids), (much, same) = (one.stdout.split() for one in (first, second))
    assert ids == same
    told = f"{int(little):,} KiB in pieces, {int(much):,} KiB at once, of {rows.nbytes // 1024:,} KiB"
    assert int(little) * 1024 < rows.nbytes / 2 < int(much) * 1024, told  # and the measure can tell


def test_parts_are_run_by_whatever_calls_a_function(files: Path) -> None:
    calls: list[int] = []

    def run(function: Any, numbers: Any) -> list[Any]:
        calls.extend(numbers)
        return [function(number) for number in reversed(calls)]

    found = truth(files / "items.parquet", QUERIES, 10, parts=4, run=run, metric="l2")
    assert calls == [0, 1, 2, 3] and (found.ids == best(ITEMS, QUERIES, "l2", 10)).all()


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: it is large")
def test_parts_on_a_ray_cluster(files: Path) -> None:
    program = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np, ray
from headlong.integrations.on_ray import on_ray
from headlong.truth import truth
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
found = truth(sys.argv[1] + "/items.parquet", sys.argv[1] + "/queries.parquet", 10, parts=3, run=on_ray, threads=1)
np.save(sys.argv[1] + "/ids.npy", found.ids)
"""
    done = python(program, str(files))
    assert done.returncode == 0, done.stderr[-2000:]
    assert (np.load(files / "ids.npy") == best(ITEMS, QUERIES, "inner_product", 10)).all()


def test_recall_counts_what_was_found_and_what_ties_leave_open(tmp_path: Path) -> None:
    true = Truth(np.array([[1, 2, 3], [4, 5, -1]]), np.array([[3.0, 2.0, 2.0], [1.0, 0.5, -np.inf]]), np.array([0.0, np.inf]))
    found = recall(true, np.array([[1, 9, 9], [5, 4, 7]]))
    assert found.of_each.tolist() == [1 / 3, 1.0] and found.mean == 2 / 3
    assert found.with_ties == (2 / 3 + 1) / 2  # 9 may tie with 2 and 3, and is named twice
    assert recall(true, np.array([[1, 8, 9], [5, 4, 7]])).with_ties == 1.0
    assert recall(true, np.array([[1, 8, 9], [5, 4, 7]]), k=1).mean == 0.5
    assert recall(true, np.array([[2, 3], [4, 5]])).k == 2
    np.save(tmp_path / "ids.npy", np.array([[1, 2, 3], [4, 5, -1]]))
    assert recall(true, tmp_path / "ids.npy").mean == 1
    assert "recall@3 100.0000%; 100.00% of 2 queries" in str(recall(true, true.ids))
    for wrong, error, words in (
        (np.zeros((3, 3), int), ShapeError, "answers to 3 queries, and the truth of 2"),
        (np.zeros(2, int), ShapeError, r"the ids have shape \[2\]"),
        (np.zeros((2, 3)), DtypeError, "the ids are float64"),
    ):
        with pytest.raises(error, match=words):
            recall(true, wrong)
    with pytest.raises(OptionError, match="k is 4; expected a whole number from 1 to 3"):
        recall(true, true.ids, k=4)


def test_the_commands_write_a_truth_and_count_recall(files: Path) -> None:
    from typer.testing import CliRunner

    from headlong.cli.main import app

    def call(*args: object) -> str:
        result = CliRunner().invoke(app, list(map(str, args)))
        assert result.exit_code == 0, result.output
        return result.stdout

    out = files / "truth.parquet"
    asked = ("-k", 12, "--metric", "l2", "-o", out, "--threads", 1)
    told = call("truth", files / "items.parquet:e", files / "queries.parquet", *asked)
    assert "the 12 nearest of 40 queries by l2, proved" in told
    answers = best(ITEMS, QUERIES, "l2", 12)
    answers[0, 0] = answers[0, 1]
    np.save(files / "answers.npy", answers)
    assert json.loads(call("recall", out, files / "answers.npy", "-k", 10, "--json"))["recall"] == pytest.approx(1 - 1 / 400)
    assert "recall@12 100.0000%" in call("recall", out, out)
    np.savez(files / "answers.npz", scores=np.zeros((40, 10)), ids=np.load(files / "answers.npy"))  # as topk -o writes
    told = [call("recall", out, files / f"answers.{kind}", "-k", 10, "--json") for kind in ("npy", "npz")]
    assert told[0] == told[1]
