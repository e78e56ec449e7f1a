"""From a layer to an engine on a device.

::

    full -> a scan of all rows        codes -> int8 codes, then rows        svd -> SVD-softmax        auto -> full

SVD-softmax is the published one, in PyTorch operations::

    W = P V',  V the right singular vectors      preview z~ = P[:, :width] (V' hidden)[:width] + b
    the N largest z~ -> z = W hidden + b         softmax over z where it is there and z~ elsewhere

Nothing is proved there: no radius stands behind the preview, so ids are those of the N rows and ``error`` is infinite. The
columns are the layer's own; previews that calibration vectors choose are on the CPU.
"""

from __future__ import annotations

import math
from typing import Any

from headlong.engines.device.calls import Call
from headlong.engines.device.engine import DeviceEngine
from headlong.engines.device.matrix import AT_ONCE, DeviceMatrix, Found
from headlong.engines.device.memory import Tensor
from headlong.engines.sampling_filters import Filters
from headlong.errors import OptionError, named
from headlong.layers.matrix import Layer
from headlong.layers.structured import StructuredLayer
from headlong.number_checks import whole
from headlong.promise import Promise

OPTIONS: dict[str, tuple[str, ...]] = {"full": (), "codes": (), "svd": ("width", "rows")}
"""The methods that there are on a device, and their options."""


def on_device(
    layer: Layer | StructuredLayer, method: str, device: str, *, eps: float, seed: int, options: dict[str, Any]
) -> DeviceEngine:
    """The engine of ``layer`` in that device's memory. It proves ids, and log-probabilities within ``eps`` (svd: nothing)."""
    if not isinstance(layer, Layer):
        raise OptionError(
            f"device is {device!r}; {named(layer)} is read on the CPU (move its weights there and leave device out): "
            f"on a device there are {', '.join(OPTIONS)}, each for a headlong.Layer"
        )
    name, reason = method, "asked for"
    if method == "auto":
        name, reason = "full", "one scan of all rows proves ids and log-probabilities at once"
    if name not in OPTIONS:
        raise OptionError(f"method is {method!r}; on a device choose from auto, {', '.join(OPTIONS)}")
    for option in options:
        if option not in OPTIONS[name]:
            raise OptionError(f"{name} on a device has no option {option!r}; it has {', '.join(OPTIONS[name]) or 'none'}")
    about: dict[str, Any] = {"place": device, "seed": seed, "reason": reason}
    if name == "svd":
        width, rows = (options.get(each) for each in OPTIONS["svd"])
        width = -(-layer.dim // 8) if width is None else whole(width, "width", 1, layer.dim)
        rows = -(-layer.vocab // 16) if rows is None else whole(rows, "rows", 1, layer.vocab)
        return SvdDevice(DeviceMatrix(layer, device), width, rows, **about)
    matrix = DeviceMatrix(layer, device, with_codes=name == "codes")
    return DeviceEngine(matrix, name, Promise(eps, 0.0), options={}, **about)


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
            mixed = mixed.masked_fill(call.mask.expand(len(call.x), -1) == 0, -math.inf)
        top, ids = torch.topk(mixed, min(matrix.vocab, max(self.budget, k)), dim=1)
        logits, _ = matrix.exact(call, ids.masked_fill(top == -math.inf, -1))
        return mixed.double().scatter(1, ids, logits), ids, logits

    def _found(self, call: Call, k: int, mixed: Tensor, ids: Any, logits: Tensor, keys: Any = None) -> Found:
        torch, matrix = self.matrix.torch, self.matrix
        lse = torch.logsumexp(matrix.exact(call, given=mixed)[1], dim=1)
        rows = torch.full_like(lse, min(matrix.vocab, self.budget)).long()
        read = rows.double() * matrix.rows.bytes + matrix.vocab * 4.0 * (self.width + 1) / max(1, len(call.x))
        best, never = self._ordered(ids, logits, logits if keys is None else keys, k), torch.zeros_like(call.bad).repeat(3, 1)
        return Found(*best, lse, torch.full_like(lse, math.inf), rows, read, *never)

    def _best(self, call: Call, k: int, eps: float, *, sample: bool = False, codes: bool = True) -> Found:
        return self._found(call, k, *self._mixed(call, k))

    def _drawn(self, call: Call, wish: Filters) -> Found:
        if wish.top_p < 1:
            return self._filtered(call, wish)
        mixed = self._mixed(call, 1)[0]
        return self._found(call, 1, mixed, None, *self.matrix.exact(call, given=mixed, sample=True))

    def _ranked(self, call: Call, wish: Filters) -> tuple[Found, bool]:
        mixed = self._mixed(call, wish.top_k)[0]
        return self._found(call, wish.top_k or self.matrix.vocab, mixed, None, mixed), True
