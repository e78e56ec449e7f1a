"""What a call on a device brings, checked by its shapes alone: no number of a tensor is looked at.

::

    hidden [batch, dim] -> Call(x, narrow, length, flags, mask, heat, numbers)

Nothing here copies from the host but a mask and ids that came from there, so that the rest can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headlong.arrays import Answer, Form, form_of, hidden_rows, ids64, kind_of
from headlong.engines.class_masks import check_some_left, class_mask
from headlong.engines.device.matrix import DeviceMatrix
from headlong.engines.device.memory import Tensor, tensor_of
from headlong.engines.sampling_filters import Filters
from headlong.errors import DtypeError, ShapeError


class Call(NamedTuple):
    """``x [batch, dim]`` as it came and ``narrow`` in the type that scans read; ``length [batch]`` float32, not below ``‖x‖``;
    ``flags [batch]`` int8: a row with NaN or infinity; ``mask [1 or batch, vocab]`` or None; ``heat [1]``, the temperature;
    ``numbers [batch, 5]``, what noise depends on, where there is any; ``fours``: the first class starts a block of words."""

    x: Tensor
    narrow: Tensor
    length: Tensor
    flags: Tensor
    mask: Tensor | None
    heat: Tensor
    numbers: Tensor | None
    fours: bool = True

    @property
    def batch(self) -> int:
        return len(self.x)

    @property
    def bad(self) -> Tensor:
        """Rows with NaN or infinity."""
        return self.flags > 0

    @property
    def mask_stride(self) -> int:
        return 0 if self.mask is None or len(self.mask) == 1 else int(self.mask.shape[1])

    def of(self, rows: Tensor) -> Call:
        """Some of its rows."""
        return self._each(lambda part: part[rows])

    def drawn(self, n: int) -> Call:
        """Every row n times, with draws 0 to n - 1."""
        if n == 1 or self.numbers is None:
            return self
        call = self._each(lambda part: part.repeat_interleave(n, dim=0))
        call.numbers.view(self.batch, n, 5)[:, :, 1] = self.numbers.new_ones(n).cumsum(dim=0) - 1  # type: ignore[union-attr]
        return call

    def _each(self, change: Callable[[Tensor], Tensor]) -> Call:
        mask = change(self.mask) if self.mask_stride else self.mask
        x, narrow, length, flags = (change(part) for part in self[:4])
        numbers = None if self.numbers is None else change(self.numbers)
        return self._replace(x=x, narrow=narrow, length=length, flags=flags, mask=mask, numbers=numbers)


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
    length, flags = matrix.new(batch, kind="float32"), matrix.new(batch, kind="int8")
    numbers, heat, noise = None, matrix.cold, (0, 0, 0, 0)
    if wish is not None:
        numbers, heat = matrix.new(batch, 5, kind="int64"), matrix.new(1)
        noise = wish.row0, wish.seed, wish.class0, int(np.float64(wish.temperature).view(np.uint64))
    matrix.launch("prepare", (batch,), x, length, flags, numbers, heat, layer.dim, *noise, BLOCK=1024)
    narrow = x.float() if x.dtype == torch.float64 else x
    mask = None if mask is None else matrix.tensor(mask)
    return Call(x, narrow, length, flags, mask, heat, numbers, noise[2] % 4 == 0), form


def ids_of(matrix: DeviceMatrix, ids: Any, batch: int) -> Tensor:
    """``ids [batch, m]`` int64 on the device; those that are there already are not looked at."""
    if kind_of(ids) == "torch" and ids.device.type != "cpu":
        if ids.ndim != 2 or len(ids) != batch:
            raise ShapeError(f"ids has shape {list(ids.shape)}; expected [{batch}, m], one row per query")
        return ids.long().contiguous()
    return matrix.tensor(ids64(ids, batch, matrix.layer.vocab))


def answered(answer: Answer, form: Form) -> Answer:
    """Tensors for tensors; NumPy arrays for NumPy arrays, which waits for the device."""
    found: Any = answer
    if form.kind != "torch" and isinstance(found, tuple):
        found = type(answer)(*(answered(part, form) for part in found[:]))
    elif form.kind != "torch" and hasattr(found, "cpu"):
        found = found.cpu().numpy()
    return found  # type: ignore[no-any-return]
