"""The output layer of a GGUF file, as llama.cpp reads it; through the ``gguf`` package.

::

    output.weight, or token_embd.weight where the model ties them          output.bias

F32, F16 and BF16 rows are mapped. Quantised ones (Q8_0, Q6_K, Q4_K, and whatever else the package can write out) become the
float32 numbers that ggml's own dequantisation gives, four bytes a weight: those are the weights that exactness is
defined against. Of Q8_0 and Q6_K they are scale times code exactly, of Q4_K that difference rounded once.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from headlong.arrays import Array
from headlong.dtypes import BFLOAT16
from headlong.errors import DtypeError, MalformedFileError, MissingPackageError, MissingTensorError, OptionError, StoreError
from headlong.layers.codes_and_scales import PIECE

MAGIC = b"GGUF"
HEAD, EMBEDDING, BIAS = "output.weight", "token_embd.weight", "output.bias"
SCALES = {"command-r": "logit_scale", "cohere2": "logit_scale"}
SCALES |= dict.fromkeys(("granite", "granitemoe", "granitehybrid", "minicpm"), "logits_scaling")
"""What ``<architecture>.logit_scale`` means: Cohere's multiplies the logits, Granite's and MiniCPM's divides them."""


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
        try:
            from gguf import GGUFReader
        except ImportError as error:
            raise MissingPackageError(f"{path} is a GGUF file, which needs a package: pip install 'headlong[gguf]'") from error
        self.name = os.fspath(path)
        try:
            self._reader = GGUFReader(path)
        except OSError as error:
            raise StoreError(f"{self.name} cannot be read: {error}") from error
        except Exception as error:  # of whatever kind: the file is cut off or damaged
            raise MalformedFileError(f"{self.name} is not a complete GGUF file: {error}; copy it again") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    @property
    def metadata(self) -> dict[str, str]:
        return {}

    def read(self, name: str) -> Array:
        """The tensor, written out where it is quantised."""
        if name not in self._tensors:
            shown = [f"{key} {list(map(int, at.shape[::-1]))} {at.tensor_type.name}" for key, at in self._tensors.items()]
            raise MissingTensorError(f"{self.name} has no tensor {name!r}; it has {', '.join(shown[:12]) or 'none'}")
        tensor = self._tensors[name]
        kind = tensor.tensor_type.name
        if kind in ("F32", "F16"):
            return np.asarray(tensor.data)
        if kind == "BF16":
            return np.asarray(tensor.data).view(BFLOAT16)
        return self._written_out(tensor, kind)

    def _written_out(self, tensor: Any, kind: str) -> Array:
        from gguf.quants import dequantize

        dim, rows = int(tensor.shape[0]), np.asarray(tensor.data)
        dense = np.empty((len(rows), dim), np.float32)
        step = max(1, PIECE // dim)
        try:
            for start in range(0, len(rows), step):
                dense[start : start + step] = dequantize(rows[start : start + step], tensor.tensor_type)
        except NotImplementedError as error:
            raise DtypeError(f"{self.name}: {tensor.name} is {kind}, which the gguf package cannot write out") from error
        dense.flags.writeable = False
        return dense

    def kind(self, name: str) -> str | None:
        """What a quantised tensor is called; None for one that is mapped as it is."""
        tensor = self._tensors.get(name)
        kind = None if tensor is None else tensor.tensor_type.name
        return None if kind in (None, "F32", "F16", "BF16") else str(kind)

    def config(self) -> dict[str, Any]:
        """What the file says of the final logits, under the names of ``config.json``."""
        architecture = self._value("general.architecture") or ""
        found: dict[str, Any] = {"final_logit_softcapping": self._value(f"{architecture}.final_logit_softcapping")}
        scale = self._value(f"{architecture}.logit_scale")
        if scale is not None and architecture not in SCALES:
            raise OptionError(f"{self.name}: what {architecture}.logit_scale={scale} does is not known here; pass link=")
        if scale:  # 0 stands for none
            found[SCALES[architecture]] = scale
        return {key: value for key, value in found.items() if value}

    def _value(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def head(self, weight: str) -> str:
        """``output.weight``, or the tied embedding, for the usual name of a head; every other name as it is."""
        if weight in self._tensors or weight != "lm_head.weight":
            return weight
        return HEAD if HEAD in self._tensors else EMBEDDING

    def is_head(self, name: str) -> bool:
        return name in (HEAD, EMBEDDING)

    def bias(self, *weights: str) -> str | None:
        return BIAS if BIAS in self._tensors and {HEAD, EMBEDDING} & set(weights) else None
