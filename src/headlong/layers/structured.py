"""What every finished layer of several parts is: arrays and plain facts, saved as they are and identified by a checksum.

::

    layer.tensors()   {"head.weight": [n, dim], ...}        layer.facts()   {"vocab": ..., ...}, plain JSON
    rebuilt(tensors, facts) is the same layer;  layer.save(path);  load_layer(path)

A kind's file is named after it: ``layers/tree.py`` holds the kind ``"tree"``; ``"blocks"``, the word in files, are
``differentiated.py``. Engines are in ``engines/structured``, those of trees and bands in ``branches.py``. Like
:class:`headlong.layers.matrix.Layer` these are data only and never change; they compute nothing.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from headlong.arrays import Array, as_numpy, stored_matrix, unchanging
from headlong.cached_attribute import once
from headlong.dtypes import Ids
from headlong.errors import (
    DtypeError,
    HeadlongError,
    IdError,
    MalformedFileError,
    NonFiniteError,
    ShapeError,
    an,
    named,
)
from headlong.layers.matrix import FORMAT as MATRIX_FORMAT
from headlong.layers.matrix import Layer
from headlong.store import TensorFile, check_version, json_object, open_file, write_file

FORMAT, VERSION = "headlong structured layer", 1
FILES = {"tree": "tree", "bands": "bands", "blocks": "differentiated", "experts": "experts", "mixture": "mixture"}
"""The kinds there are, and the file of each."""



class StructuredLayer(ABC):
    """``vocab`` classes over hidden vectors of ``dim`` numbers."""

    kind: ClassVar[str]
    vocab: int
    dim: int

    resident: Any = None
    """The weight as a tensor in a GPU's memory, where it came as one."""

    @abstractmethod
    def tensors(self) -> dict[str, Array]:
        """Every array by name; the names of a file."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What the arrays do not say, as plain JSON."""

    @classmethod
    @abstractmethod
    def rebuilt(cls, tensors: Mapping[str, Array], facts: Mapping[str, Any]) -> StructuredLayer:
        """The layer of :meth:`tensors` and :meth:`facts`; an InputError where they contradict each other."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the layer to a file that :func:`load_layer` reads without tensor names."""
        write_file(path, self.tensors(), {"format": FORMAT, "version": str(VERSION), "layer": self.description})

    @property
    def description(self) -> str:
        return json.dumps({"kind": self.kind, **self.facts()}, sort_keys=True)

    def checksum(self) -> str:
        """sha256 over facts and arrays: equal exactly where the answers are.

        Reads the whole layer: every time if the arrays are borrowed, once if nobody else can write to them.
        """
        return self._checksum_for_good if all(map(unchanging, self.tensors().values())) else self._checksum()

    @once
    def _checksum_for_good(self) -> str:
        return self._checksum()

    def _checksum(self) -> str:
        digest = hashlib.sha256(self.description.encode())
        for name, array in sorted(self.tensors().items()):
            digest.update(f"{name} {array.dtype.name} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()


KINDS: dict[str, type[StructuredLayer]] = {}
"""Every kind whose file has been imported."""

class HasLayer(Protocol):
    """A part of a structured layer."""

    @property
    def layer(self) -> Layer: ...


Part = TypeVar("Part", bound=HasLayer)
Registered = TypeVar("Registered", bound=type[StructuredLayer])


def register_layer(layer: Registered) -> Registered:
    KINDS[layer.kind] = layer
    return layer


def load_layer(path: str | os.PathLike[str]) -> Layer | StructuredLayer:
    """A layer of any kind that was saved: mapped, not read."""
    file = open_file(path)
    if file.metadata.get("format") == MATRIX_FORMAT:
        return Layer.load(path)
    if file.metadata.get("format", "").startswith("headlong") and file.metadata["format"] != FORMAT:
        raise MalformedFileError(
            f"{file.name} holds {an(file.metadata['format'])}; expected a layer: headlong.load opens engines, too"
        )
    check_version(file.metadata, FORMAT, VERSION, file.name)
    return rebuilt(file, json_object(file.metadata.get("layer", "").encode(), f"{file.name}: the layer"))


def rebuilt(file: TensorFile, facts: Mapping[str, Any]) -> StructuredLayer:
    """The structured layer in ``file``, whose ``facts`` name its kind; MalformedFileError where they do not fit."""
    kind = facts.get("kind")
    if not isinstance(kind, str) or kind not in FILES:
        raise MalformedFileError(f"{file.name} holds a layer of kind {kind!r}; this headlong reads {', '.join(FILES)}")
    importlib.import_module(f"headlong.layers.{FILES[kind]}")
    try:
        return KINDS[kind].rebuilt({name: file.read(name) for name in file.tensors}, facts)
    except (HeadlongError, KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        # The facts are JSON of any shape; whatever they trip over, the file is at fault.
        raise MalformedFileError(f"{file.name}: its {kind} layer contradicts itself: {error}") from error


def part_tensors(name: str, layer: Layer) -> dict[str, Array]:
    """One matrix of a structured layer, as its tensors are called."""
    return {f"{name}.weight": layer.weight} | ({} if layer.bias is None else {f"{name}.bias": layer.bias})


def part_of(name: str, tensors: Mapping[str, Array]) -> Layer:
    """The inverse of :func:`part_tensors`."""
    return Layer(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


def parts_of(given: Any, kind: Callable[..., Part], name: str) -> list[Part]:
    """The parts of a layer, each of which has a matrix: ``kind(layer, ...)``."""
    wanted = f"expected a list of {getattr(kind, '__name__', kind)}(headlong.Layer(weight, bias), ...)"
    try:
        parts = [kind(*part) for part in given]
    except (TypeError, RuntimeError) as error:  # nothing that can be gone through; a tensor without numbers
        raise DtypeError(f"{name} is {named(given)}; {wanted}") from error
    for number, part in enumerate(parts):
        if not isinstance(part.layer, Layer):
            raise DtypeError(f"{name}[{number}] has {named(part.layer)} for a layer; {wanted}")
    return parts


def checked_projection(projection: Any, shape: tuple[int, int], part: str) -> Array:
    """The matrix from hidden vectors to what ``part`` of a layer reads, finite and of that shape."""
    matrix = stored_matrix(projection, f"the projection of {part}")
    if matrix.shape != shape:
        raise ShapeError(f"the projection of {part} is {list(matrix.shape)}; expected {list(shape)}")
    if not np.isfinite(matrix.astype(np.float32)).all():
        raise NonFiniteError(f"the projection of {part} holds NaN or infinity; repair it")
    return matrix


def class_order(order: Any, vocab: int) -> Ids | None:
    """``order [vocab]``: the class id at each position, a permutation; None where it is the identity or not given."""
    if order is None:
        return None
    array = as_numpy(order, "order")
    if array.shape != (vocab,) or array.dtype.kind not in "iu":
        raise ShapeError(f"order is {array.dtype} of shape {list(array.shape)}; expected [{vocab}] class ids")
    ids: Ids = np.array(array, np.int64)
    seen = np.zeros(vocab, bool)
    seen[ids[(ids >= 0) & (ids < vocab)]] = True
    if not seen.all():
        raise IdError(f"order misses class {int(np.argmin(seen))}; every class from 0 to {vocab - 1} has to occur once")
    ids.flags.writeable = False
    return None if (ids == np.arange(vocab)).all() else ids
