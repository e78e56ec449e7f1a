"""A layer with a class for every phrase of a text: what comes next, as runs of words, from a factorised co-occurrence.

    A[c, p] = sum over d of 1 / d, where word c stands d words before an occurrence of phrase p              d = 1 .. REACH
    A / sqrt(row sums x column sums)  ~  U S V^T            (randomised, two power iterations)

    w_p = V_p S,   b_p = log count of p,   hidden = sum over d of (1 / d) U[word d before] / sqrt(row sum)

A million classes with real statistics, from two million words of text and in half a minute: rows of frequent phrases say much,
those of phrases that occur once are what few neighbours make of them. Queries are other texts' positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]

REACH = 4
"""Words before a phrase that say something of it."""
SPARE = 8
"""Directions beyond those that are kept, while they are looked for."""
LOUD = 3.0
"""The standard deviation of a query's logits, biases aside, over the classes."""


class Phrases(NamedTuple):
    """``weight [classes, dim]``, ``bias [classes]``, and hidden vectors of two other texts."""

    weight: Floats
    bias: Floats
    calibration: Floats
    queries: Floats


def phrases(
    text: Ids, others: tuple[Ids, Ids], words: int, most: int, length: int = 3, dim: int = 64, seed: int = 0
) -> Phrases:
    """The ``most`` most frequent phrases of ``length`` words in ``text``, ids below ``words``; ties by first appearance."""
    names = text[: len(text) - length + 1].astype(np.int64)
    for later in range(1, length):
        names = names * words + text[later : len(text) - length + 1 + later]
    _, first, phrase, count = np.unique(names, return_index=True, return_inverse=True, return_counts=True)
    kept = np.lexsort((first, -count))[:most]
    number = np.full(len(count), -1, np.int64)
    number[kept] = np.arange(len(kept))
    phrase = number[phrase]
    pairs = [_pairs(text, phrase, step) for step in range(1, REACH + 1)]
    before, after, share = (np.concatenate(column) for column in zip(*pairs, strict=True))
    sums = np.bincount(before, share, words), np.bincount(after, share, len(kept))
    share = (share / np.sqrt(sums[0][before] * sums[1][after])).astype(np.float32)
    left, right = factors([sparse(after, before, share, (len(kept), words))], dim, seed)
    left /= np.sqrt(np.maximum(sums[0], 1e-3)).astype(np.float32)[:, None]
    hidden = [_hidden(left, other) for other in others]
    return Phrases(right, np.log(count[kept]).astype(np.float32), *as_loud(right, *hidden))


def _pairs(text: Ids, phrase: Ids, step: int) -> tuple[Ids, Ids, NDArray[np.float64]]:
    """Words, the kept phrases ``step`` words behind them, and how much such a pair counts."""
    before, after = text[: len(phrase) - step].astype(np.int64), phrase[step:]
    here = after >= 0
    return before[here], after[here], np.full(int(here.sum()), 1.0 / step)


def sparse(rows: Ids, columns: Ids, values: Floats, shape: tuple[int, int]) -> Any:
    """A sparse matrix; what is given for one entry several times is added up."""
    pairs = torch.from_numpy(np.stack([rows, columns]))
    return torch.sparse_coo_tensor(pairs, torch.from_numpy(values), shape, check_invariants=True).coalesce()


def factors(pieces: Sequence[Any], dim: int, seed: int) -> tuple[Floats, Floats]:
    """``U [contexts, dim]`` and ``V S [classes, dim]`` of a matrix ``[contexts, classes]``, given in pieces of classes."""
    found = torch.randn(pieces[0].shape[1], dim + SPARE, generator=torch.Generator().manual_seed(seed))
    for _ in range(3):
        found = torch.linalg.qr(sum(piece.t() @ (piece @ found) for piece in pieces))[0]
    gram = sum(right.T @ right for right in (piece @ found for piece in pieces))
    energy, turn = torch.linalg.eigh(gram)
    left = found @ turn[:, torch.argsort(energy, descending=True)[:dim]]
    rows = np.empty((sum(piece.shape[0] for piece in pieces), dim), np.float32)
    done = 0
    for piece in pieces:
        rows[done : done + piece.shape[0]] = (piece @ left).numpy()
        done += piece.shape[0]
    return left.numpy(), rows


def as_loud(rows: Floats, calibration: Floats, queries: Floats) -> tuple[Floats, Floats]:
    """Both times what makes a query's logits over the classes spread by :data:`LOUD`."""
    some = rows[:: max(1, len(rows) // 4096)]
    times = np.float32(LOUD / float((calibration[::64] @ some.T).std()))
    return calibration * times, queries * times


def _hidden(left: Floats, text: Ids) -> Floats:
    """One vector for every position that has :data:`REACH` words before it."""
    count = len(text) - REACH + 1
    found = np.zeros((count, left.shape[1]), np.float32)
    for step in range(1, REACH + 1):
        found += left[text[REACH - step : REACH - step + count]] / np.float32(step)
    return found
