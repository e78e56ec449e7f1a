"""Binary trees over classes: how they are built, and the path to every class::

    balanced   halves of the classes by falling frequency                    depth ceil(log2 V)
    huffman    the two rarest subtrees join, again and again                 expected depth = entropy of the counts, + 1 at most
    learned    2-means of the classes' context vectors, again and again      classes alike share long paths

A tree is ``children [V - 1, 2]``: a node's number, or ``~class`` for a leaf; node 0 is the root.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from headlong.arrays import as_numpy, to_host
from headlong.dtypes import Doubles, Floats, Ids
from headlong.errors import NonFiniteError, OptionError, ShapeError
from headlong.heads.frequency import checked_counts, frequency_order
from headlong.layers.tree import check_tree

ROUNDS = 8
"""Rounds of 2-means at each node."""


class Paths(NamedTuple):
    """``nodes, signs [V, longest]``: the nodes from each class up to the root, and the branch taken there.

    1 is the first branch, -1 the second; 0 fills the rest of a row.
    """

    nodes: Ids
    signs: Floats


def built(tree: str | ArrayLike, vocab: int, counts: ArrayLike | None = None) -> Ids:
    """The tree by name, or the one that was given, checked."""
    if isinstance(tree, str):
        if tree == "huffman":
            return huffman(zipf(vocab) if counts is None else counts)
        if tree == "balanced":
            return balanced(frequency_order(counts, vocab).numpy())
        raise OptionError(f"tree is {tree!r}; expected 'huffman', 'balanced', or children [vocab - 1, 2]")
    children = as_numpy(to_host(tree), "tree")
    if children.shape != (vocab - 1, 2) or children.dtype.kind not in "iu":
        raise ShapeError(f"tree is {children.dtype} of shape {list(children.shape)}; expected integers [{vocab - 1}, 2]")
    check_tree(children.reshape(-1).astype(np.int64), 2 * np.arange(vocab))
    return children.astype(np.int64)


def zipf(vocab: int) -> Doubles:
    """Counts in proportion to ``1 / rank``."""
    return 1.0 / np.arange(1, vocab + 1)


def huffman(counts: ArrayLike | None) -> Ids:
    """The tree of least expected depth. Classes that were never seen count as seen once, so that none is infinitely deep."""
    given = as_numpy(to_host(counts), "counts")
    vocab, seen = given.size, checked_counts(given, given.size)
    assert seen is not None
    smallest = float(seen[seen > 0].min())
    heap = [(max(float(count), smallest), ~number) for number, count in enumerate(seen)]
    heapq.heapify(heap)
    children = np.empty((vocab - 1, 2), np.int64)
    for node in range(vocab - 2, -1, -1):  # the last to join is the root, node 0
        rare, common = heapq.heappop(heap), heapq.heappop(heap)
        children[node] = common[1], rare[1]
        heapq.heappush(heap, (rare[0] + common[0], node))
    return children


def balanced(order: Ids) -> Ids:
    """Halves of ``order``, again and again."""
    return grown(order, lambda ids: len(ids) // 2)


def learned(features: ArrayLike, counts: ArrayLike | None = None) -> Ids:
    """Recursive 2-means of ``features [V, n]``, each class's average context or its row in a trained layer.

    A split falls at half of the ``counts`` along the line between the two means: classes seen often end near the root.
    """
    points = checked_features(features)
    weights = checked_counts(counts, len(points))
    weights = np.ones(len(points)) if weights is None else np.maximum(weights, weights[weights > 0].min())
    return grown(np.arange(len(points)), lambda ids: _split(points, weights, ids))


def checked_features(features: ArrayLike) -> Floats:
    """``[V, n]``, finite: a class that was never seen has no context vector."""
    points: Floats = np.asarray(features, np.float32)
    if points.ndim != 2 or len(points) < 2:
        raise ShapeError(f"features has shape {list(points.shape)}; expected one row for each of two classes or more")
    missing = ~np.isfinite(points).all(axis=1)
    if missing.any():
        raise NonFiniteError(
            f"{missing.sum()} classes have no context vector, class {np.argmax(missing)} for one: they were never seen; "
            f"use the rows of a trained layer, or contexts(..., unseen=rows)"
        )
    return points


def contexts(hidden: ArrayLike, target: ArrayLike, vocab: int, unseen: ArrayLike | None = None) -> Floats:
    """``[V, dim]``: the mean hidden vector in front of each class; ``unseen [V, dim]`` where it never came (else NaN)."""
    rows, ids = np.asarray(hidden, np.float32), np.asarray(target).reshape(-1)
    sums = np.zeros((vocab, rows.shape[1]), np.float32)
    np.add.at(sums, ids, rows)
    count = np.bincount(ids, minlength=vocab)[:, None].astype(np.float32)
    instead = np.full_like(sums, np.nan) if unseen is None else np.asarray(unseen, np.float32)
    return np.where(count > 0, sums / np.maximum(count, 1), instead)


def grown(order: Ids, split: Callable[[Ids], int]) -> Ids:
    """``split(ids)`` may sort ``ids`` in place and says where to cut them, from 1 to one less than their number."""
    children = np.empty((len(order) - 1, 2), np.int64)
    waiting, nodes = [(np.array(order), 0)], 1
    while waiting:
        ids, node = waiting.pop()
        cut = split(ids)
        for side, part in enumerate((ids[:cut], ids[cut:])):
            if len(part) == 1:
                children[node, side] = ~part[0]
            else:
                children[node, side] = nodes
                waiting.append((part, nodes))
                nodes += 1
    return children


def _split(points: Floats, weights: Doubles, ids: Ids) -> int:
    """Sorts the classes along the line between two means and says where to cut."""
    ids[:] = ids[np.argsort(two_means(points[ids], weights[ids]), kind="stable")]
    mass = np.cumsum(weights[ids])
    cut = int(np.searchsorted(mass, mass[-1] / 2)) + 1
    before = mass[cut - 2] if cut > 1 else 0.0
    cut -= int(cut > 1 and mass[-1] / 2 - before < mass[cut - 1] - mass[-1] / 2)
    return min(max(cut, 1), len(ids) - 1)


def two_means(points: Floats, weights: Doubles) -> Doubles:
    """Where each point lies along the line between two means, 0 half-way; the first direction is the widest."""
    mass = weights.astype(np.float32)
    centred = points - (mass @ points) / mass.sum()
    direction = centred[np.argmax((centred**2).sum(axis=1))]
    for _ in range(3):  # a few powers of the covariance: nearly its first eigenvector
        direction = (mass * (centred @ direction)) @ centred
        length = np.linalg.norm(direction)
        if not length > 0:
            return np.arange(len(points), dtype=np.float64) - (len(points) - 1) / 2
        direction = direction / length
    along = centred @ direction
    for _ in range(ROUNDS):
        right = along > 0
        if right.all() or not right.any():
            break
        means = [(mass[side] @ centred[side]) / mass[side].sum() for side in (~right, right)]
        direction = means[1] - means[0]
        moved = centred @ direction - (means[0] + means[1]) @ direction / 2
        if ((moved > 0) == right).all():
            along = moved
            break
        along = moved
    return np.asarray(along, np.float64)


def paths(children: Ids) -> Paths:
    """The way from every class up to the root."""
    vocab = len(children) + 1
    above, branch = np.full(2 * vocab - 1, -1), np.zeros(2 * vocab - 1, np.float32)  # nodes first, then leaves
    for side, sign in enumerate((1.0, -1.0)):
        below = children[:, side]
        slot = np.where(below >= 0, below, vocab - 1 + ~below)
        above[slot], branch[slot] = np.arange(len(children)), sign
    steps, at = [], np.arange(vocab - 1, 2 * vocab - 1)
    while (at > 0).any():
        going = at > 0
        steps.append((np.where(going, above[at], 0), np.where(going, branch[at], 0.0)))
        at = np.where(going, above[at], 0)
    nodes, signs = (np.stack(part, axis=1) for part in zip(*steps, strict=True))
    return Paths(np.ascontiguousarray(nodes), np.ascontiguousarray(signs, np.float32))
