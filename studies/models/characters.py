"""A layer with a class for every run of twenty characters of a text: ten million of them, most seen once.

    A[c, p] = sum over d of 1 / d, where characters c stand 3 d characters before an occurrence of run p     d = 1 .. REACH
    w_p, b_p, hidden: as for phrases of words, with three characters c in the place of a word

Every three characters are a context, so that 24 characters before a run say where it stands, and hardly two places are alike.
Runs are told apart by 64 bits of a hash: two of ten million share them with a probability of three in a million.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from studies.models.phrases import Floats, Ids, Phrases, as_loud, factors, sparse

REACH, STEP = 8, 3
"""Contexts before a run, and characters of each."""
AT_ONCE = 1 << 19
"""Classes whose part of the matrix is made at once: sorting its entries takes several times its memory."""
ODD = np.uint64(0x9E3779B97F4A7C15)


def characters(text: str, others: tuple[str, str], most: int, length: int = 20, dim: int = 64, seed: int = 0) -> Phrases:
    """The ``most`` most frequent runs of ``length`` characters in ``text``, ties by first appearance."""
    points = [np.frombuffer(one.encode("utf-32-le"), np.uint32).astype(np.int64) for one in (text, *others)]
    contexts, number = _contexts(points)
    first = REACH * STEP  # the first place with all its contexts
    number_of, count = _classes(points[0][first:], length, most)
    places = np.flatnonzero(number_of >= 0)
    places = places[np.argsort(number_of[places], kind="stable")]
    classes, starts = number_of[places], places + first
    sums = sum(np.bincount(contexts[0][starts - STEP * d], minlength=number) / d for d in range(1, REACH + 1))
    scale = 1 / np.sqrt(np.maximum(sums, 1e-3))
    harmonic = sum(1 / d for d in range(1, REACH + 1))
    pieces = []
    for begin in range(0, len(count), AT_ONCE):
        end = min(begin + AT_ONCE, len(count))
        part = slice(*np.searchsorted(classes, (begin, end)))
        before = np.stack([contexts[0][starts[part] - STEP * d] for d in range(1, REACH + 1)])
        share = scale[before] / np.arange(1, REACH + 1)[:, None] / np.sqrt(harmonic * count[classes[part]])
        rows = np.tile(classes[part] - begin, REACH)
        pieces.append(sparse(rows, before.ravel(), share.ravel().astype(np.float32), (end - begin, number)))
    left, weight = factors(pieces, dim, seed)
    left *= scale.astype(np.float32)[:, None]
    hidden = [_hidden(left, one) for one in contexts[1:]]
    return Phrases(weight, np.log(count).astype(np.float32), *as_loud(weight, *hidden))


def _contexts(texts: list[Ids]) -> tuple[list[NDArray[np.int64]], int]:
    """Which three characters begin at each place, numbered through all texts."""
    names = [(one[:-2] << 42) + (one[1:-1] << 21) + one[2:] for one in texts]
    found, numbers = np.unique(np.concatenate(names), return_inverse=True)
    return np.split(numbers, np.cumsum([len(one) for one in names])[:-1]), len(found)


def _classes(text: Ids, length: int, most: int) -> tuple[Ids, Ids]:
    """The class that begins at each place, -1 where it is none of the most frequent, and how often each class is seen."""
    count = len(text) - length + 1
    names = np.zeros(count, np.uint64)
    for later in range(length):
        names = names * ODD + text[later : later + count].astype(np.uint64) + np.uint64(1)
    _, first, run, seen = np.unique(names, return_index=True, return_inverse=True, return_counts=True)
    kept = np.lexsort((first, -seen))[:most]
    number = np.full(len(seen), -1, np.int64)
    number[kept] = np.arange(len(kept))
    return number[run], seen[kept]


def _hidden(left: Floats, contexts: Ids) -> Floats:
    """One vector for every place that has all its contexts before it."""
    first = REACH * STEP
    found = np.zeros((len(contexts) - first, left.shape[1]), np.float32)
    for d in range(1, REACH + 1):
        found += left[contexts[first - STEP * d : len(contexts) - STEP * d]] / np.float32(d)
    return found
