"""Rivals that search codes of few bits and come as wheels of their own: ids only, approximate. The bias is one coordinate."""

from __future__ import annotations

import json
import math
from functools import partial

import numpy as np

from headlong.bench.measure import Contestant
from headlong.bench.rivals.registry import Found, best, rival, with_bias, with_one
from headlong.dtypes import Floats
from headlong.layers.matrix import Layer

PROBED, WHOLE, LEAST = 8, 8, 64
"""One list of so many is searched; dimensions of which turbovec takes a multiple, and below which rabitqlib takes none."""


@rival("rabitqlib IVF", "rabitqlib")
def rabitq_lists(layer: Layer, k: int, threads: int) -> Contestant:
    """sqrt(vocab) lists of codes of 7 bits, an eighth of them searched, as the authors' library keeps inner products."""
    import rabitqlib

    rows = with_bias(layer, LEAST)
    lists = max(1, round(math.sqrt(layer.vocab)))
    means = rabitqlib.RaBitQKMeans(rows.shape[1], lists)
    means.train(rows)
    index = rabitqlib.IvfIndex(rows.shape[1], layer.vocab, lists, 7, metric="ip")
    index.build(rows, means.centroids, means.assignments, num_threads=threads)
    probed = max(1, lists // PROBED)
    about = {"reads": f"{probed} of {lists} lists, 7 bits"}

    def call(hidden: Floats) -> Found:
        return Found(index.search(hidden, k, probed, num_threads=threads)[0].astype(np.int64), None)

    return Contestant("rabitqlib IVF", call, partial(with_one, multiple=LEAST), about=about)


@rival("turbovec+refine", "turbovec")
def turbo_codes(layer: Layer, k: int, threads: int) -> Contestant:
    """4 bits of every coordinate, calibrated on the rows, the best 4 k re-ranked by exact inner products."""
    import turbovec

    rows = with_bias(layer, WHOLE)
    index = turbovec.TurboQuantIndex(dim=rows.shape[1], bit_width=4)
    index.calibrate(np.ascontiguousarray(rows[:: -(-layer.vocab // 10_000)]))
    index.add(rows)
    index.prepare()
    wide = min(4 * k, layer.vocab)

    def call(hidden: Floats) -> Found:
        found = index.search(hidden, wide)[1].astype(np.int64)
        order = best(np.einsum("bnd,bd->bn", rows[found], hidden), k)
        return Found(np.take_along_axis(found, order, axis=1), None)

    about = {"reads": "all rows in 4 bits, 4 k rows"}
    return Contestant("turbovec+refine", call, partial(with_one, multiple=WHOLE), about=about)


@rival("pyvsag HGraph", "pyvsag")
def vsag_graph(layer: Layer, k: int, threads: int) -> Contestant:
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

    def call(hidden: Floats) -> Found:
        return Found(np.stack([np.asarray(index.knn_search(row, k, asked)[0], np.int64) for row in hidden]), None)

    return Contestant("pyvsag HGraph", call, with_one, about={"reads": f"the graph over 8-bit codes, efSearch={view}"})
