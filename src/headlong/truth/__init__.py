"""Ground truth of a search, proved and streamed, and the recall of others' answers against it.

::

    found = truth("items.parquet", "queries.parquet", k=100, metric="l2", out="truth.parquet")     ids, scores, margin
    recall("truth.parquet", "answers.parquet", k=10).mean
"""

from headlong.truth.recall import Recall, recall
from headlong.truth.search import Truth, read_truth, truth

__all__ = ["Recall", "Truth", "read_truth", "recall", "truth"]
