"""Rivals that search codes of few bits and come as wheels of their own: ids only, approximate. The bias is one coordinate."""

from __future__ import annotations

import json
import math

import numpy as np
from numpy.typing import NDArray

from headlong.bench.rivals.registry import Search, best, searching, with_bias
from headlong.dtypes import Floats
from headlong.layers.matrix import Layer

PROBED, WHOLE, LEAST = 8, 8, 64
"""One list of so many is searched; dimensions of which turbovec takes a multiple, and below which rabitqlib takes none."""


@searching("rabitqlib IVF", "rabitqlib")
def rabitq_lists(layer: Layer, k: int, threads: int) -> Search:
    """sqrt(vocab) lists of codes of 7 bits, an eighth of them searched, as the authors' library keeps inner products."""
    import rabitqlib

    rows = with_bias(layer, LEAST)
    lists = max(1, round(math.sqrt(layer.vocab)))
    means = rabitqlib.RaBitQKMeans(rows.shape[1], lists)
    means.train(rows)
    index = rabitqlib.IvfIndex(rows.shape[1], layer.vocab, lists, 7, metric="ip")
    index.build(rows, means.centroids, means.assignments, num_threads=threads)
    probed = max(1, lists // PROBED)
    reads = f"{probed} of {lists} lists, 7 bits"
    return Search(lambda hidden: index.search(hidden, k, probed, num_threads=threads)[0], reads, LEAST)


@searching("turbovec+refine", "turbovec")
def turbo_codes(layer: Layer, k: int, threads: int) -> Search:
    """4 bits of every coordinate, calibrated on the rows, the best 4 k re-ranked by exact inner products."""
    import turbovec

    rows = with_bias(layer, WHOLE)
    index = turbovec.TurboQuantIndex(dim=rows.shape[1], bit_width=4)
    index.calibrate(np.ascontiguousarray(rows[:: -(-layer.vocab // 10_000)]))
    index.add(rows)
    index.prepare()
    wide = min(4 * k, layer.vocab)

    def ids(hidden: Floats) -> NDArray[np.int64]:
        found = index.search(hidden, wide)[1].astype(np.int64)
        return np.take_along_axis(found, best(np.einsum("bnd,bd->bn", rows[found], hidden), k), axis=1)

    return Search(ids, "all rows in 4 bits, 4 k rows", WHOLE)


@searching("pyvsag HGraph", "pyvsag")
def vsag_graph(layer: Layer, k: int, threads: int) -> Search:
    """VSAG's graph over 8-bit codes with exact re-ranking, 200 neighbours in view when built and max(64, 4 k) when searched."""
    import pyvsag

    pyvsag.set_logger_off()
    rows = with_bias(layer)
    graph = {"base_quantization_type": "sq8", "max_degree": 64, "ef_construction": 200, "build_thread_count": threads}
    graph |= {"use_reorder": True, "precise_quantization_type": "fp32"}
    about = {"dtype": "float32", "metric_type": "ip", "dim": rows.shape[1], "index_param": graph}
    index = pyvsag.Index("hgraph", json.dumps(about))
    index.build(rows.ravel(), np.arange(layer.vocab, dtype=np.int64), layer.vocab, rows.shape[1])
    view = max(64, 4 * k)
    asked = json.dumps({"hgraph": {"ef_search": view}})

    reads = f"the graph over 8-bit codes, efSearch={view}"
    return Search(lambda hidden: [index.knn_search(row, k, asked)[0] for row in hidden], reads)
