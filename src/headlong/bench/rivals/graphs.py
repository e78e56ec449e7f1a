"""Rivals that walk a graph of neighbours: ids only, approximate; the bias is one more coordinate."""

from __future__ import annotations

import numpy as np

from headlong.bench.rivals.registry import Search, searching, with_bias
from headlong.layers.matrix import Layer


def reads(k: int) -> str:
    return f"the graph: M=32, efSearch={max(64, 4 * k)}"


@searching("hnswlib", "hnswlib")
def hnswlib_graph(layer: Layer, k: int, threads: int) -> Search:
    """A graph with M = 32, built with 200 and searched with max(64, 4 k) neighbours in view; ids only, approximate."""
    import hnswlib

    index = hnswlib.Index(space="ip", dim=layer.dim + 1)
    index.init_index(max_elements=layer.vocab, M=32, ef_construction=200, random_seed=0)
    index.set_num_threads(threads)
    index.add_items(with_bias(layer))
    index.set_ef(max(64, 4 * k))

    return Search(lambda hidden: index.knn_query(hidden, k)[0], reads(k), about={"memory": index.index_file_size()})


@searching("faiss HNSW", "faiss")
def faiss_hnsw(layer: Layer, k: int, threads: int) -> Search:
    """The same graph as FAISS builds it, over float32 rows."""
    import faiss

    faiss.omp_set_num_threads(threads)
    index = faiss.IndexHNSWFlat(layer.dim + 1, 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = 200, max(64, 4 * k)
    index.add(with_bias(layer))

    return Search(lambda hidden: index.search(hidden, k)[1], reads(k), about={"memory": len(faiss.serialize_index(index))})


@searching("usearch", "usearch")
def usearch_graph(layer: Layer, k: int, threads: int) -> Search:
    """The same settings in USearch, over float32 rows."""
    from usearch.index import Index

    index = Index(
        ndim=layer.dim + 1, metric="ip", dtype="f32", connectivity=32, expansion_add=200, expansion_search=max(64, 4 * k)
    )
    index.add(np.arange(layer.vocab), with_bias(layer), threads=threads)

    return Search(
        lambda hidden: index.search(hidden, k, threads=threads).keys, reads(k), about={"memory": int(index.memory_usage)}
    )
