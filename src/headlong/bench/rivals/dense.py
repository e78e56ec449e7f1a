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

    def product(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return best(linked(layer, torch.nn.functional.linear(hidden, weight, bias), torch.tanh), k)

    def prepare(hidden: Floats) -> torch.Tensor:
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

TILE, GROUP = 64, 32


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
    def call(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = linked(layer, product(hidden, codes, scales)[:, : layer.vocab] + bias, torch.tanh)
        return best(z, k)

    def prepare(hidden: Floats) -> torch.Tensor:
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
    def call(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = linked(layer, torch.ops.quantized.linear_dynamic(hidden, packed, reduce_range=True), torch.tanh)
        return best(z, k)

    return Contestant(
        "torch int8 dynamic",
        call,
        lambda hidden: torch.from_numpy(np.array(hidden, np.float32)),
        found,
        {"reads": "all rows, int8", "bytes": weight.numel() + 4 * layer.vocab, "memory": weight.numel()},
    )


@rival("torch int4", "torch")
def torch_int4(layer: Layer, k: int, threads: int) -> Contestant:
    """Weights in four bits with a scale and a zero for each 32, hidden vectors in bfloat16: the product that torchao's four-bit
    layers call on a CPU."""
    import torch

    torch.set_num_threads(threads)
    rows = np.zeros((-(-layer.vocab // TILE) * TILE, -(-layer.dim // GROUP) * GROUP), np.float32)
    rows[: layer.vocab, : layer.dim] = matrix(layer)
    parts = torch.from_numpy(rows).view(len(rows), -1, GROUP)
    low, high = parts.amin(2), parts.amax(2)
    scale = ((high - low) / 15).clamp_min(1e-30)
    codes = ((parts - low[..., None]) / scale[..., None]).round_().clamp_(0, 15).to(torch.int32).view(len(rows), -1)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)  # noqa: SLF001 - neither has a public name
    about = torch.stack([scale, low + 8 * scale], 2).transpose(0, 1).contiguous().to(torch.bfloat16)
    bias, product = torch.from_numpy(bias_of(layer).copy()), torch.ops.aten._weight_int4pack_mm_for_cpu  # noqa: SLF001
    width = rows.shape[1]
    del rows, parts, low, high, codes

    @torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]
    def call(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = product(hidden, packed, GROUP, about)[:, : layer.vocab].float()
        return best(linked(layer, z + bias, torch.tanh), k)

    def prepare(hidden: Floats) -> torch.Tensor:
        wide = np.zeros((len(hidden), width), np.float32)
        wide[:, : layer.dim] = hidden
        return torch.from_numpy(wide).to(torch.bfloat16)

    read = packed.numel() * packed.itemsize + about.numel() * about.itemsize
    return Contestant("torch int4", call, prepare, found, {"reads": "all rows, int4 weights", "bytes": read, "memory": read})


def _onnx(layer: Layer, k: int, threads: int, *, name: str, bits: int, block: int) -> Contestant:
    """ONNX Runtime's ``MatMulNBits``: ``bits`` of each weight and a scale for each ``block``, hidden vectors in eight bits.
    Its threads sleep between calls: where they look out for work, they take a processor from whoever comes next."""
    import onnxruntime as ort
    import torch
    from onnx import TensorProto, helper, numpy_helper

    torch.set_num_threads(threads)
    codes, scales = few_bits(matrix(layer), bits, block)
    held = [numpy_helper.from_array(codes, "codes"), numpy_helper.from_array(scales.reshape(-1), "scales")]
    shape: dict[str, Any] = {"K": layer.dim, "N": layer.vocab, "bits": bits, "block_size": block, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["hidden", "codes", "scales"], ["z"], domain="com.microsoft", **shape)
    sizes = {"hidden": layer.dim, "z": layer.vocab}
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, ["n", size]) for end, size in sizes.items()]
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], held)
    sets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    made = helper.make_model(graph, opset_imports=sets, ir_version=9).SerializeToString()
    session = ort.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    bias = torch.from_numpy(bias_of(layer).copy())

    @torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]
    def call(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.from_numpy(session.run(None, {"hidden": hidden})[0])
        return best(linked(layer, z + bias if layer.bias is not None else z, torch.tanh), k)

    read = codes.nbytes + scales.nbytes
    return Contestant(name, call, float32, found, {"reads": f"all rows, int{bits} weights", "bytes": read, "memory": read})


def few_bits(rows: Floats, bits: int, block: int) -> tuple[Any, Floats]:
    """Codes ``[n, blocks, bytes]``, scales ``[n, blocks]``: the number of a block that is largest without its sign becomes the
    least code, as in ONNX Runtime's own quantiser."""
    wide = np.pad(rows, ((0, 0), (0, -rows.shape[1] % block))).reshape(len(rows), -1, block)
    least, most, half = wide.min(2), wide.max(2), 1 << (bits - 1)
    scales = np.where(np.abs(least) > np.abs(most), least, most) / np.float32(-half)
    scales = np.where(scales == 0, np.float32(1), scales).astype(np.float32)
    codes = np.clip(np.rint(wide / scales[..., None]) + half, 0, 2 * half - 1).astype(np.uint8)
    return (codes[..., 0::2] | codes[..., 1::2] << 4 if bits == 4 else codes), scales


for _bits, _block in ((4, 32), (4, 128), (8, 32)):
    _name = f"onnxruntime int{_bits}, blocks of {_block}"
    rival(_name, "onnxruntime", "onnx", "torch")(partial(_onnx, name=_name, bits=_bits, block=_block))
