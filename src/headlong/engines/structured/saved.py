"""A structured engine as one safetensors file: its layer's arrays and a JSON record of options and promise.

What an engine derives from its layer is derived again on load, so there is nothing else to trust or to check. An engine saved
without its layer records the layer's checksum, and is refused with any other.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from headlong.engines.saved.record import Opening, count_of, plain, promise_of, read_record
from headlong.errors import StoreError, WrongLayerError
from headlong.layers.matrix import Layer
from headlong.layers.structured import StructuredLayer, rebuilt
from headlong.promise import Promise
from headlong.store import TensorFile, json_object, write_file

FORMAT, VERSION = "headlong structured engine", 1


class SavedLayer(NamedTuple):
    """Everything that makes a structured engine, but for the machine it runs on."""

    layer: StructuredLayer
    kind: str
    options: dict[str, Any]
    promise: Promise
    seed: int
    reason: str


def write_structured(path: str | os.PathLike[str], engine: SavedLayer, with_layer: bool) -> None:
    layer, promise = engine.layer, engine.promise
    record = {
        "kind": engine.kind,
        "options": engine.options,
        "promise": [plain(value) for value in promise],
        "seed": engine.seed,
        "reason": engine.reason,
        "checksum": layer.checksum(),
        "vocab": layer.vocab,
        "dim": layer.dim,
    }
    metadata = {"format": FORMAT, "version": str(VERSION), "engine": json.dumps(record)}
    if with_layer:
        metadata["layer"] = layer.description
    write_file(path, layer.tensors() if with_layer else {}, metadata)


def read_structured(path: str | os.PathLike[str], layer: Layer | StructuredLayer | None, how: Opening) -> SavedLayer:
    """What :func:`write_structured` wrote."""
    return read_record(path, FORMAT, VERSION, lambda record, file: _kept(record, file, layer), how)


def _kept(record: dict[str, Any], file: TensorFile, given: Layer | StructuredLayer | None) -> SavedLayer:
    layer, promise, seed = _layer(record, file, given), promise_of(record), count_of(record["seed"], 2**64 - 1)
    if record["kind"] != layer.kind:
        raise ValueError(f"kind {record['kind']!r} does not fit the {layer.kind} layer")
    return SavedLayer(layer, layer.kind, dict(record["options"]), promise, seed, str(record["reason"]))


def _layer(record: dict[str, Any], file: TensorFile, given: Layer | StructuredLayer | None) -> StructuredLayer:
    if given is None:
        if "layer" not in file.metadata:
            raise StoreError(f"{file.name} was saved without its layer; pass load(path, layer=...)")
        return rebuilt(file, json_object(file.metadata["layer"].encode(), f"{file.name}: the layer"))
    if not isinstance(given, StructuredLayer) or given.checksum() != record["checksum"]:
        raise WrongLayerError(
            f"{file.name} was made for another layer ({record['vocab']} x {record['dim']}, {record['kind']}); "
            f"got {given!r}: pass the layer it was made for, or compile this one"
        )
    return given
