"""The output layer of a GGUF file, or of the parts that one was split into, as llama.cpp reads it.

::

    output.weight, or token_embd.weight where the model ties them          output.bias

F32, F16 and BF16 rows are mapped, and so are Q8_0, Q4_0, Q4_K, Q5_K and Q6_K, which engines read as they are; whatever else
the ``gguf`` package can write out becomes float32, four bytes a weight. Exactness is defined against the float32 numbers that
ggml's own dequantisation gives. Of Q8_0 and Q6_K they are scale times code exactly, of Q4_K that difference rounded once.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from headlong.arrays import Array, pieces
from headlong.dtypes import BFLOAT16
from headlong.errors import DtypeError, MalformedFileError, MissingPackageError, MissingTensorError, OptionError, an
from headlong.layers.gguf_header import MAGIC, GgufHeader, GgufTensor
from headlong.layers.gguf_logits import gguf_link
from headlong.layers.tying import ARCHITECTURES
from headlong.links import Link
from headlong.number_checks import file_name
from headlong.packed_rows import PIECE, SIZES, PackedRows, dequantised
from headlong.store import mapped_bytes

HEAD, EMBEDDING, BIAS = "output.weight", "token_embd.weight", "output.bias"
MAPPED = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": BFLOAT16}
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Whether a file starts as GGUF files do, whatever its name."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == MAGIC
    except (OSError, ValueError):
        return False


class GgufFile:
    """The same verbs as :class:`headlong.layers.checkpoint.Checkpoint`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = file_name(path)
        self._parts = _parts(Path(path))
        self._tensors: dict[str, tuple[GgufHeader, GgufTensor]] = {}
        for part in self._parts:
            for name, tensor in part.tensors.items():
                if name in self._tensors:
                    raise MalformedFileError(f"{self.name} has the tensor {name!r} in two of its parts; split the model again")
                self._tensors[name] = part, tensor

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    @property
    def metadata(self) -> dict[str, str]:
        return {}

    def read(self, name: str) -> Array | PackedRows:
        """The tensor; rows of codes and scales as such, or written out where engines do not read their kind."""
        if name not in self._tensors:
            shown = [f"{key} {list(at.shape)} {at.kind}" for key, (_, at) in self._tensors.items()]
            raise MissingTensorError(f"{self.name} has no tensor {name!r}; it has {', '.join(shown[:12]) or 'none'}")
        part, tensor = self._tensors[name]
        rows = part.rows(tensor)
        if tensor.kind in MAPPED:
            numbers: Array = rows.view(MAPPED[tensor.kind])
            return numbers if numbers.flags.aligned else numbers.copy()
        if len(tensor.shape) != 2:
            raise MalformedFileError(
                f"{self.name}: {name} is {tensor.kind} of shape {list(tensor.shape)}; expected [vocab, dim]"
            )
        if tensor.kind in SIZES:
            return PackedRows(rows, tensor.kind, tensor.shape[1])
        return self._written_out(tensor, rows)

    @property
    def parts(self) -> tuple[GgufHeader, ...]:
        """The headers of the files: one, or those of a split model in their order; facts about the model are in the first."""
        return tuple(self._parts)

    def rows(self, name: str, ids: Any) -> Array:
        """Some rows of a matrix ``[len(ids), dim]`` as float32; no others are read."""
        part, tensor = self._tensors[name]
        rows = part.rows(tensor)[ids]
        if tensor.kind in MAPPED:
            return np.asarray(rows.view(MAPPED[tensor.kind]), np.float32)
        return self._written_out(tensor._replace(shape=(len(rows), tensor.shape[-1])), rows)

    def _written_out(self, tensor: GgufTensor, rows: Array) -> Array:
        vocab, dim = tensor.shape
        dense = np.empty((vocab, dim), np.float32)
        try:
            for part in pieces(vocab, dim, PIECE):
                dense[part] = dequantised(rows[part], tensor.kind)
        except (MissingPackageError, DtypeError) as error:
            raise type(error)(f"{self.name}: {tensor.name}: {error}") from error
        dense.flags.writeable = False
        return dense

    def kind(self, name: str) -> str | None:
        """What a quantised tensor is called; None for one that is mapped as it is."""
        _, tensor = self._tensors.get(name, (None, None))
        return None if tensor is None or tensor.kind in MAPPED else tensor.kind

    def link(self, name: str) -> Link | None:
        """What the model does to the logits that ``name`` gives; None where the file does not say, as of other tensors."""
        if name not in (HEAD, EMBEDDING):
            return None
        stem = name.removesuffix("weight")
        other = [key for key in self._tensors if key.startswith(stem) and key not in (name, BIAS)]
        if other:
            said = " and ".join(other)
            raise OptionError(f"{self.name} scales its logits by the tensor {said}; pass link=Affine(...) with its number")
        return gguf_link(self._parts[0], self.name)

    def head(self, weight: str) -> str:
        """``output.weight``, or the embedding of an architecture that ties them, for the usual name of a head; every other name
        as it is."""
        if weight in self._tensors or weight != "lm_head.weight":
            return weight
        if HEAD in self._tensors:
            return HEAD
        value = self._parts[0].value
        kind, why = value("general.architecture"), ""
        if kind not in ARCHITECTURES:
            named = f"{an(str(kind))} model" if kind else "a model without an architecture"
            why = f"and {named} is not known to share {EMBEDDING}"
        elif value(f"{kind}.pooling_type") not in (None, 0):
            why = "but pools its vectors, to give one of a whole text"
        if why:
            raise MissingTensorError(
                f"{self.name} has no {HEAD!r}, {why}; pass weight={EMBEDDING!r} if that is the matrix to be read"
            )
        return EMBEDDING

    def bias(self, *weights: str) -> str | None:
        return BIAS if BIAS in self._tensors and {HEAD, EMBEDDING} & set(weights) else None


def _parts(path: Path) -> list[GgufHeader]:
    """The headers of a file and of the parts beside it, the first one first: a part alone has not all of a model."""
    first = GgufHeader(mapped_bytes(path, "GGUF"), str(path))
    count, number = first.value("split.count"), first.value("split.no")
    named = PART.search(path.name)
    if count in (None, 0, 1):
        if named is not None and int(named[2]) > 1 and HEAD not in first.tensors:
            raise MissingTensorError(
                f"{path} is called part {int(named[1])} of {int(named[2])}, has no {HEAD!r}, and does not say where the other "
                "parts are (split.count); split the model again, or name it otherwise if it is whole"
            )
        return [first]
    if type(count) is not int or type(number) is not int or not 0 <= number < count:
        raise MalformedFileError(f"{path} says that it is part {number!r} of {count!r}; split the model again")
    if named is None or (int(named[1]), int(named[2])) != (number + 1, count):
        raise MalformedFileError(
            f"{path} is part {number + 1} of {count:,} of a model; parts are found by their names: call it "
            f"MODEL-{number + 1:05}-of-{count:05}.gguf, or merge the parts with llama-gguf-split --merge"
        )
    found = []
    for at in range(count):
        place = path.with_name(f"{path.name[: named.start()]}-{at + 1:05}-of-{count:05}.gguf")
        part = first if at == number else GgufHeader(mapped_bytes(place, "GGUF"), str(place))
        if part.value("split.no") != at or part.value("split.count") != count:
            raise MalformedFileError(f"{place} does not say that it is part {at + 1} of {count:,}; split the model again")
        found.append(part)
    return found
