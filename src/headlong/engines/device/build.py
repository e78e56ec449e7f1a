"""From a layer to an engine on a device: ``full``, a scan of all rows, which is also ``auto``."""

from __future__ import annotations

from typing import Any

from headlong.engines.device.engine import DeviceEngine
from headlong.engines.device.matrix import DeviceMatrix
from headlong.errors import OptionError, named
from headlong.layers.matrix import Layer
from headlong.layers.structured import StructuredLayer
from headlong.promise import Promise

METHODS = ("full",)
"""The methods that there are on a device, without options."""


def on_device(
    layer: Layer | StructuredLayer, method: str, device: str, *, eps: float, seed: int, options: dict[str, Any]
) -> DeviceEngine:
    """The engine of ``layer`` in that device's memory. It proves ids, and log-probabilities within ``eps``."""
    if not isinstance(layer, Layer):
        raise OptionError(
            f"device is {device!r}; {named(layer)} is read on the CPU (move its weights there and leave device out): "
            f"on a device there is {', '.join(METHODS)}, for a headlong.Layer"
        )
    name, reason = method, "asked for"
    if method == "auto":
        name, reason = "full", "one scan of all rows proves ids and log-probabilities at once"
    if name not in METHODS:
        raise OptionError(f"method is {method!r}; on a device choose from auto, {', '.join(METHODS)}")
    for option in options:
        raise OptionError(f"{name} on a device has no option {option!r}; it has none")
    return DeviceEngine(DeviceMatrix(layer, device), name, Promise(eps, 0.0), place=device, seed=seed, reason=reason)
