"""Rivals that read every row: NumPy and PyTorch, in float32, bfloat16 and int8 weights.

::

    z = hidden @ weight.T + bias ;  ids = topk(link(z)) ;  log_probs = link(z)[ids] - logsumexp(link(z))
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from headlong.bench.measure import Contestant
from headlong.bench.rivals.registry import Found, bias_of, float32, matrix, rival
from headlong.dtypes import Floats
from headlong.layers.matrix import Layer


def linked(layer: Layer, logits: Any, tanh: Callable[[Any], Any]) -> Any:
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
    weight, bias = matrix(layer), bias_of(layer)

    def call(hidden: Floats) -> Found:
        z = linked(layer, hidden @ weight.T + bias, np.tanh)
        ids = np.argpartition(z, z.shape[1] - k, axis=1)[:, z.shape[1] - k :]
        best = np.take_along_axis(z, ids, 1)
        order = np.argsort(-best, axis=1)
        best = np.take_along_axis(best, order, 1)
        lse = np.log(np.exp(z - best[:, :1]).sum(1)) + best[:, 0]
        return Found(np.take_along_axis(ids, order, 1), best - lse[:, None])

    return Contestant("numpy fp32", call, float32, about={"reads": "all rows, float32", "bytes": 4 * layer.vocab * layer.dim})


def best(z: Any, k: int) -> tuple[Any, Any]:
    """Ids and log-probabilities of the k best of torch's logits."""
    values, ids = z.topk(k)
    return ids, values - z.logsumexp(1, keepdim=True)


def found(result: tuple[Any, Any]) -> Found:
    return Found(result[0].numpy(), result[1].double().numpy())


def _torch(layer: Layer, k: int, threads: int, *, name: str, dtype: str, compiled: bool) -> Contestant:
    """``z = linear(hidden, weight, bias)``, ``z.topk(k)``, ``z.logsumexp(1)``, weights, hidden vectors and logits in ``dtype``;
    as PyTorch runs it, or as ``torch.compile`` makes it."""
    import torch

    torch.set_num_threads(threads)
    kind = getattr(torch, dtype)
    # copies: torch warns about memory that it may not write to
    weight, bias = torch.from_numpy(matrix(layer).copy()).to(kind), torch.from_numpy(bias_of(layer).copy()).to(kind)

    def product(hidden: Any) -> tuple[Any, Any]:
        return best(linked(layer, torch.nn.functional.linear(hidden, weight, bias), torch.tanh), k)

    def prepare(hidden: Any) -> Any:
        return torch.from_numpy(np.array(hidden, np.float32)).to(kind)

    call = torch.inference_mode()(_compiled(product) if compiled else product)
    if compiled:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(prepare(np.zeros((1, layer.dim), np.float32)))
    return Contestant(name, call, prepare, found, {"reads": f"all rows, {dtype}", "bytes": weight.numel() * weight.itemsize})


def _compiled(product: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's first import makes torch warn about parts of itself
        limits = torch._dynamo.config  # noqa: SLF001 - beyond eight shapes it would go on uncompiled
        limits.recompile_limit = limits.accumulated_recompile_limit = 1 << 10
        return torch.compile(product, dynamic=False)


for _form in ("", "compiled "):
    for _short, _dtype in (("fp32", "float32"), ("bf16", "bfloat16")):
        _name = f"torch {_form}{_short}"
        rival(_name, "torch")(partial(_torch, name=_name, dtype=_dtype, compiled=bool(_form)))

TILE = 64


@rival("torch int8", "torch")
def torch_int8(layer: Layer, k: int, threads: int) -> Contestant:
    """Weights in int8 with one scale a row, everything else in bfloat16: PyTorch's weight-only product."""
    import torch

    torch.set_num_threads(threads)
    # The product reads beyond rows and columns that are not whole tiles: those are filled up with zeros.
    rows = np.zeros((-(-layer.vocab // TILE) * TILE, -(-layer.dim // TILE) * TILE), np.float32)
    rows[: layer.vocab, : layer.dim] = matrix(layer)
    scale = np.maximum(np.abs(rows).max(axis=1), 1e-30) / 127
    codes = torch.from_numpy(np.rint(rows / scale[:, None]).astype(np.int8))
    scales, bias = torch.from_numpy(scale).to(torch.bfloat16), torch.from_numpy(bias_of(layer).copy()).to(torch.bfloat16)

    product = torch.ops.aten._weight_int8pack_mm  # noqa: SLF001 - it has no public name

    @torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]
    def call(hidden: Any) -> tuple[Any, Any]:
        z = linked(layer, product(hidden, codes, scales)[:, : layer.vocab] + bias, torch.tanh)
        return best(z, k)

    def prepare(hidden: Any) -> Any:
        wide = np.zeros((len(hidden), codes.shape[1]), np.float32)
        wide[:, : layer.dim] = hidden
        return torch.from_numpy(wide).to(torch.bfloat16)

    about = {"reads": "all rows, int8 weights", "bytes": codes.numel() + 2 * layer.vocab, "memory": codes.numel()}
    return Contestant("torch int8", call, prepare, found, about)


@rival("torch int8 dynamic", "torch")
def torch_int8_dynamic(layer: Layer, k: int, threads: int) -> Contestant:
    """Weights in int8 with one scale a row, hidden vectors in 7 bits with one scale a batch: what ``quantize_dynamic`` makes of
    a linear layer."""
    import torch

    torch.set_num_threads(threads)
    weight, bias = torch.from_numpy(matrix(layer).copy()), torch.from_numpy(bias_of(layer).copy())
    scales = weight.abs().amax(1).clamp_min(1e-30) / 127
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to give its types of quantised tensors up
        codes = torch.quantize_per_channel(weight, scales, torch.zeros(layer.vocab, dtype=torch.long), 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(codes, bias)

    @torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]
    def call(hidden: Any) -> tuple[Any, Any]:
        z = linked(layer, torch.ops.quantized.linear_dynamic(hidden, packed, reduce_range=True), torch.tanh)
        return best(z, k)

    return Contestant(
        "torch int8 dynamic",
        call,
        lambda hidden: torch.from_numpy(np.array(hidden, np.float32)),
        found,
        {"reads": "all rows, int8", "bytes": weight.numel() + 4 * layer.vocab, "memory": weight.numel()},
    )
