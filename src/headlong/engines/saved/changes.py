"""Classes that came and went in an engine's file: marks, names and rows, checked on the way back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array
from headlong.engines.saved.blocks import TensorReader
from headlong.layers.matrix import Layer

NAME = "changes."


class Changes(NamedTuple):
    """``there [settled]`` uint8, the ``rows`` beside (or None), their ``ids``, ascending, and how many ids there were."""

    there: NDArray[np.uint8]
    rows: Layer | None
    ids: NDArray[np.int64]
    vocab: int


def tensors_of(changes: Changes) -> dict[str, Array | None]:
    rows = changes.rows
    weight, bias = (None, None) if rows is None else (rows.weight, rows.bias)
    return {f"{NAME}there": changes.there, f"{NAME}ids": changes.ids, f"{NAME}weight": weight, f"{NAME}bias": bias}


def read_changes(vocab: Any, tensor: TensorReader, layer: Layer) -> Changes:
    """What :func:`tensors_of` said, over the settled ``layer``. Else a ValueError."""
    there = tensor(f"{NAME}there", np.uint8, (layer.vocab,))
    ids = tensor(f"{NAME}ids", np.int64, (None,))
    if type(vocab) is not int or not layer.vocab <= vocab <= layer.vocab + 2**31:
        raise ValueError(f"changes leave {vocab!r} ids to {layer.vocab} classes")
    if there.max(initial=0) > 1 or (len(ids) and not (ids[0] >= 0 and ids[-1] < vocab and (np.diff(ids) > 0).all())):
        raise ValueError("changes contain invalid marks or ids")
    if there[ids[ids < layer.vocab]].any():
        raise ValueError("changes have a class in two places")
    if not len(ids):
        return Changes(there, None, ids, vocab)
    weight = tensor(f"{NAME}weight", layer.weight.dtype, (len(ids), layer.dim))
    bias = tensor(f"{NAME}bias", np.float32, (len(ids),), missing=True)
    if not np.isfinite(weight.astype(np.float32)).all() or (bias is not None and not np.isfinite(bias).all()):
        raise ValueError("rows of changes contain NaN or infinity")
    return Changes(there, Layer(weight, bias, layer.link), ids, vocab)
