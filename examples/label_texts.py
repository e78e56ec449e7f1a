"""The likeliest of 20,000 labels for texts: TF-IDF, any linear classifier, and no [texts, labels] matrix.

python examples/label_texts.py
"""

import time
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline

from headlong.integrations.sklearn import TopKClassifier


def texts(labels: int, each: int, rng: np.random.Generator) -> tuple[list[str], Any]:
    """Each label has three words of its own among 1,000, and every text twelve words."""
    own = rng.integers(0, 1000, (labels, 3))
    chosen = np.tile(np.arange(labels), each)
    words = np.concatenate([own[chosen], (1000 * rng.random((len(chosen), 9)) ** 3).astype(int)], axis=1)
    return [" ".join(f"word{number}" for number in row) for row in words], np.array([f"label {one}" for one in chosen])


def main(labels: int = 20_000, each: int = 2, asked: int = 512, k: int = 5) -> float:
    """The share of texts whose label is among the k; labels are compared with all distances."""
    rng = np.random.default_rng(0)
    train, y = texts(labels, each, rng)
    print(f"fitting {labels:,} labels, about a millisecond each", flush=True)
    pipeline = make_pipeline(TfidfVectorizer(), NearestCentroid()).fit(train, y)
    model = TopKClassifier.of(pipeline)  # reads texts, as the pipeline does
    some = rng.integers(0, len(train), asked)
    questions, truth = [train[one] for one in some], y[some]
    began = time.perf_counter()
    _, best = model.predict_topk(questions, k)
    ours = time.perf_counter() - began
    began = time.perf_counter()
    centroids = pipeline[-1].centroids_
    scores = 2 * (pipeline[0].transform(questions) @ centroids.T) - (centroids**2).sum(axis=1)
    dense = np.argpartition(-scores, k, axis=1)[:, :k]
    theirs = time.perf_counter() - began
    places = np.searchsorted(pipeline.classes_, best)
    lowest = np.take_along_axis(scores, dense, axis=1).min(axis=1)
    assert (np.take_along_axis(scores, places, axis=1).min(axis=1) >= lowest - 1e-9).all()
    found = float((best == truth[:, None]).any(axis=1).mean())
    print(f"{labels:,} labels: {1e3 * ours / asked:.2f} ms a text, all scores and argpartition {1e3 * theirs / asked:.2f}")
    print(f"the label is among the {k} best for {found:.1%} of {asked:,} texts")
    return found


if __name__ == "__main__":
    main()
