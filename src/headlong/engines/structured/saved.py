"""A structured engine as one safetensors file: its layer's arrays and a JSON record of options and promise.

What an engine derives from its layer is derived again on load, so there is nothing else to trust or to check. An engine saved
without its layer records the layer's checksum, and is refused with any other.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any, NamedTuple

from headlong.errors import HeadlongError, MalformedFileError, StoreError, WrongLayerError
from headlong.layers.matrix import Layer
from headlong.layers.structured import StructuredLayer, rebuilt
from headlong.promise import Promise
from headlong.store import TensorFile, check_version, json_object, open_file, write_file

FORMAT, VERSION = "headlong structured engine", 1


class SavedLayer(NamedTuple):
    """Everything that makes a structured engine, but for the machine it runs on."""

    layer: StructuredLayer
    kind: str
    options: dict[str, Any]
    promise: Promise
    seed: int
    reason: str


def is_structured(path: str | os.PathLike[str]) -> bool:
    """Whether the file says that it holds a structured engine."""
    return open_file(path).metadata.get("format") == FORMAT


def write_structured(path: str | os.PathLike[str], engine: SavedLayer, with_layer: bool) -> None:
    layer, promise = engine.layer, engine.promise
    record = {
        "kind": engine.kind,
        "options": engine.options,
        "promise": ["inf" if math.isinf(value) else value for value in promise],
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


def read_structured(
    path: str | os.PathLike[str],
    layer: Layer | StructuredLayer | None,
    *,
    verify: bool = True,
    mapped: bool = True,
    threads: int = 2,
) -> SavedLayer:
    """What :func:`write_structured` wrote. Anything else is a :class:`StoreError`; as in ``engines/saved/engine.py``."""
    file = open_file(path, mapped)
    check_version(file.metadata, FORMAT, VERSION, file.name)
    if verify:
        file.verify(threads)
    record = json_object(file.metadata.get("engine", "").encode(), f"{file.name}: the engine")
    try:
        return _kept(record, file, layer)
    except StoreError:
        raise
    except (HeadlongError, KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise MalformedFileError(f"{file.name}: its record contradicts itself or its tensors: {error}") from error


def _kept(record: dict[str, Any], file: TensorFile, given: Layer | StructuredLayer | None) -> SavedLayer:
    layer = _layer(record, file, given)
    eps, delta = record["promise"]
    promise = Promise(math.inf if eps == "inf" else float(eps), float(delta))
    if not (promise.eps > 0 and 0 <= promise.delta <= 1):
        raise ValueError(f"{tuple(promise)} is not a promise")
    seed = record["seed"]
    if type(seed) is not int or not 0 <= seed < 2**64 or record["kind"] != layer.kind:
        raise ValueError(f"seed {seed!r} and kind {record['kind']!r} do not fit the {layer.kind} layer")
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
