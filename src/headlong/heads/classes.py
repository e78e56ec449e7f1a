"""Which words share a class in a two-level head::

    frequency   by falling frequency, equal sums of sqrt(count) to each class (Mikolov et al., 2011)
    random      shuffled, equal sizes
    clustered   equal sizes by recursive 2-means of context vectors

Each gives ``[vocab]``, the class of every word, 0, 1, ... without a gap.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from headlong.arrays import as_numpy, to_host
from headlong.dtypes import Ids
from headlong.errors import OptionError, ShapeError
from headlong.heads.frequency import checked_counts, frequency_order
from headlong.heads.trees import checked_features, two_means, zipf
from headlong.number_checks import whole
from headlong.randomness import stream

ASSIGNMENTS = ("frequency", "random")


def assigned(classes: str | ArrayLike, vocab: int, count: int | None, counts: ArrayLike | None, seed: int) -> Ids:
    """The class of each word: by name, or as given and checked."""
    number = round(vocab**0.5) if count is None else whole(count, "count", 1, vocab)
    if isinstance(classes, str):
        return by_frequency(counts, vocab, number) if classes == "frequency" else at_random(vocab, number, seed)
    group = as_numpy(to_host(classes), "classes")
    if group.shape != (vocab,) or group.dtype.kind not in "iu":
        raise ShapeError(f"classes is {group.dtype} of shape {list(group.shape)}; expected [{vocab}], the class of each word")
    sizes = np.bincount(group) if group.min() >= 0 else np.zeros(1)
    if not sizes.all():
        raise OptionError(f"class {int(np.argmin(sizes))} has no word; number the classes 0, 1, ... without a gap")
    return group.astype(np.int64)


def by_frequency(counts: ArrayLike | None, vocab: int, number: int) -> Ids:
    """Bins of equal ``sum(sqrt(count))`` along the order of frequency, each with one word at least."""
    seen = checked_counts(counts, vocab)
    order = frequency_order(counts, vocab).numpy()
    mass = np.sqrt(zipf(vocab) if seen is None else seen[order])
    middle = np.cumsum(mass) - mass / 2
    bins = np.minimum((middle / mass.sum() * number).astype(np.int64), number - 1)
    # as many words ahead as classes ahead, and as many behind: then none is empty
    ranks = np.arange(vocab)
    bins = np.clip(bins, number - (vocab - ranks), ranks)
    group = np.empty(vocab, np.int64)
    group[order] = np.unique(bins, return_inverse=True)[1]
    return group


def at_random(vocab: int, number: int, seed: int = 0) -> Ids:
    shuffled = stream("shuffled classes", seed).permutation(vocab)
    group = np.empty(vocab, np.int64)
    group[shuffled] = np.arange(vocab) * number // vocab
    return group


def clustered(features: ArrayLike, number: int, counts: ArrayLike | None = None) -> Ids:
    """Classes of equal size (by one at most) from ``features [vocab, n]``: halves along the line between two means."""
    points = checked_features(features)
    weights = checked_counts(counts, len(points))
    weights = np.ones(len(points)) if weights is None else np.sqrt(np.maximum(weights, weights[weights > 0].min()))
    group = np.empty(len(points), np.int64)
    waiting = [(np.arange(len(points)), 0, number)]
    while waiting:
        ids, first, parts = waiting.pop()
        if parts == 1:
            group[ids] = first
            continue
        ids = ids[np.argsort(two_means(points[ids], weights[ids]), kind="stable")]
        left = parts // 2
        cut = len(ids) * left // parts
        waiting += [(ids[:cut], first, left), (ids[cut:], first + left, parts - left)]
    return group
