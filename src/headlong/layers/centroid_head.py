"""The centroid head of recent drafters, as their checkpoints hold it::

    masked_embedding.centroids.weight   [C, dim]     which clusters: the ``centroid_intermediate_top_k`` best <centroid, hidden>
    masked_embedding.token_ordering     [vocab]      vocab / C ids a cluster, in order
    config.json                         num_centroids, centroid_intermediate_top_k
    lm_head.weight                      [vocab, dim] the rows, in the order of their ids

Read as a :class:`ScreenLayer`, and written from one whose clusters are disjoint and of equal size, so that a cluster made
here serves where those checkpoints are served. Inside a cluster ids are sorted: their order means nothing to the head.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from headlong.errors import MalformedFileError, OptionError
from headlong.layers.checkpoint import Checkpoint
from headlong.layers.matrix import Layer
from headlong.layers.screens import ScreenLayer
from headlong.store import replacing, write_file

CENTROIDS, ORDERING = "masked_embedding.centroids.weight", "masked_embedding.token_ordering"
COUNT, TOP = "num_centroids", "centroid_intermediate_top_k"
MODEL = "model.safetensors"


def read_centroid_head(path: str | os.PathLike[str], weight: str = "lm_head.weight") -> ScreenLayer:
    """The screen in a checkpoint's folder (or file, or index), with its own rows."""
    checkpoint = Checkpoint(path)
    rows = Layer.load(path, weight=weight)
    centroids, order = (checkpoint.read(name) for name in (CENTROIDS, ORDERING))
    config = checkpoint.config()
    probes = config.get(TOP)
    if centroids.ndim != 2 or order.shape != (rows.vocab,) or order.dtype.kind not in "iu" or rows.vocab % len(centroids):
        raise MalformedFileError(
            f"{checkpoint.name}: {CENTROIDS} is {list(centroids.shape)} and {ORDERING} {list(order.shape)}; expected "
            f"[clusters, {rows.dim}] and [{rows.vocab}], with as many ids in every cluster"
        )
    if type(probes) is not int or config.get(COUNT, len(centroids)) != len(centroids):
        raise MalformedFileError(
            f"{checkpoint.name}: config.json says {COUNT}={config.get(COUNT)!r}, {TOP}={probes!r}; expected {len(centroids)} "
            "and a number"
        )
    ids = np.sort(order.astype(np.int64).reshape(len(centroids), -1), axis=1).ravel()
    if len(np.unique(ids)) != rows.vocab:
        raise MalformedFileError(f"{checkpoint.name}: {ORDERING} names a class twice; expected a permutation of all classes")
    wide = np.concatenate([centroids.astype(np.float32), np.zeros((len(centroids), 1), np.float32)], axis=1)
    starts = np.arange(len(centroids) + 1) * (rows.vocab // len(centroids))
    return ScreenLayer(rows, wide, ids, starts, probes)


def write_centroid_head(screen: ScreenLayer, folder: str | os.PathLike[str]) -> None:
    """``model.safetensors`` and ``config.json`` in that layout."""
    if len(set(screen.sizes.tolist())) != 1 or len(screen.ids) != screen.vocab or len(np.unique(screen.ids)) != screen.vocab:
        raise OptionError(
            f"the layout holds disjoint clusters of equal size; this screen has {screen.clusters} of {screen.sizes.min()} to "
            f"{screen.sizes.max()} classes: build equal clusters whose number divides {screen.vocab}"
        )
    if screen.centroids[:, -1].any() or screen.rows.bias is not None:
        raise OptionError("the layout has no bias; build the screen from a layer without one")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    tensors = {
        CENTROIDS: np.ascontiguousarray(screen.centroids[:, :-1]), ORDERING: screen.ids, "lm_head.weight": screen.rows.weight
    }  # fmt: skip
    write_file(target / MODEL, tensors, {"format": "pt"})
    config = {COUNT: screen.clusters, TOP: screen.probes, "vocab_size": screen.vocab, "hidden_size": screen.dim}
    with replacing(target / "config.json") as file:
        file.write(json.dumps(config, indent=1).encode())
