"""Others that answer the same question, as contestants of the benchmark."""

from headlong.bench.rivals import clusters, codes, dense, graphs, vector_search
from headlong.bench.rivals.registry import RIVALS, Found, Rival, contestant, installed, rival

__all__ = [
    "RIVALS", "Found", "Rival", "clusters", "codes", "contestant", "dense", "graphs", "installed", "rival", "vector_search",
]  # fmt: skip
