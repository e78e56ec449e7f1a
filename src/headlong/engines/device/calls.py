"""A call on a device, checked by its shapes alone: what every engine there does before it reads anything.

::

    hidden [batch, dim] -> Call(float64, as it came, lengths, mask, noise numbers)        no number of it is looked at

Nothing here copies from the host but a mask and ids that came from there, so that the rest can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headlong.arrays import Answer, Kind, ids64, kind_of
from headlong.engines.arguments import checked_eps
from headlong.engines.class_masks import check_some_left, class_mask
from headlong.engines.contract import Bounded
from headlong.engines.device.memory import Tensor, tensor_of
from headlong.engines.device.reader import DeviceReader
from headlong.engines.device.records import Call
from headlong.engines.sampling_filters import Filters
from headlong.errors import DtypeError, ShapeError
from headlong.promise import Promise

WORD = 0xFFFFFFFF


class DeviceAsked(NamedTuple):
    """``hidden [batch, dim]`` as it came, on the device; what is masked; of which kind the answer is to be."""

    hidden: Tensor
    mask: Tensor | None
    kind: Kind


class DeviceCalls(Bounded):
    """What an engine on a device knows of itself, and how it takes its arguments."""

    def __init__(
        self,
        layer: Any,
        reader: DeviceReader,
        name: str,
        promise: Promise,
        *,
        place: str,
        options: dict[str, Any],
        seed: int = 0,
        reason: str = "asked for",
    ) -> None:
        self.layer, self.reader, self.name, self.promise, self.place = layer, reader, name, promise, place
        self.seed, self.reason, self._options = seed, reason, options

    @property
    def options(self) -> dict[str, Any]:
        """Those of the engine on the CPU from which it was made."""
        return dict(self._options)

    @property
    def path(self) -> str:
        return "triton"

    def _asked(self, hidden: Any, allowed: Any = None, exclude: Any = None, wish: Filters | None = None) -> DeviceAsked:
        """The arguments, checked, on the device; nothing is launched but for a mask."""
        reader, torch = self.reader, self.reader.torch
        kind = kind_of(hidden)
        tensor = hidden if kind == "torch" else tensor_of(np.asarray(hidden), torch, reader.device)
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise DtypeError(f"hidden is {tensor.dtype}; expected float16, bfloat16, float32 or float64: convert it first")
        if tensor.ndim != 2 or tensor.shape[1] != self.layer.dim:
            raise ShapeError(f"hidden has shape {list(tensor.shape)}; expected [batch, {self.layer.dim}], one row per query")
        if tensor.device.type != reader.device.type:
            raise DtypeError(f"hidden is on {tensor.device}; this engine is on {reader.device}: move hidden there")
        tensor = tensor.detach().contiguous()
        mask = class_mask(allowed, exclude, len(tensor), self.layer.vocab)
        if wish is not None:
            check_some_left(mask)
        return DeviceAsked(tensor, None if mask is None else reader.tensor(mask), kind)

    def _call(self, hidden: Any, allowed: Any = None, exclude: Any = None, wish: Filters | None = None) -> tuple[Call, Kind]:
        asked = self._asked(hidden, allowed, exclude, wish)
        return self._call_of(asked, wish), asked.kind

    def _call_of(self, asked: DeviceAsked, wish: Filters | None = None) -> Call:
        reader, torch, tensor = self.reader, self.reader.torch, asked.hidden
        narrow = tensor.float() if tensor.dtype == torch.float64 else tensor
        batch, wide = len(tensor), tensor.double()
        heat, seed, row0, class0 = (1.0, 0, 0, 0) if wish is None else (wish.temperature, wish.seed, wish.row0, wish.class0)
        start = row0 - 2**64 if row0 >= 2**63 else row0  # the same 64 bits
        return Call(
            wide, narrow, torch.linalg.vector_norm(wide, dim=1) * (1 + 1e-12), asked.mask,
            reader.full((1,), heat), self._words(seed),
            reader.full((1,), start, "int64") + torch.arange(batch, device=reader.device), reader.full((batch,), 0, "int64"),
            reader.full((1,), class0, "int64"),
        )  # fmt: skip

    def _words(self, key: int) -> Tensor:
        """64 bits as two numbers of 32, filled in on the device."""
        return self.reader.torch.cat([self.reader.full((1,), word, "int64") for word in (key & WORD, key >> 32)])

    def _spread(self, call: Call, n: int) -> Call:
        """Every row n times, with draws 0 to n - 1."""
        if n == 1:
            return call
        reader = self.reader
        repeated = [part.repeat_interleave(n, dim=0) for part in (call.hidden, call.narrow, call.length, call.rows)]
        mask = call.mask if call.mask is None or len(call.mask) == 1 else call.mask.repeat_interleave(n, dim=0)
        draws = reader.torch.arange(n, device=reader.device).repeat(call.batch)
        hidden, narrow, length, rows = repeated
        return call._replace(hidden=hidden, narrow=narrow, length=length, rows=rows, mask=mask, draws=draws)

    @staticmethod
    def _rows(call: Call, rows: Tensor) -> Call:
        mask = call.mask if call.mask is None or len(call.mask) == 1 else call.mask[rows]
        parts = (call.hidden, call.narrow, call.length, call.rows, call.draws)
        hidden, narrow, length, numbers, draws = (part[rows].contiguous() for part in parts)
        return call._replace(hidden=hidden, narrow=narrow, length=length, rows=numbers, draws=draws, mask=mask)

    def _ids(self, ids: Any, batch: int) -> Tensor:
        if kind_of(ids) == "torch" and ids.device.type != "cpu":
            if ids.ndim != 2 or len(ids) != batch:
                raise ShapeError(f"ids has shape {list(ids.shape)}; expected [{batch}, m], one row per query")
            return ids.long()
        return self.reader.tensor(ids64(ids, batch, self.layer.vocab))

    @staticmethod
    def _bad(call: Call) -> Tensor:
        return ~call.hidden.isfinite().all(dim=1)

    def _eps(self, eps: float | None) -> float:
        return self.promise.eps if eps is None else checked_eps(eps)


def answered(answer: Answer, kind: Kind) -> Answer:
    """Tensors for tensors; NumPy arrays for NumPy arrays, which waits for the device."""
    if kind == "torch":
        return answer
    return type(answer)(*(_part_as_numpy(part) for part in answer))


def _part_as_numpy(part: Any) -> Any:
    if isinstance(part, tuple):
        return answered(part, "numpy")
    return part if isinstance(part, str) else part.cpu().numpy()
