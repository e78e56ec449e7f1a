"""What tells one data set from another::

    words_of(content)       # the names of the classes of each side: (classes,), or (source words, target words)
    checksum_of(content)    # sha256 over them and everything that a model reads of the three splits
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.data.text import Corpus

Words = tuple[tuple[str, ...], ...]


def words_of(content: Any) -> Words:
    """Of a ``Corpus`` or ``Pairs``; the classes that a model tells apart come last."""
    if isinstance(content, Corpus):
        return (content.vocabulary.words,)
    return content.source.words, content.target.words


def checksum_of(content: Any) -> str:
    """Equal exactly where words and splits are."""
    digest = hashlib.sha256(json.dumps(words_of(content)).encode())
    for split in (content.train, content.valid, content.test):
        for array in _arrays(split):
            digest.update(f"{array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return f"sha256:{digest.hexdigest()}"


def _arrays(split: Any) -> Iterator[NDArray[Any]]:
    """A stream of ids; or of each side of sentence pairs the lengths and all ids."""
    if isinstance(split, np.ndarray):
        yield split
    else:
        for side in (split.source, split.target):
            yield np.array([len(ids) for ids in side], np.int64)
            yield np.concatenate([np.empty(0, np.int32), *side])
