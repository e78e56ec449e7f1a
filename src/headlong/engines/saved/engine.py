"""An engine as one safetensors file: plan arrays, norms, by default the layer, and a JSON record that ties them.

Written beside the old file and renamed; mapped on load. A bit that flips in a code or a scale makes answers that are called
proved and are wrong, so the file carries a checksum of all its bytes, and loading compares it unless ``verify`` is False.
Nothing read is trusted beyond that: every array's type and shape is checked against the record before native code sees it,
the numbers that bounds are made of (norms, scales, slacks, means) have to be finite, and executors are safe whatever codes
and weights hold. An engine saved without its layer records the layer's checksum, and is refused with any other.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array
from headlong.engines.saved import changes as saved_changes
from headlong.engines.saved import codes as saved_codes
from headlong.engines.saved.blocks import read_blocks, record_of, tensors_of
from headlong.engines.saved.changes import Changes, read_changes
from headlong.engines.saved.record import Opening, count_of, plain, promise_of, read_record
from headlong.errors import StoreError, WrongLayerError
from headlong.layers.matrix import Layer
from headlong.links import link_from_dict
from headlong.packed_rows import PackedRows
from headlong.plan import Blocks, Plan, Preview, padded
from headlong.promise import Promise
from headlong.store import TensorFile, write_file

FORMAT, VERSION = "headlong engine", 1
LARGEST_SIZE = 2**40
FLOAT32_MAX = float(np.finfo(np.float32).max)
ARRAYS, PREVIEW = "plan.arrays.", "plan.preview."


class Saved(NamedTuple):
    """Everything that makes an engine, but for the machine it runs on."""

    layer: Layer
    method: str
    options: dict[str, Any]
    plan: Plan
    norms: NDArray[np.float32]
    promise: Promise
    seed: int
    reason: str
    changes: Changes | None = None


def write_engine(path: str | os.PathLike[str], engine: Saved, with_layer: bool) -> None:
    """Stream the arrays; the layer's checksum costs one pass over its weights."""
    layer, plan = engine.layer, engine.plan
    tensors: dict[str, Any] = {"norms": engine.norms}
    if plan.preview is not None:
        tensors |= {f"{PREVIEW}{name}": getattr(plan.preview, name) for name in ("rotation", "columns", "base")}
    tensors |= {f"plan.arrays.{name}": array for name, array in (plan.arrays or {}).items()}
    if plan.blocks is not None:
        tensors |= tensors_of(plan.blocks)
    if plan.codes is not None:
        tensors |= saved_codes.tensors_of(plan.codes)
    if engine.changes is not None:
        tensors |= saved_changes.tensors_of(engine.changes)
    if with_layer:
        tensors |= {"layer.weight": layer.stored, "layer.bias": layer.bias}
    record = {
        "method": engine.method,
        "options": {name: plain(value) for name, value in engine.options.items()},
        "promise": [*map(plain, engine.promise)],
        "seed": engine.seed,
        "reason": engine.reason,
        "preview": None if plan.preview is None else plan.preview.rows,
        "blocks": None if plan.blocks is None else record_of(plan.blocks),
        "codes": None if plan.codes is None else saved_codes.record_of(plan.codes),
        "changes": None if engine.changes is None else engine.changes.vocab,
        "layer": {
            "checksum": layer.checksum(),
            "vocab": layer.vocab,
            "dim": layer.dim,
            "dtype": layer.dtype,
            "link": layer.link.as_dict(),
            "name": layer.name,
        },
    }
    metadata = {"format": FORMAT, "version": str(VERSION), "engine": json.dumps(record)}
    write_file(path, {name: array for name, array in tensors.items() if array is not None}, metadata)


def read_engine(path: str | os.PathLike[str], layer: Layer | None, how: Opening) -> Saved:
    """What :func:`write_engine` wrote."""
    return read_record(path, FORMAT, VERSION, lambda record, file: _Record(record, file).engine(layer), how)


class _Record:
    """The JSON record of a file, read against the file's tensors."""

    def __init__(self, data: dict[str, Any], file: TensorFile) -> None:
        self.data, self.file = data, file

    def engine(self, given: Layer | None) -> Saved:
        layer = self._layer(given)
        plan = self._plan(layer)
        promise = promise_of(self.data)
        options = {name: math.inf if value == "inf" else value for name, value in dict(self.data["options"]).items()}
        norms = self._numbers("norms", (layer.vocab,), 0.0)
        seed, changed = count_of(self.data["seed"], 2**64 - 1), self.data["changes"]
        changes = None if changed is None else read_changes(changed, self._tensor, layer)
        return Saved(layer, str(self.data["method"]), options, plan, norms, promise, seed, str(self.data["reason"]), changes)

    def _layer(self, given: Layer | None) -> Layer:
        facts = self.data["layer"]
        shape = count_of(facts["vocab"], LARGEST_SIZE), count_of(facts["dim"], LARGEST_SIZE)
        if given is None and "layer.weight" not in self.file.tensors:
            raise StoreError(f"{self.file.name} was saved without its layer; pass load(path, layer=...)")
        if given is not None:
            if (given.vocab, given.dim) != shape or given.checksum() != facts["checksum"]:
                raise WrongLayerError(
                    f"{self.file.name} was made for another layer ({shape[0]} x {shape[1]}, {facts['dtype']}); "
                    f"got {given!r}: pass the layer it was made for, or compile this one"
                )
            return given
        bias = self.file.read("layer.bias") if "layer.bias" in self.file.tensors else None
        weight: Any = self.file.read("layer.weight")
        if weight.dtype == np.uint8:
            weight = PackedRows(weight, str(facts["dtype"]), shape[1])
        layer = Layer(weight, bias, link_from_dict(facts["link"]), name=str(facts["name"]))
        _same("layer.weight", (layer.dtype, layer.vocab, layer.dim), (facts["dtype"], *shape))
        return layer

    def _plan(self, layer: Layer) -> Plan:
        arrays = {name.removeprefix(ARRAYS): self.file.read(name) for name in self.file.tensors if name.startswith(ARRAYS)}
        return Plan(
            saved_codes.read_codes(self.data.get("codes"), self._tensor, layer.vocab, layer.dim),
            self._blocks(layer), self._preview(layer), arrays or None,
        )  # fmt: skip

    def _preview(self, layer: Layer) -> Preview | None:
        rows = self.data["preview"]
        if rows is None:
            return None
        rotation = self._numbers(f"{PREVIEW}rotation", (layer.dim, None))
        columns = self._tensor(f"{PREVIEW}columns", np.float32, (layer.vocab, rotation.shape[1]))
        if not (rows and rotation.shape[1]):
            raise ValueError(f"a preview of {rotation.shape[1]} columns scores {rows} rows")
        base = self._numbers(f"{PREVIEW}base", (padded(layer.vocab),))
        return Preview(rotation, columns, base, count_of(rows, LARGEST_SIZE))

    def _blocks(self, layer: Layer) -> Blocks | None:
        record = self.data["blocks"]
        if record is None:
            return None
        leading = self.file.tensors.get("plan.blocks.leading")
        return read_blocks(record, self._tensor, leading is not None and leading.dtype == "F16", layer.vocab, layer.dim)

    def _numbers(self, name: str, shape: tuple[int | None, ...], least: float = -FLOAT32_MAX) -> Any:
        """A float32 tensor of finite numbers, none below ``least``."""
        array = self._tensor(name, np.float32, shape)
        if array.size and not (float(array.min()) >= least and float(array.max()) <= FLOAT32_MAX):
            raise ValueError(f"{name} holds numbers below {least:g} or beyond float32, or NaN")
        return array

    def _tensor(self, name: str, dtype: Any, shape: tuple[int | None, ...], missing: bool = False) -> Any:
        """The tensor, of this type and shape (None: any size); None where it is absent and may be."""
        if missing and name not in self.file.tensors:
            return None
        array: Array = self.file.read(name)
        wanted = tuple(size if want is None else want for size, want in zip(array.shape, shape, strict=True))
        _same(name, (array.dtype, array.shape), (np.dtype(dtype), wanted))
        return array


def _same(what: str, came: Any, expected: Any) -> None:
    if came != expected:
        raise ValueError(f"{what} is {came}, the record says {expected}")
