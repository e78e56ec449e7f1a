"""Classes by how often they occur: the order in which heads hand out their dimensions, short lists and codes.

::

    order = argsort(-counts)        order[position] = class id        place[class id] = position

Users keep their own ids throughout; a head without counts takes the ids as sorted already, the most frequent first.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from headlong.arrays import as_numpy, to_host
from headlong.dtypes import HIDDEN
from headlong.errors import DtypeError, NonFiniteError, OptionError, ShapeError

Counts = NDArray[np.float64]


def checked_counts(counts: ArrayLike | None, vocab: int) -> Counts | None:
    """``counts [vocab]`` as float64: finite, none below 0, not all 0."""
    if counts is None:
        return None
    given = as_numpy(to_host(counts), "counts")
    if given.dtype.kind not in "biuf" and given.dtype not in HIDDEN:
        raise DtypeError(f"counts is {given.dtype}; expected numbers")
    array: Counts = given.astype(np.float64)
    if array.shape != (vocab,):
        raise ShapeError(f"counts has shape {list(array.shape)}; expected [{vocab}], how often each class occurs")
    bad = ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        raise NonFiniteError(f"counts[{np.argmax(bad)}] is {array[np.argmax(bad)]}; expected finite numbers of 0 or more")
    if not array.any():
        raise OptionError("counts is zero everywhere; count the training targets, or leave it out")
    return array


def frequency_order(counts: ArrayLike | None, vocab: int) -> Tensor:
    """``order [vocab]``, most frequent first, ties by id; 0, 1, ... without counts."""
    array = checked_counts(counts, vocab)
    return torch.arange(vocab) if array is None else torch.from_numpy(np.argsort(-array, kind="stable"))


def places(order: Tensor) -> Tensor:
    """The position of each class: the inverse of ``order``."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return place
