"""From a layer to an engine on a device.

full -> a scan of all rows        codes -> int8 codes, then rows        svd -> SVD-softmax        auto -> full
"""

from __future__ import annotations

from typing import Any

from headlong.engines.device.engine import DeviceEngine
from headlong.engines.device.matrix import DeviceMatrix
from headlong.engines.device.svd import SvdDevice
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
