"""Rivals that search inner products with FAISS and ScaNN: ids only, most of them approximate.

The bias is one more coordinate of every row, whose half in the query is 1. A search index knows no normaliser, so
``log_probs`` is None and the reports say so. Candidates that codes find are re-ranked by exact inner products (refine).
Codes and Panorama get rows of a multiple of 16 dimensions, zeros behind the bias: at 513 FAISS leaves its vector instructions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headlong.bench.rivals.registry import Search, searching, with_bias
from headlong.dtypes import Floats
from headlong.layers.matrix import Layer

WHOLE = 16
"""Dimensions of a row of codes are a multiple of this."""


def _faiss(index: Any, layer: Layer, k: int, threads: int, reads: str, multiple: int = 1) -> Search:
    """Trained and filled; rows are padded to a ``multiple`` of dimensions."""
    import faiss

    faiss.omp_set_num_threads(threads)
    rows = with_bias(layer, multiple)
    if not index.is_trained:
        index.train(rows)
    index.add(rows)
    return Search(lambda hidden: index.search(hidden, k)[1], reads, multiple, {"memory": len(faiss.serialize_index(index))})


@searching("faiss flat", "faiss")
def faiss_flat(layer: Layer, k: int, threads: int) -> Search:
    """``IndexFlatIP``: every inner product in float32."""
    import faiss

    found = _faiss(faiss.IndexFlatIP(layer.dim + 1), layer, k, threads, "all rows, float32")
    return found._replace(about={**found.about, "bytes": 4 * layer.vocab * (layer.dim + 1)})


@searching("faiss Panorama", "faiss")
def faiss_panorama(layer: Layer, k: int, threads: int) -> Search:
    """``IndexFlatIPPanorama`` behind a rotation into principal directions: exact, reading coordinates level by level. The
    rotation is that of the second moments: FAISS's ``PCAMatrix`` takes the mean off, which changes inner products."""
    import faiss

    rows = with_bias(layer, WHOLE)
    dim = rows.shape[1]
    directions = np.linalg.eigh(rows.T.astype(np.float64) @ rows)[1][:, ::-1].T
    turn = faiss.LinearTransform(dim, dim, False)
    faiss.copy_array_to_vector(np.ascontiguousarray(directions, np.float32).ravel(), turn.A)
    turn.is_trained = True
    index = faiss.IndexPreTransform(turn, faiss.IndexFlatIPPanorama(dim, 8))
    reads = "all rows, 8 levels of coordinates in principal directions"
    return _faiss(index, layer, k, threads, reads, WHOLE)


@searching("faiss SQ8+refine", "faiss")
def faiss_sq8(layer: Layer, k: int, threads: int) -> Search:
    """8-bit scalar codes of every row, the best 4 k re-ranked."""
    import faiss

    dim = layer.dim + 1 + -(layer.dim + 1) % WHOLE
    codes = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    index = faiss.IndexRefineFlat(codes)
    index.k_factor = 4
    return _faiss(index, layer, k, threads, "all rows in 8 bits, 4 k rows", WHOLE)


@searching("faiss RaBitQ+refine", "faiss")
def faiss_rabitq(layer: Layer, k: int, threads: int) -> Search:
    """One bit a coordinate behind a random rotation, queries in 8 bits, the best 40 k re-ranked."""
    import faiss

    dim = layer.dim + 1
    codes = faiss.IndexRaBitQ(dim, faiss.METRIC_INNER_PRODUCT)
    codes.qb = 8
    rotated = faiss.IndexPreTransform(faiss.RandomRotationMatrix(dim, dim), codes)
    index = faiss.IndexRefineFlat(rotated)
    index.k_factor = 40
    return _faiss(index, layer, k, threads, "all rows in 1 bit, 40 k rows")


@searching("faiss IVF", "faiss")
def faiss_ivf(layer: Layer, k: int, threads: int) -> Search:
    """sqrt(vocab) lists of float32 rows, an eighth of them searched."""
    import faiss

    lists = max(1, round(math.sqrt(layer.vocab)))
    coarse = faiss.IndexFlatIP(layer.dim + 1)
    index = faiss.IndexIVFFlat(coarse, layer.dim + 1, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.niter = 10
    index.nprobe = max(1, lists // 8)
    reads = f"{index.nprobe} of {lists} lists, float32"
    return _faiss(index, layer, k, threads, reads)


@searching("scann", "scann")
def scann_tree(layer: Layer, k: int, threads: int) -> Search:
    """A tree of sqrt(vocab) leaves, an eighth searched in anisotropic codes, the best 20 k re-ranked."""
    import scann

    rows = with_bias(layer)
    leaves = max(1, round(math.sqrt(layer.vocab)))
    builder = scann.scann_ops_pybind.builder(rows, k, "dot_product").set_n_training_threads(threads)
    tree = builder.tree(leaves, max(1, leaves // 8), training_sample_size=len(rows))
    index = tree.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(20 * k).build()
    index.set_num_threads(threads)

    def ids(hidden: Floats) -> Any:
        return index.search(hidden[0])[0] if len(hidden) == 1 else index.search_batched_parallel(hidden)[0]

    return Search(ids, f"{max(1, leaves // 8)} of {leaves} leaves, {20 * k} rows")
