"""What ``headlong topk`` answers a block of queries with: an engine, or the nearest items by a metric."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headlong.errors import OptionError
from headlong.integrations.faiss.index import IndexFlat
from headlong.layers.matrix import Layer
from headlong.links import Affine
from headlong.store import replacing

METRICS = {"ip": "inner_product", "inner_product": "inner_product", "cosine": "cosine", "l2": "l2"}
SCORES = {"inner_product": "inner product", "cosine": "cosine", "l2": "squared distance"}
ARRAYS = ".npz"


def metric_of(text: str) -> str:
    """The metric by its name, or as vector stores call it."""
    if text not in METRICS:
        raise OptionError(f"metric is {text!r}; choose from {', '.join(METRICS)}")
    return METRICS[text]


def nearest(layer: Layer, metric: str, threads: int) -> Callable[[Any, int], dict[str, Any]]:
    """``ids`` and ``scores`` of the nearest rows of a layer that is a matrix alone, proved."""
    if layer.bias is not None or layer.link != Affine():
        raise OptionError(f"{layer!r} has more than a matrix, which a metric is not of; leave --metric out")
    index = IndexFlat(layer.dim, metric, threads=threads)
    index.add(np.asarray(layer.weight, np.float32))

    def ask(rows: Any, k: int) -> dict[str, Any]:
        scores, ids = index.search(np.asarray(rows, np.float32), k)
        return {"ids": ids, "scores": scores}

    return ask


def write_arrays(path: Path, parts: list[dict[str, Any]]) -> None:
    """The blocks one behind the other, an array for each field, all of the file or the one that was there."""
    with replacing(path) as file:
        arrays: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        np.savez(file, **arrays)
