"""SVD-softmax as published, on a device, in PyTorch operations.

::

    W = P V',  V the right singular vectors      preview z~ = P[:, :width] (V' hidden)[:width] + b
    the N largest z~ -> z = W hidden + b         softmax over z where it is there and z~ elsewhere

Nothing is proved: no radius stands behind the preview, so ids are those of the N rows and ``error`` is infinite. The columns
are the layer's own; previews that calibration vectors choose are on the CPU.
"""

from __future__ import annotations

import math
from typing import Any

from headlong.engines.device.calls import Call
from headlong.engines.device.codes import AT_ONCE
from headlong.engines.device.engine import DeviceEngine, Found
from headlong.engines.device.matrix import DeviceMatrix
from headlong.engines.device.memory import Tensor
from headlong.engines.sampling_filters import Filters
from headlong.promise import Promise


class SvdDevice(DeviceEngine):
    """Reads one matrix by ``width`` columns of every class and ``rows`` exact rows."""

    def __init__(self, matrix: DeviceMatrix, width: int, rows: int, **about: Any) -> None:
        super().__init__(matrix, "svd", Promise(math.inf, 1.0), options={"width": width, "rows": rows}, **about)
        parts, torch = matrix.weight.split(max(1, AT_ONCE // matrix.dim)), matrix.torch
        gram = torch.stack([part.double().T @ part.double() for part in parts]).sum(dim=0)
        self.axes = torch.linalg.eigh(gram).eigenvectors.flip(1)[:, :width].contiguous()
        self.preview = torch.cat([(part.double() @ self.axes).float() for part in parts])
        self.axes = self.axes.float()
        self.width, self.budget = width, rows

    def _mixed(self, call: Call, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """``logits [batch, vocab]``, estimates but for the N best, and the ``ids, logits [batch, N]`` of these."""
        torch, matrix = self.matrix.torch, self.matrix
        mixed = (call.narrow.float() @ self.axes) @ self.preview.T
        mixed = mixed if matrix.bias is None else mixed + matrix.bias
        if call.mask is not None:
            mixed = mixed.masked_fill(call.mask.expand(call.batch, -1) == 0, -math.inf)
        top, ids = torch.topk(mixed, min(matrix.vocab, max(self.budget, k)), dim=1)
        logits, _ = matrix.exact(call, ids.masked_fill(top == -math.inf, -1))
        return mixed.double().scatter(1, ids, logits), ids, logits

    def _found(self, call: Call, ids: Tensor, logits: Tensor, keys: Tensor, k: int, mixed: Tensor) -> Found:
        torch, matrix = self.matrix.torch, self.matrix
        lse = torch.logsumexp(matrix.keys(call, mixed), dim=1)
        rows = torch.full_like(lse, min(matrix.vocab, self.budget)).long()
        read = rows.double() * matrix.row_bytes + matrix.vocab * 4.0 * (self.width + 1) / max(1, call.batch)
        best, error, never = self._ordered(ids, logits, keys, k), torch.full_like(lse, math.inf), torch.zeros_like(call.bad)
        return Found(*best, lse, error, rows, read, never, never.clone(), never.clone())

    def _best(self, call: Call, k: int, eps: float, *, sample: bool = False) -> Found:
        mixed, ids, logits = self._mixed(call, k)
        return self._found(call, ids, logits, logits, k, mixed)

    def _drawn(self, call: Call, wish: Filters) -> Found:
        if wish.top_p < 1:
            return self._filtered(call, wish)
        every = self.matrix.torch.arange(self.matrix.vocab, device=self.matrix.device)[None]
        mixed = self._mixed(call, 1)[0]
        return self._found(call, every.expand(call.batch, -1), mixed, self.matrix.keys(call, mixed, every), 1, mixed)

    def _ranked(self, call: Call, wish: Filters) -> tuple[Found, bool]:
        mixed = self._mixed(call, wish.top_k)[0]
        every = self.matrix.torch.arange(self.matrix.vocab, device=self.matrix.device).expand(call.batch, -1)
        return self._found(call, every, mixed, mixed, wish.top_k or self.matrix.vocab, mixed), True
