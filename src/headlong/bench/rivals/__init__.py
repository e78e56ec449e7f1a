"""Others that answer the same question, as contestants of the benchmark."""

from headlong.bench.rivals import clusters, codes, dense, graphs, vector_search
from headlong.bench.rivals.registry import RIVALS, Found, Rival, contestant, installed, rival

DENSE = (
    "torch fp32", "torch bf16", "torch int8", "torch int8 dynamic", "torch compiled fp32", "torch compiled bf16", "numpy fp32",
)  # fmt: skip
"""Plain products over all rows; speed is said as so many times that of the fastest of them, and of those of few bits."""
FEW_BITS = ("torch int4", "onnxruntime int4, blocks of 32", "onnxruntime int4, blocks of 128", "onnxruntime int8, blocks of 32")
"""Those that heads of language models are read by where bytes decide; other layers are timed without them."""


def dense_installed() -> list[str]:
    """Those that can be timed here: a run without one of them has no fastest."""
    return [name for name in (*DENSE, *FEW_BITS) if RIVALS[name].installed()]


__all__ = [
    "DENSE", "FEW_BITS", "RIVALS", "Found", "Rival", "clusters", "codes", "contestant", "dense", "dense_installed", "graphs",
    "installed", "rival", "vector_search",
]  # fmt: skip
