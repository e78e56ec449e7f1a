"""An engine on a device is built from one that was made on the CPU: its layer, plan and promise, in a GPU's memory.

    full, cascade -> DeviceEngine        svd -> SvdDevice        tree, experts, mixture -> an engine of the same kind
"""

from __future__ import annotations

from typing import Any

from headlong import native
from headlong.engines.base import Engine
from headlong.engines.device.cascade import CodesReader
from headlong.engines.device.engine import DeviceEngine
from headlong.engines.device.experts import ExpertsDevice
from headlong.engines.device.mixture import MixtureDevice
from headlong.engines.device.reader import DeviceReader
from headlong.engines.device.svd import SvdDevice
from headlong.engines.device.table import TableEngine
from headlong.engines.device.tree import TreeDevice
from headlong.engines.mixture.engine import MixtureEngine
from headlong.engines.structured.base import StructuredEngine
from headlong.engines.structured.tree import TreeEngine
from headlong.errors import OptionError
from headlong.layers.experts import ExpertsLayer
from headlong.layers.matrix import Layer
from headlong.layers.mixture import MixtureLayer
from headlong.layers.tree import TreeLayer

PLACED = ("tree", "experts", "mixture")
"""The kinds of structured layers that are read on a device."""


def on_device(engine: Engine, device: str) -> DeviceEngine | SvdDevice:
    """The engine's layer, plan and promise on a device: ``"full"``, ``"cascade"`` or ``"svd"``."""
    about: dict[str, Any] = {"place": device, "options": engine.options, "seed": engine.seed, "reason": engine.reason}
    given = engine.layer, engine.norms, device, _there(engine.layer.resident, device)
    if engine.name == "svd":
        return SvdDevice(DeviceReader(*given), engine.plan, engine.promise, **about)
    if engine.name not in ("full", "cascade") or engine.promise.delta_ids > 0:
        raise OptionError(f"method is {engine.name!r}; on a device choose 'full', 'svd', or 'cascade' with ids proved")
    reader = DeviceReader(*given) if engine.name == "full" else CodesReader(*given, engine.plan)
    promise = engine.promise._replace(delta=0.0, over=frozenset())
    return DeviceEngine(reader, engine.name, promise, plan=engine.plan, **about)


def structured_on_device(engine: StructuredEngine, device: str) -> TableEngine:
    """The engine of a structured layer on a device; it proves what it says."""
    layer = engine.layer
    about: dict[str, Any] = {"place": device, "options": engine.options, "seed": engine.seed, "reason": engine.reason}
    promise = engine.promise._replace(delta=0.0, delta_ids=0.0, over=frozenset())
    weight = _there(layer.resident, device)
    if isinstance(layer, ExpertsLayer):
        norms = native.row_norms(layer.weight, 1)
        return ExpertsDevice(layer, DeviceReader(Layer(layer.weight), norms, device, weight), norms, promise, **about)
    if isinstance(engine, TreeEngine) and isinstance(layer, TreeLayer):
        rows = Layer(layer.weight, layer.bias)
        reader = DeviceReader(rows, native.row_norms(layer.weight, 1), device, weight)
        return TreeDevice(layer, reader, engine.steps, engine.rounding, promise, **about)
    if isinstance(engine, MixtureEngine) and isinstance(layer, MixtureLayer):
        return MixtureDevice(layer, DeviceReader(layer.matrix, engine.part.norms, device, weight), promise, **about)
    raise OptionError(f"a {layer.kind} layer is read on the CPU; on a device: {', '.join(PLACED)}")


def _there(weight: Any, device: str) -> Any | None:
    """The weight itself where it lies on that device already."""
    return weight if weight is not None and str(weight.device).startswith(device) else None
