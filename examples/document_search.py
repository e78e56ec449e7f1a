"""Exact search inside three clients of FAISS: headlong's index in the place of theirs, and the same answers.

python examples/document_search.py [langchain] [sentence_transformers] [datasets]
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from headlong.integrations.faiss import IndexFlatIP

DIM, K = 32, 5
Found = list[list[int]]


def langchain(documents: Any, queries: Any) -> Found:
    """LangChain's store: its index is ours. Such a store is saved by ``write_index(store.index, path)``, not ``save_local``."""
    from langchain_community.docstore.in_memory import InMemoryDocstore
    from langchain_community.vectorstores import FAISS
    from langchain_community.vectorstores.utils import DistanceStrategy
    from langchain_core.embeddings.fake import DeterministicFakeEmbedding

    of = DeterministicFakeEmbedding(size=DIM)  # your model here
    how = DistanceStrategy.MAX_INNER_PRODUCT
    store = FAISS(of, IndexFlatIP(DIM), InMemoryDocstore(), {}, distance_strategy=how)
    names = [f"document {i}" for i in range(len(documents))]
    store.add_embeddings(list(zip(names, documents.tolist(), strict=True)), ids=names)
    found = [store.similarity_search_by_vector(query, K) for query in queries.tolist()]
    return [[int(one.page_content.split()[1]) for one in each] for each in found]


def sentence_transformers(documents: Any, queries: Any) -> Found:
    """``semantic_search_faiss`` with an index that stays from call to call."""
    from sentence_transformers.util.quantization import semantic_search_faiss

    index = IndexFlatIP(DIM)
    index.add(documents)
    hits = semantic_search_faiss(queries, corpus_index=index, top_k=K, rescore=False)[0]
    return [[int(hit["corpus_id"]) for hit in each] for each in hits]


def datasets(documents: Any, queries: Any) -> Found:
    """A column of a dataset, indexed by ``custom_index``."""
    from datasets import Dataset

    rows = Dataset.from_dict({"name": list(range(len(documents))), "embedding": documents.tolist()}).with_format("numpy")
    rows.add_faiss_index("embedding", custom_index=IndexFlatIP(DIM))
    return [rows.get_nearest_examples("embedding", query, K)[1]["name"].tolist() for query in queries]


CLIENTS: dict[str, Callable[[Any, Any], Found]] = {
    "langchain": langchain,
    "sentence_transformers": sentence_transformers,
    "datasets": datasets,
}


def main(*names: str) -> None:
    """Each client's answers are those of all products, sorted."""
    rng = np.random.default_rng(0)
    documents, queries = (rng.standard_normal((n, DIM)).astype(np.float32) for n in (3000, 4))
    best = np.argsort(-(queries.astype(float) @ documents.astype(float).T), axis=1)[:, :K].tolist()
    for name in names or CLIENTS:
        assert CLIENTS[name](documents, queries) == best, name
        print(f"{name}: the {K} best of {len(documents):,} documents for each of {len(queries)} queries, as by all products")


if __name__ == "__main__":
    main(*sys.argv[1:])
