"""Columns that hold no vectors, through Ray and Spark themselves: prints the last line of what each job fails with.

python tests/helpers/offline_clients.py ray|spark ENGINE
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from headlong.integrations.offline import Scorer, in_pandas, spark_schema

VECTOR = [0.5] * 8
FAULTS: dict[str, dict[str, Any]] = {
    "a missing column": {"vector": VECTOR},
    "a null": {"hidden": None},
    "a short vector": {"hidden": VECTOR[:5]},
}


def failure(call: Callable[[], Any]) -> str:
    """The line of the error that names headlong's."""
    try:
        call()
    except Exception as error:  # whatever the client makes of ours
        lines = [line for line in f"{type(error).__name__}: {error}".splitlines() if "InputError: " in line]
        return lines[-1] if lines else str(error)
    return "no error"


def with_ray(engine: str) -> None:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    for name, row in FAULTS.items():
        rows = ray.data.from_items([row], override_num_blocks=1)
        scored = rows.map_batches(Scorer, fn_constructor_kwargs={"engine": engine, "k": 3, "threads": 1}, concurrency=1)
        sys.stdout.write(f"{name}: {failure(scored.take_all)}\n")
    ray.shutdown()


def with_spark(engine: str) -> None:
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import Vectors
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def scored(frame: Any) -> list[Any]:
        return list(frame.mapInPandas(in_pandas(engine, k=3), schema=spark_schema(frame.schema)).collect())

    for name, row in FAULTS.items():
        frame = spark.createDataFrame([tuple(row.values())], f"{next(iter(row))} array<float>")
        sys.stdout.write(f"{name}: {failure(lambda frame=frame: scored(frame))}\n")
    dense = spark.createDataFrame([(Vectors.dense(VECTOR),)], ["hidden"])
    sys.stdout.write(f"an ml.Vector: {failure(lambda: scored(dense))}\n")
    (answer,) = scored(dense.withColumn("hidden", vector_to_array("hidden")))
    sys.stdout.write(f"as it was told: {np.array(answer['ids']).tolist()}\n")
    spark.stop()


if __name__ == "__main__":
    {"ray": with_ray, "spark": with_spark}[sys.argv[1]](sys.argv[2])
