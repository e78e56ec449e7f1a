"""Which words share a class in a two-level head::

    frequency   by falling frequency, equal sums of sqrt(count) to each class (Mikolov et al., 2011)
    random      shuffled, equal sizes
    clustered   equal sizes by recursive 2-means of context vectors
    brown       words with the same neighbours to the left: the predictive exchange algorithm (Uszkoreit and Brants, 2008),
                which raises sum over bigrams of log p(class | word before) p(word | class) one word at a time

Each gives ``[vocab]``, the class of every word, 0, 1, ... without a gap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.errors import OptionError, ShapeError
from headlong.heads.frequency import checked_counts, frequency_order
from headlong.heads.trees import checked_features, two_means, zipf

Ids = NDArray[np.int64]
Doubles = NDArray[np.float64]

ASSIGNMENTS = ("frequency", "random")


def assigned(classes: Any, vocab: int, count: int | None, counts: Any, seed: int) -> Ids:
    """The class of each word: by name, or as given and checked."""
    number = round(vocab**0.5) if count is None else count
    if not isinstance(number, int) or not 1 <= number <= vocab:
        raise OptionError(f"count is {count!r}; expected a whole number of classes from 1 to {vocab}")
    if isinstance(classes, str):
        return by_frequency(counts, vocab, number) if classes == "frequency" else at_random(vocab, number, seed)
    group = np.asarray(classes)
    if group.shape != (vocab,) or group.dtype.kind not in "iu":
        raise ShapeError(f"classes is {group.dtype} of shape {list(group.shape)}; expected [{vocab}], the class of each word")
    sizes = np.bincount(group) if group.min() >= 0 else np.zeros(1)
    if not sizes.all():
        raise OptionError(f"class {int(np.argmin(sizes))} has no word; number the classes 0, 1, ... without a gap")
    return group.astype(np.int64)


def by_frequency(counts: Any, vocab: int, number: int) -> Ids:
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
    shuffled = np.random.default_rng(seed).permutation(vocab)
    group = np.empty(vocab, np.int64)
    group[shuffled] = np.arange(vocab) * number // vocab
    return group


def clustered(features: Any, number: int, counts: Any = None) -> Ids:
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


def brown(text: Any, vocab: int, number: int, rounds: int = 4) -> Ids:
    """The predictive exchange algorithm over the bigrams of ``text [n]``, from classes by frequency."""
    words = np.asarray(text).reshape(-1)
    group = by_frequency(np.bincount(words, minlength=vocab) + 1e-9, vocab, number)
    exchange = _Exchange(words, vocab, group, number)
    for _ in range(rounds):
        if not sum(exchange.move(word) for word in exchange.order.tolist()):
            break
    return np.unique(exchange.group, return_inverse=True)[1].astype(np.int64)


class _Exchange:
    """``pairs[v, c]``: how often a word of class ``c`` follows word ``v``; ``sizes[c]``: how often class ``c`` comes.

    The bigrams' log-likelihood is ``sum pairs log pairs - sum sizes log sizes`` and terms that no move changes.
    """

    def __init__(self, words: Ids, vocab: int, group: Ids, number: int) -> None:
        self.group = group.copy()
        keys, times = np.unique(words[:-1] * vocab + words[1:], return_counts=True)
        before, after = keys // vocab, keys % vocab
        sort = np.argsort(after, kind="stable")
        self.before, self.times = before[sort], times[sort].astype(np.float32)
        self.edges = np.searchsorted(after[sort], np.arange(vocab + 1))
        self.total = np.bincount(after, times, vocab)
        self.pairs = np.zeros((vocab, number), np.float32)
        np.add.at(self.pairs, (before, group[after]), times)
        self.sizes = np.bincount(group, self.total, number)
        self.words = np.bincount(group, minlength=number)
        self.order = np.argsort(-self.total, kind="stable")[: int((self.total > 0).sum())]

    def move(self, word: int) -> bool:
        """Puts the word where the likelihood is largest; the last word of a class stays."""
        old, part = int(self.group[word]), slice(self.edges[word], self.edges[word + 1])
        if self.words[old] == 1:
            return False
        before, times = self.before[part], self.times[part]
        self.pairs[before, old] -= times
        self.sizes[old] -= self.total[word]
        near = self.pairs[before]
        gain = (_xlogx(near + times[:, None]) - _xlogx(near)).sum(axis=0, dtype=np.float64)
        gain -= _xlogx(self.sizes + self.total[word]) - _xlogx(self.sizes)
        new = int(np.argmax(gain)) if gain.max() > gain[old] + 1e-6 else old
        self.pairs[before, new] += times
        self.sizes[new] += self.total[word]
        self.words[old] -= 1
        self.words[new] += 1
        self.group[word] = new
        return new != old


def _xlogx(values: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(values * np.log(np.maximum(values, 1e-30, dtype=values.dtype)))
