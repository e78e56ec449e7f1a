"""Score hidden vectors with Spark on this machine (Java 17).

pip install pyspark pandas pyarrow; python examples/spark_scoring.py
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

import headlong as hl
from headlong.integrations.offline import in_pandas, spark_schema

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers are this Python, with these packages


def main(rows: int = 500) -> None:
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((rows, 64)).astype(np.float32)
    engine = hl.compile(hl.Layer(rng.standard_normal((20_000, 64)).astype(np.float32)), delta=0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "head.safetensors")
        engine.save(path)
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        items = [(index, vector.tolist()) for index, vector in enumerate(hidden)]
        frame = spark.createDataFrame(items, "row bigint, hidden array<float>")
        found = frame.mapInPandas(in_pandas(path, k=3), schema=spark_schema(frame.schema)).orderBy("row").collect()
        spark.stop()
    ids = np.array([item["ids"] for item in found])
    assert (ids == engine.topk(hidden, 3).ids).all()
    print(f"{len(ids)} rows, the ids of a local engine; the first: {ids[0].tolist()}")


if __name__ == "__main__":
    main()
