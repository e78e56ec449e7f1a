"""What candidates for the first look are counted on: some classes, some calibration vectors, and their logits.

    share_i = e^z_i / sum_j e^z_j        of each class, for each vector that judges
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.layers.matrix import Layer
from headlong.native import Doubles, encode_int8
from headlong.previews.few_bits import SAMPLE
from headlong.previews.int8 import logits_of
from headlong.previews.look_costs import Masses, masses_of
from headlong.previews.whitening import Basis, Directions
from headlong.promise import Promise

JUDGES, FEWER, FEWEST = 64, 24, 12
"""Most calibration vectors that are looked at: for ids; for a normaliser, which needs the logits of each in order; and how many
there are at least before any is left out of the basis."""
LOGITS, BEST = 2**23, 10
"""Most logits that are looked at, and the k whose proof is counted."""
ONE_IN = 8
"""Classes of which queries side by side score the best of one before they look at all: ``kEvery`` in side_by_side/state.h."""
PLENTY = 16
"""Vectors for each judge, from which on the judges are no part of the basis."""
LIGHTEST = -1e4
"""Nats below the largest term: lighter ones are as good as nothing."""


class Seen(NamedTuple):
    """What the candidates are counted on.

    ``rows, vectors``  sampled classes and the judges, in the basis
    ``logits``         ``[judges, classes]`` of those classes
    ``best, found``    ``[judges]``: the k-th best logit of all classes, and of those that queries side by side look at first
    ``masses``         of each judge: those of all classes but the k best, in groups, and the sampled class that has the radii
                       of each group, the nearest in the order of logits
    ``whole``          ``[judges, classes]``: the radii of int8 codes of the rows as they are
    ``lightest``       ``[judges, vocab]``: the mass of the 1, 2, ... lightest classes, where a normaliser is estimated
    ``lengths``        ``[judges], [classes]``: how long a segment of the vectors and of the rows is, of those asked for
    ``longest``        how far a segment of the rows reaches in its longest direction, of those segments that were asked for
    """

    rows: Doubles
    vectors: Doubles
    logits: Doubles
    best: Doubles
    found: Doubles
    masses: tuple[tuple[Masses, NDArray[np.int64]], ...]
    whole: Doubles
    lightest: Doubles
    lengths: dict[tuple[int, int], tuple[Doubles, ...]]
    longest: dict[tuple[int, int], float]


def apart(vectors: Doubles, vocab: int, promise: Promise) -> tuple[Doubles, Doubles]:
    """Those that judge, and those that a basis is made of: others, where there are plenty. A basis fits the vectors that it was
    made of: with 4,096 in 640 dimensions, looks at others leave four times as many classes open."""
    step = max(-(-len(vectors) // judges_of(vocab, promise)), min(PLENTY, -(-len(vectors) // FEWEST)))
    judges = vectors[::step]
    return judges, (vectors[np.arange(len(vectors)) % step > 0] if step >= PLENTY else vectors)


def blended(layer: Layer, like: Doubles) -> Doubles:
    """``sum_i g_i (w_i - mean of w)``, g random: as many as ``like`` and as long, leaning towards no row.

    Rows that stand in for queries find themselves and what is alike, far above all others; queries that lean towards no row
    find ten logits close together, for which a look that suits rows may open every class.
    """
    rows = layer.weight[:: -(-layer.vocab // SAMPLE)].astype(np.float64)
    found = np.random.default_rng(1).standard_normal((len(like), len(rows))) @ (rows - rows.mean(axis=0))
    length = np.linalg.norm(found, axis=1, keepdims=True)
    return np.asarray(found / np.maximum(length, 1e-300) * np.linalg.norm(like, axis=1, keepdims=True))


def judges_of(vocab: int, promise: Promise) -> int:
    """How many vectors judge a layer of so many classes: fewer where their logits would be many."""
    return max(1, min(JUDGES if math.isinf(promise.eps) else FEWER, LOGITS // vocab))


def see(
    layer: Layer, basis: Basis | Directions, rows: Doubles, judges: Doubles, promise: Promise, threads: int
) -> Seen:
    """What ``judges`` see of the layer; ``rows``: the sampled ones, in the basis."""
    some = slice(None, None, -(-layer.vocab // SAMPLE))
    vectors = (judges - basis.mean) @ basis.rotation.astype(np.float64)
    logits = logits_of(layer, judges, threads)
    sampled, k, lightest = logits[:, some].copy(), min(BEST, layer.vocab), np.zeros((len(judges), 1))
    # One by one, and in the logits' own place: copies of them would be the most that building takes at a time.
    ranks = -np.array([min(ONE_IN * k, layer.vocab), k])
    (found, best), masses = np.array([np.partition(row, ranks)[ranks] for row in logits]).T, []
    if not math.isinf(promise.eps):
        for row, own in zip(logits, sampled, strict=True):
            shares = _ascending_shares(layer, row)
            groups, ranks = masses_of(shares[::-1], k)
            masses.append((groups, np.argsort(-own)[(ranks * (len(own) / layer.vocab)).astype(np.int64)]))
            np.cumsum(shares, out=row)
        lightest = logits if promise.delta > 0 else lightest
    sampled_rows = np.ascontiguousarray(layer.weight[some])
    lost = encode_int8(sampled_rows, threads).error[: len(sampled_rows)].astype(np.float64)
    whole = np.linalg.norm(judges, axis=1)[:, None] * lost
    return Seen(rows, vectors, sampled, best, found, tuple(masses), whole, lightest, {}, {})


def _ascending_shares(layer: Layer, logits: Doubles) -> Doubles:
    """The shares of the sum of exponentials ``[vocab]``, the least first; in float32, close enough and sorted faster."""
    exponents = layer.link(logits[None])[0]
    mass = np.exp(np.sort(np.maximum(exponents - exponents.max(), LIGHTEST).astype(np.float32)).astype(np.float64))
    return np.asarray(mass / mass.sum())
