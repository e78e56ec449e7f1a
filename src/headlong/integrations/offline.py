"""Score any number of hidden vectors with a saved engine: a Ray Data and a Spark function.

::

    dataset.map_batches(Scorer, fn_constructor_kwargs={"engine": "head.safetensors", "k": 10}, concurrency=2)
    frame.mapInPandas(in_pandas("head.safetensors", k=10), schema=spark_schema(frame.schema))

Both read the column ``hidden`` (a vector in each row) and add ``ids``, ``log_probs``, ``error`` and ``proved``. Workers
map the engine's file, so it is in memory once per machine. Neither Ray nor Spark is imported here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

import headlong
from headlong.arrays import as_numpy, kind_of
from headlong.errors import InputError, named
from headlong.tables import answers, arrow

Columns = dict[str, Any]
ADDED: dict[str, Any] = {
    "ids": {"type": "array", "elementType": "long", "containsNull": True},
    "log_probs": {"type": "array", "elementType": "double", "containsNull": True},
    "error": "double",
    "proved": "boolean",
}
"""The columns that are added, and their types as Spark writes them in JSON."""


class Scorer:
    """``batch -> batch`` with the ``k`` likeliest classes of each row of ``column``; ``engine`` is a path or an engine."""

    def __init__(self, engine: Any, k: int = 10, column: str = "hidden", threads: int | None = None) -> None:
        self.engine = loaded(str(engine), threads) if not hasattr(engine, "topk") else engine
        self.k, self.column = k, column

    def __call__(self, batch: Any) -> Any:
        """A batch of columns, as Ray's ``batch_format="numpy"`` hands it over; of an Arrow table (``"pyarrow"``) a table."""
        if arrow.is_arrow(batch):
            return self._table(batch)
        if not isinstance(batch, Mapping):
            raise InputError(f"the batch is {named(batch)}; expected columns by name, as batch_format='numpy' gives them")
        if self.column not in batch:
            names = ", ".join(map(str, batch)) or "none"
            raise InputError(f"the batch has the columns {names}; expected {self.column!r}, a vector in each row")
        _check_free(batch)
        top = self.engine.topk(vectors(batch[self.column], self.engine.layer.dim, self.column), k=self.k)
        found = {"ids": top.ids, "log_probs": top.log_probs, "error": top.error, "proved": top.proved}
        return {**batch, **found}

    def _table(self, given: Any) -> Any:
        """The table and what is added; its vectors are not copied."""
        table = arrow.as_table(given, "the batch")
        names = ", ".join(table.column_names) or "none"
        if self.column not in table.column_names:
            raise InputError(f"the batch has the columns {names}; expected {self.column!r}, a vector in each row")
        _check_free(table.column_names)
        top = self.engine.topk(arrow.vectors(table, self.column, "the batch"), k=self.k)
        added = answers.table(top)
        for name in ADDED:
            table = table.append_column(name, added.column(name))
        return table


def in_pandas(engine: str, k: int = 10, column: str = "hidden", threads: int = 1) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for Spark's ``mapInPandas``: lists in the columns ``ids`` and ``log_probs``."""

    def scored(frames: Iterator[Any]) -> Iterator[Any]:
        scorer = Scorer(engine, k, column, threads)
        for frame in frames:
            found = scorer({name: frame[name] for name in frame.columns})
            yield frame.assign(
                ids=list(found["ids"]), log_probs=list(found["log_probs"]), error=found["error"], proved=found["proved"]
            )

    return scored


def spark_schema(schema: Any) -> Any:
    """``schema``, a ``StructType``, with what :func:`in_pandas` adds."""
    fields = schema.jsonValue()["fields"]
    _check_free(field["name"] for field in fields)
    for field in schema.fields:
        if field.dataType.simpleString() == "vector":
            raise InputError(
                f"the column {field.name!r} holds ml.Vectors, which Spark does not hand to pandas; make it an array first: "
                f"withColumn({field.name!r}, pyspark.ml.functions.vector_to_array({field.name!r}))"
            )
    added = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in ADDED.items()]
    return type(schema).fromJson({"type": "struct", "fields": [*fields, *added]})


def _check_free(names: Iterable[Any]) -> None:
    taken = [name for name in names if name in ADDED]
    if taken:
        raise InputError(f"there is a column {taken[0]!r} already; rename it: {', '.join(ADDED)} are added")


def vectors(column: Any, dim: int, name: str) -> Any:
    """``[n, dim]`` float32 of a column with a vector in each row; InputError names the first row that holds none.

    A row may be an array, a list, or an object with ``toArray`` (``ml.Vector``).
    """
    try:
        rows = np.empty((len(column), dim), np.float32)
    except Exception as error:  # an object's own __len__ may raise anything
        raise InputError(f"the column {name!r} is {named(column)}; expected a vector in each row") from error
    for place, value in enumerate(column):
        if value is None or (isinstance(value, (float, np.floating)) and np.isnan(value)):
            raise InputError(f"row {place} of the batch has no {name!r} (null); drop or fill such rows before scoring")
        given = value.toArray() if hasattr(value, "toArray") else value
        try:
            vector = np.asarray(as_numpy(given, name) if kind_of(given) == "torch" else given, np.float32)
        except Exception as error:  # an object's own __array__ may raise anything
            found = f"row {place:,} of the batch has {named(value)} in {name!r}"
            raise InputError(f"{found}; expected {dim:,} numbers: {error}") from error
        if vector.shape != (dim,):
            raise InputError(f"row {place} of the batch has {name!r} of shape {list(vector.shape)}; expected {dim:,} numbers")
        if not np.isfinite(vector).all():
            raise InputError(f"row {place} of the batch has NaN or infinity in {name!r}; drop or repair it before scoring")
        rows[place] = vector
    return rows


@functools.lru_cache(maxsize=4)
def loaded(path: str, threads: int | None) -> Any:
    """One engine for each file and process."""
    engine = headlong.load(path, threads=threads)
    if not hasattr(engine, "topk"):
        raise InputError(f"{path} holds {engine!r}; expected an engine: compile the layer and save the engine")
    return engine
