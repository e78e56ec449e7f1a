"""What a call on a device brings, checked by its shapes alone: no number of a tensor is looked at.

::

    hidden [batch, dim] -> Call(x, narrow, length, flags, mask, heat, numbers)

Nothing here copies from the host but a mask and ids that came from there, so that the rest can be captured in a CUDA graph.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headlong.arrays import Answer, Form, form_of, ids64, kind_of
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
    x = x.contiguous()
    length = torch.empty(len(x), dtype=torch.float32, device=device)
    flags = torch.empty(len(x), dtype=torch.int8, device=device)
    numbers = None if wish is None else torch.empty((len(x), 5), dtype=torch.int64, device=device)
    fours = wish is None or wish.class0 % 4 == 0
    heat = matrix.cold if wish is None else torch.empty(1, dtype=torch.float64, device=device)
    bits = struct.unpack("<q", struct.pack("<d", wish.temperature))[0] if wish else 0
    words = [part for whole in ((wish.row0, wish.seed, wish.class0, bits) if wish else (0,) * 4) for part in _words(whole)]
    if len(x):
        matrix.kernels.prepare[(len(x),)](
            x, length, flags, numbers, heat, layer.dim, *words, SAMPLE=wish is not None, BLOCK=1024
        )  # fmt: skip
    narrow = x.float() if x.dtype == torch.float64 else x
    return Call(x, narrow, length, flags, None if mask is None else matrix.tensor(mask), heat, numbers, fours), form


def _words(value: int) -> tuple[int, int]:
    """Its two halves of 32 bits, as signed numbers."""
    low, high = struct.unpack("<ii", struct.pack("<Q", value & 0xFFFFFFFFFFFFFFFF))
    return low, high


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
