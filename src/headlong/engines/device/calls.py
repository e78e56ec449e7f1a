"""What a call on a device brings, checked by its shapes alone: no number of a tensor is looked at.

::

    hidden [batch, dim] -> Call(x, narrow, length, bad, mask, heat, numbers)

Nothing here copies from the host but a mask and ids that came from there, so that the rest can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headlong.answers import named_fields
from headlong.arrays import Form, Given, form_of, hidden_rows, ids64, kind_of
from headlong.engines.class_masks import check_some_left, class_mask
from headlong.engines.device.matrix import DeviceMatrix
from headlong.engines.device.memory import Call, Tensor, tensor_of
from headlong.errors import DtypeError, ShapeError
from headlong.question import Filters


def call_of(
    matrix: DeviceMatrix, hidden: Any, allowed: Any = None, exclude: Any = None, wish: Filters | None = None
) -> tuple[Call, Form]:
    """The arguments of a verb on the device, and of which kind the answer is to be."""
    torch, device, layer = matrix.torch, matrix.device, matrix.layer
    form = form_of(hidden)
    x = hidden.detach() if form.kind == "torch" else tensor_of(hidden_rows(hidden, layer.dim), torch, device)
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise DtypeError(f"hidden is {x.dtype}; expected float16, bfloat16, float32 or float64: convert it first")
    if x.ndim != 2 or x.shape[1] != layer.dim:
        raise ShapeError(f"hidden has shape {list(x.shape)}; expected [batch, {layer.dim}], one row per query")
    if x.device.type != device.type:
        raise DtypeError(f"hidden is on {x.device}; this engine is on {device}: move hidden there")
    mask = class_mask(allowed, exclude, len(x), layer.vocab)
    if wish is not None:
        check_some_left(mask)
    x, batch = x.contiguous(), len(x)
    length, bad = matrix.new(batch, kind="float32"), matrix.new(batch, kind="bool")
    mask = None if mask is None else matrix.tensor(mask)
    stride = 0 if mask is None or len(mask) == 1 else layer.vocab
    call, noise = Call(x, x.float() if x.dtype == torch.float64 else x, length, bad, mask, stride, matrix.cold, None), (0,) * 5
    if wish is not None:
        heat, top_p = (int(np.float64(number).view(np.uint64)) for number in (wish.temperature, wish.top_p))
        noise = wish.row0, wish.seed, wish.class0, heat, top_p
        call = call._replace(heat=matrix.new(2), numbers=matrix.new(batch, 5, kind="int64"), fours=None if noise[2] % 4 else 1)
    matrix.launch("prepare", (batch,), call, layer.dim, *noise, BLOCK=1024)
    return call, form


def ids_of(matrix: DeviceMatrix, ids: Any, batch: int) -> Tensor:
    """``ids [batch, m]`` int64 on the device; those that are there already are not looked at."""
    if kind_of(ids) == "torch" and ids.device.type != "cpu":
        if ids.ndim != 2 or len(ids) != batch:
            raise ShapeError(f"ids has shape {list(ids.shape)}; expected [{batch}, m], one row per query")
        return ids.long().contiguous()
    return matrix.tensor(ids64(ids, batch, matrix.layer.vocab))


def answered(answer: Given, form: Form) -> Given:
    """Tensors for tensors; NumPy arrays for NumPy arrays, which waits for the device."""
    return answer if form.kind == "torch" else type(answer)(*map(_on_host, named_fields(answer).values()))


def _on_host(part: Any) -> Any:
    if isinstance(part, tuple):
        return type(part)(*map(_on_host, part))
    return part.cpu().numpy() if hasattr(part, "cpu") else part
