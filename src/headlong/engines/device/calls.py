"""What a call on a device brings, checked by its shapes alone: no number of a tensor is looked at.

::

    hidden [batch, dim] -> Call(x, wide, length, mask, heat, numbers)

Nothing here copies from the host but a mask and ids that came from there, so that the rest can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from headlong.arrays import BOUNDED, Answer, Form, form_of, ids64, kind_of
from headlong.engines.class_masks import check_some_left, class_mask
from headlong.engines.device.matrix import DeviceMatrix
from headlong.engines.device.memory import Tensor, rounded_up, tensor_of
from headlong.engines.sampling_filters import Filters
from headlong.errors import DtypeError, ShapeError

WORD = 0xFFFFFFFF


class Call(NamedTuple):
    """``x [batch, dim]`` in the type that scans read and ``wide`` in float64; ``length [batch]`` float32, not below ``‖x‖``;
    ``mask [1 or batch, vocab]`` or None; ``heat [1]``, the temperature; ``numbers [batch, 5]``, what noise depends on."""

    x: Tensor
    wide: Tensor
    length: Tensor
    mask: Tensor | None
    heat: Tensor
    numbers: Tensor

    @property
    def batch(self) -> int:
        return len(self.x)

    @property
    def bad(self) -> Tensor:
        """Rows with NaN or infinity."""
        return ~self.wide.isfinite().all(dim=1)

    def of(self, rows: Tensor) -> Call:
        """Some of its rows."""
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask[rows]
        x, wide, length, numbers = (part[rows] for part in (self.x, self.wide, self.length, self.numbers))
        return Call(x, wide, length, mask, self.heat, numbers)

    def drawn(self, n: int) -> Call:
        """Every row n times, with draws 0 to n - 1."""
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask.repeat_interleave(n, dim=0)
        parts = (self.x, self.wide, self.length, self.numbers)
        x, wide, length, numbers = (part.repeat_interleave(n, dim=0) for part in parts)
        numbers.view(self.batch, n, 5)[:, :, 1] = numbers.new_ones(n).cumsum(dim=0) - 1
        return Call(x, wide, length, mask, self.heat, numbers)


def call_of(
    matrix: DeviceMatrix, hidden: Any, allowed: Any = None, exclude: Any = None, wish: Filters | None = None
) -> tuple[Call, Form]:
    """The arguments of a verb on the device, and of which kind the answer is to be."""
    torch, device, layer = matrix.torch, matrix.device, matrix.layer
    form = form_of(hidden)
    x = hidden.detach() if form.kind == "torch" else tensor_of(np.asarray(hidden), torch, device)
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise DtypeError(f"hidden is {x.dtype}; expected float16, bfloat16, float32 or float64: convert it first")
    if x.ndim != 2 or x.shape[1] != layer.dim:
        raise ShapeError(f"hidden has shape {list(x.shape)}; expected [batch, {layer.dim}], one row per query")
    if x.device.type != device.type:
        raise DtypeError(f"hidden is on {x.device}; this engine is on {device}: move hidden there")
    mask = class_mask(allowed, exclude, len(x), layer.vocab)
    if wish is not None:
        check_some_left(mask)
    wide = x.double().contiguous()
    narrow = x.float() if x.dtype == torch.float64 else x
    heat, seed, row0, class0 = (1.0, 0, 0, 0) if wish is None else (wish.temperature, wish.seed, wish.row0, wish.class0)
    numbers = torch.zeros((len(x), 5), dtype=torch.int64, device=device)
    numbers[:, 0] = torch.arange(len(x), device=device) + (row0 - 2**64 if row0 >= 2**63 else row0)  # the same 64 bits
    numbers[:, 2], numbers[:, 3], numbers[:, 4] = seed & WORD, seed >> 32, class0
    length = rounded_up(torch.linalg.vector_norm(wide, dim=1))
    fire = torch.full((1,), heat, dtype=torch.float64, device=device)
    return Call(narrow.contiguous(), wide, length, None if mask is None else matrix.tensor(mask), fire, numbers), form


def ids_of(matrix: DeviceMatrix, ids: Any, batch: int) -> Tensor:
    """``ids [batch, m]`` int64 on the device; those that are there already are not looked at."""
    if kind_of(ids) == "torch" and ids.device.type != "cpu":
        if ids.ndim != 2 or len(ids) != batch:
            raise ShapeError(f"ids has shape {list(ids.shape)}; expected [{batch}, m], one row per query")
        return ids.long().contiguous()
    return matrix.tensor(ids64(ids, batch, matrix.layer.vocab))


def answered(answer: Answer, form: Form) -> Answer:
    """Tensors for tensors; NumPy arrays for NumPy arrays, which waits for the device. In float32 as ``answer_as`` rounds."""
    if form.single and getattr(answer, "error", None) is not None:
        answer = _single(answer)
    return answer if form.kind == "torch" else _in_numpy(answer)


def _single(answer: Any) -> Any:
    fields = answer._asdict()
    narrow = {name: fields[name].float() for name in BOUNDED if fields.get(name) is not None}
    error = fields["error"]
    for name, value in ((name, value) for name, value in narrow.items() if value.numel()):
        lost = (value - fields[name]).abs().where(fields[name].isfinite(), fields[name].new_zeros(()))
        error = error.maximum(fields["error"] + lost.reshape(len(error), -1).amax(dim=1))
    near = error.float()
    up = near.nextafter(near.new_full((), math.inf)).where(near < error, near)
    return answer._replace(**narrow, error=up)


def _in_numpy(answer: Any) -> Any:
    return type(answer)(*(_as_numpy(part) for part in answer[:]))


def _as_numpy(part: Any) -> Any:
    if isinstance(part, tuple):
        return _in_numpy(part)
    return part.cpu().numpy() if hasattr(part, "cpu") else part
