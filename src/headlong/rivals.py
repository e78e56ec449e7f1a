"""The other ways to answer the same question, as thin as their documentation shows them.

::

    found = contestant.answer(contestant.call(contestant.prepare(hidden)))     # Found(ids [batch, k], log_probs or None)

One function each, registered with the packages it needs; packages are imported only when their rival is built. All get
the same weights, the same ``k`` and the same number of threads. Searches by inner product take the bias as one more
coordinate of every row (the query's is 1) and give ids only: a search index knows no normaliser, so ``log_probs`` is
None and the reports say so. Rivals are measured, never wrapped as engines.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.errors import MissingPackageError
from headlong.layers.matrix import Layer
from headlong.measure import Contestant

Floats = NDArray[np.float32]
Build = Callable[[Layer, int, int], Contestant]


class Found(NamedTuple):
    """What a rival answers; ``log_probs`` is None where it has none."""

    ids: NDArray[np.int64]
    log_probs: NDArray[np.float64] | None


class Rival(NamedTuple):
    """``build(layer, k, threads)`` once its ``packages`` are installed."""

    name: str
    packages: tuple[str, ...]
    build: Build

    def installed(self) -> bool:
        return all(importlib.util.find_spec(package) is not None for package in self.packages)


RIVALS: dict[str, Rival] = {}


def rival(name: str, *packages: str) -> Callable[[Build], Build]:
    """Registers ``build`` under ``name``."""

    def register(build: Build) -> Build:
        RIVALS[name] = Rival(name, packages, build)
        return build

    return register


def contestant(name: str, layer: Layer, k: int, threads: int) -> Contestant:
    """The rival of that name, built for ``layer``."""
    if not RIVALS[name].installed():
        needed = " and ".join(RIVALS[name].packages)
        raise MissingPackageError(f"{name} needs {needed}, which is not installed: pip install 'headlong[bench]'")
    return RIVALS[name].build(layer, k, threads)


def installed() -> list[str]:
    """The names of the rivals that can be built here."""
    return [name for name, entry in RIVALS.items() if entry.installed()]


def _matrix(layer: Layer) -> Floats:
    return np.ascontiguousarray(layer.weight, np.float32)


def _bias(layer: Layer) -> Floats:
    return np.zeros(layer.vocab, np.float32) if layer.bias is None else np.asarray(layer.bias)


def _linked(layer: Layer, logits: Any, tanh: Callable[[Any], Any]) -> Any:
    """``link(z)`` in whatever arithmetic ``logits`` has."""
    kind, first, second, *table = layer.link.lowered()
    if table:
        f = np.asarray(layer.link(np.asarray(logits)), np.float32)
        return f if isinstance(logits, np.ndarray) else logits.new_tensor(f)
    if kind == "softcap":
        return first * tanh(logits / first)
    return logits if (first, second) == (1.0, 0.0) else logits * first + second


@rival("numpy fp32")
def numpy_fp32(layer: Layer, k: int, threads: int) -> Contestant:
    """``z = hidden @ weight.T + bias``, ``argpartition``, ``logsumexp``. Its threads are BLAS's: see ``claim_threads``."""
    weight, bias = _matrix(layer), _bias(layer)

    def call(hidden: Floats) -> Found:
        z = _linked(layer, hidden @ weight.T + bias, np.tanh)
        ids = np.argpartition(z, z.shape[1] - k, axis=1)[:, z.shape[1] - k :]
        best = np.take_along_axis(z, ids, 1)
        order = np.argsort(-best, axis=1)
        best = np.take_along_axis(best, order, 1)
        lse = np.log(np.exp(z - best[:, :1]).sum(1)) + best[:, 0]
        return Found(np.take_along_axis(ids, order, 1), best - lse[:, None])

    return Contestant("numpy fp32", call, _float32, about={"reads": "all rows, float32", "bytes": 4 * layer.vocab * layer.dim})


def _float32(hidden: Any) -> Floats:
    return np.ascontiguousarray(hidden, np.float32)


def _torch(name: str, dtype: str, layer: Layer, k: int, threads: int) -> Contestant:
    import torch

    torch.set_num_threads(threads)
    kind = getattr(torch, dtype)
    # copies: torch warns about memory that it may not write to
    weight, bias = torch.from_numpy(_matrix(layer).copy()).to(kind), torch.from_numpy(_bias(layer).copy()).to(kind)

    @torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]
    def call(hidden: Any) -> tuple[Any, Any]:
        z = _linked(layer, torch.nn.functional.linear(hidden, weight, bias), torch.tanh)
        values, ids = z.topk(k)
        return ids, values - z.logsumexp(1, keepdim=True)

    def prepare(hidden: Any) -> Any:
        return torch.from_numpy(np.array(hidden, np.float32)).to(kind)

    def answer(result: tuple[Any, Any]) -> Found:
        return Found(result[0].numpy(), result[1].double().numpy())

    return Contestant(name, call, prepare, answer, {"reads": f"all rows, {dtype}", "bytes": weight.numel() * weight.itemsize})


@rival("torch fp32", "torch")
def torch_fp32(layer: Layer, k: int, threads: int) -> Contestant:
    """``z = linear(hidden, weight, bias)``, ``z.topk(k)``, ``z.logsumexp(1)`` in float32."""
    return _torch("torch fp32", "float32", layer, k, threads)


@rival("torch bf16", "torch")
def torch_bf16(layer: Layer, k: int, threads: int) -> Contestant:
    """The same with weights, bias, hidden and logits in bfloat16."""
    return _torch("torch bf16", "bfloat16", layer, k, threads)


def _with_bias(layer: Layer) -> Floats:
    """``[weight, bias]``: the bias as one more coordinate, whose half in the query is 1."""
    return np.ascontiguousarray(np.column_stack([_matrix(layer), _bias(layer)]))


def _with_one(hidden: Any) -> Floats:
    return np.ascontiguousarray(np.column_stack([_float32(hidden), np.ones(len(hidden), np.float32)]))


@rival("faiss flat", "faiss")
def faiss_flat(layer: Layer, k: int, threads: int) -> Contestant:
    """``IndexFlatIP``: every inner product in float32, ids only."""
    import faiss

    faiss.omp_set_num_threads(threads)
    index = faiss.IndexFlatIP(layer.dim + 1)
    index.add(_with_bias(layer))

    def call(hidden: Floats) -> Found:
        return Found(index.search(hidden, k)[1], None)

    return Contestant(
        "faiss flat", call, _with_one, about={"reads": "all rows, float32", "bytes": 4 * layer.vocab * (layer.dim + 1)}
    )


@rival("hnswlib", "hnswlib")
def hnswlib_graph(layer: Layer, k: int, threads: int) -> Contestant:
    """A graph with M = 32, built with 200 and searched with max(64, 4 k) neighbours in view; ids only, approximate."""
    import hnswlib

    index = hnswlib.Index(space="ip", dim=layer.dim + 1)
    index.init_index(max_elements=layer.vocab, M=32, ef_construction=200, random_seed=0)
    index.set_num_threads(threads)
    index.add_items(_with_bias(layer))
    index.set_ef(max(64, 4 * k))

    def call(hidden: Floats) -> Found:
        return Found(index.knn_query(hidden, k)[0].astype(np.int64), None)

    about = {"reads": f"the graph: M=32, efSearch={max(64, 4 * k)}"}
    return Contestant("hnswlib", call, _with_one, about=about)
