"""Screens for a trained layer from calibration vectors: which rows are worth reading, learned or clustered.

::

    learned (L2S, Chen et al. 2019)     t(h) = argmax_t <v_t, h>; sets c_t by a greedy knapsack over the top ids seen in t;
                                        v_t by gradient of E[missed top ids + false * |c_t|] under Gumbel-softmax
    equal clusters                      rows of [weight, bias] in C balanced spherical clusters; probes of them are read

Both measure what they miss on vectors that they did not learn from, with an upper end that holds but for one in a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import hidden64
from headlong.errors import OptionError, ShapeError
from headlong.layers.centroid_head import write_centroid_head
from headlong.layers.matrix import Layer
from headlong.layers.screens import ScreenLayer
from headlong.native import Doubles
from headlong.previews.shortlist import shortlist

Ids = NDArray[np.int64]
AT_ONCE = 1 << 22
DOUBT = 1e-3
"""How often the measured rate may be above its upper end."""
HELD_OUT = 0.3
"""Of the calibration vectors, what is kept for measuring."""


def build(
    kind: str, layer: Layer, hidden: Any, out: Path, size: int, clusters: int, budget: float, probes: int, seed: int
) -> str:
    """``headlong shortlist``: write what was asked for and say in one line what it is and misses."""
    vectors = hidden64(hidden, layer.dim, "calibration")
    if kind == "tokens":
        kept = shortlist(layer, vectors, min(size, layer.vocab))
        kept.save(out)
        shares = f"{kept.kept_mass:.2%} of the mass, {kept.kept_top1:.2%} of the top ids"
        more = f" ({size} were asked for; the layer has no more)" if size > layer.vocab else ""
        return f"{len(kept.ids)} of {layer.vocab} classes{more}: {shares}"
    if kind == "learned":
        screen = learned_screen(layer, vectors, clusters or 100, budget, seed=seed)
    elif kind in ("clusters", "centroid-head"):
        screen = equal_clusters(layer, vectors, clusters, probes, seed=seed)
    else:
        raise OptionError(f"kind is {kind!r}; expected tokens, learned, clusters or centroid-head")
    if kind == "centroid-head":
        write_centroid_head(screen, out)
    else:
        screen.save(out)
    assert screen.missed is not None
    return f"{screen!r}: top {screen.missed[0]} incomplete for at most {screen.missed[1]:.2%} of queries like the held-out ones"


def learned_screen(
    layer: Layer, calibration: Doubles, clusters: int = 100, budget: float = 400.0, top: int = 5, rounds: int = 2, seed: int = 0
) -> ScreenLayer:
    """``budget``: classes that a query reads on average; ``top``: the ids that a set should hold."""
    learn, held = _split(layer, calibration, clusters)
    if not 1 <= budget <= layer.vocab:
        raise OptionError(f"budget={budget}; expected 1 to the layer's {layer.vocab} classes")
    rng = np.random.default_rng(seed)
    wanted = top_ids(layer, learn, top)
    unit = learn / np.maximum(np.linalg.norm(learn, axis=1, keepdims=True), 1e-30)
    vectors = _means(unit, clusters, rng)
    sets = knapsack((unit @ vectors.T).argmax(axis=1), wanted, clusters, layer.vocab, budget)
    for _ in range(rounds):
        vectors = _routed(vectors, unit, wanted, sets, budget, rng)
        sets = knapsack((unit @ vectors.T).argmax(axis=1), wanted, clusters, layer.vocab, budget)
    ids, starts = np.nonzero(sets)[1], np.concatenate([[0], np.cumsum(sets.sum(axis=1))])
    screen = ScreenLayer(layer, _with_constant(vectors), ids, starts)
    return measured(screen, held, top)


def knapsack(best: Ids, wanted: Ids, clusters: int, vocab: int, budget: float) -> NDArray[np.bool_]:
    """``[clusters, vocab]``: the pairs with the most wanted ids per context of the cluster, mean size ``budget``.

    A pair is worth its count and weighs its cluster's share of the contexts; every cluster keeps one class at least.
    """
    counts = np.zeros((clusters, vocab), np.float32)
    np.add.at(counts, (np.repeat(best, wanted.shape[1]), wanted.ravel()), 1)
    share = np.bincount(best, minlength=clusters) / len(best)
    rate = counts / np.maximum(share, 1 / len(best))[:, None]
    chosen = np.zeros(counts.shape, bool)
    chosen[np.arange(clusters), counts.argmax(axis=1)] = True
    order = np.argsort(-rate, axis=None, kind="stable")[: int((counts > 0).sum())]
    spent = np.cumsum(share[order // vocab])
    chosen.ravel()[order[spent <= budget]] = True
    return chosen


def _routed(vectors: Doubles, unit: Doubles, wanted: Ids, sets: NDArray[np.bool_], budget: float, rng: Any) -> Doubles:
    """One pass of gradient steps on the vectors, the sets held fixed: softmax(<v, h> + Gumbel) chooses a cluster."""
    sharp, rate, size = 20.0, 0.5, sets.sum(axis=1) / budget * 0.1
    for start in range(0, len(unit), 256):
        x, ids = unit[start : start + 256], wanted[start : start + 256]
        cost = (~sets[:, ids]).sum(axis=2).T + size
        logits = sharp * (x @ vectors.T) + rng.gumbel(size=cost.shape)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        slope = p * (cost - (p * cost).sum(axis=1, keepdims=True))
        vectors = vectors - rate / len(x) * (slope.T @ x)
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def equal_clusters(
    layer: Layer, calibration: Doubles, clusters: int = 0, probes: int = 0, top: int = 10, recall: float = 0.99, seed: int = 0
) -> ScreenLayer:
    """``clusters`` (0: V / 16) of equal size; ``probes`` (0: the fewest that reach ``recall`` of the top ids when learning)."""
    clusters = clusters or max(1, layer.vocab // 16)
    learn, held = _split(layer, calibration, 1)
    if not 1 <= clusters <= layer.vocab or not 0 <= probes <= clusters:
        raise OptionError(f"clusters={clusters}, probes={probes}; expected 1 to {layer.vocab}, and probes of no more")
    bias = np.zeros((layer.vocab, 1)) if layer.bias is None else layer.bias[:, None]
    rows = np.concatenate([np.asarray(layer.weight, np.float32), bias], axis=1).astype(np.float32)
    member = balanced(rows, clusters, np.random.default_rng(seed))
    ids = np.argsort(member, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(member, minlength=clusters))])
    centroids = np.add.reduceat(rows[ids], starts[:-1]) / np.diff(starts)[:, None]
    if probes == 0:
        probes = _probes(layer, learn[:2048], centroids, member, top, recall)
    return measured(ScreenLayer(layer, centroids.astype(np.float32), ids, starts, probes), held, top)


def _probes(layer: Layer, hidden: Doubles, centroids: Any, member: Ids, top: int, recall: float) -> int:
    """The fewest clusters that hold ``recall`` of the top ids of ``hidden``."""
    scores = hidden @ centroids[:, :-1].T + centroids[:, -1]
    rank = np.argsort(np.argsort(-scores, axis=1), axis=1)
    needed = np.sort(np.take_along_axis(rank, member[top_ids(layer, hidden, top)], 1).ravel()) + 1
    return int(needed[max(0, math.ceil(recall * len(needed)) - 1)])


def balanced(rows: NDArray[np.float32], clusters: int, rng: Any, rounds: int = 5) -> Ids:
    """``[vocab]``: spherical k-means in which no cluster takes more than ceil(vocab / clusters) rows.

    Rows ask for their nearest open cluster; a cluster takes the nearest of those who ask; who is refused asks again.
    """
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    means = unit[rng.choice(len(unit), clusters, replace=False)]
    most = -(-len(unit) // clusters)
    for _ in range(rounds):
        member = _assigned(unit, means, most)
        sums = np.zeros_like(means)
        np.add.at(sums, member, unit)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        means = np.where(norms > 0, sums / np.maximum(norms, 1e-30), means)
    return _filled(_assigned(unit, means, most), clusters)


def _assigned(unit: NDArray[np.float32], means: NDArray[np.float32], most: int) -> Ids:
    member, room = np.full(len(unit), -1, np.int64), np.full(len(means), most)
    waiting = np.arange(len(unit))
    while len(waiting):
        open_ = np.flatnonzero(room > 0)
        best, near = np.empty(len(waiting), np.int64), np.empty(len(waiting), np.float32)
        step = max(1, AT_ONCE // len(open_))
        for start in range(0, len(waiting), step):
            scores = unit[waiting[start : start + step]] @ means[open_].T
            best[start : start + step] = open_[scores.argmax(axis=1)]
            near[start : start + step] = scores.max(axis=1)
        order = np.lexsort((-near, best))
        firsts = np.searchsorted(best[order], np.arange(len(means)))
        taken = order[np.arange(len(order)) - firsts[best[order]] < room[best[order]]]
        member[waiting[taken]] = best[taken]
        room -= np.bincount(best[taken], minlength=len(means))
        waiting = np.delete(waiting, taken)
    return member


def _filled(member: Ids, clusters: int) -> Ids:
    """No cluster is left empty: one that is takes a row of the fullest."""
    for empty in np.flatnonzero(np.bincount(member, minlength=clusters) == 0):
        fullest = np.bincount(member, minlength=clusters).argmax()
        member[np.flatnonzero(member == fullest)[-1]] = empty
    return member


def measured(screen: ScreenLayer, held: Doubles, top: int) -> ScreenLayer:
    """The screen with the upper end of how often the top ``top`` of a held-out vector is incomplete."""
    wanted, has = top_ids(screen.rows, held, top), _holder(screen)
    scores = held @ screen.centroids[:, :-1].T.astype(np.float64) + screen.centroids[:, -1]
    chosen = np.argpartition(-scores, screen.probes - 1, axis=1)[:, : screen.probes]
    missed = sum(not has(row, ids) for row, ids in zip(chosen, wanted, strict=True))
    rate = min(1.0, upper_end(missed, len(held)) + DOUBT)
    return ScreenLayer(screen.rows, screen.centroids, screen.ids, screen.starts, screen.probes, (top, rate))


def _holder(screen: ScreenLayer) -> Callable[[Ids, Ids], bool]:
    sets = [screen.ids[screen.part(number)] for number in range(screen.clusters)]
    return lambda clusters, ids: bool(np.isin(ids, np.concatenate([sets[one] for one in clusters])).all())


def upper_end(failures: int, trials: int) -> float:
    """Clopper and Pearson: the largest rate under which ``failures`` or fewer of ``trials`` come once in 1 / DOUBT."""
    if failures >= trials:
        return 1.0
    low, high = failures / trials, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        logs = [
            math.lgamma(trials + 1) - math.lgamma(i + 1) - math.lgamma(trials - i + 1)
            + i * math.log(rate) + (trials - i) * math.log1p(-rate)
            for i in range(failures + 1)
        ]  # fmt: skip
        most = max(logs)
        if most + math.log(sum(math.exp(value - most) for value in logs)) > math.log(DOUBT):
            low = rate
        else:
            high = rate
    return high


def top_ids(layer: Layer, hidden: Doubles, top: int) -> Ids:
    """``[n, top]``: the likeliest classes of each vector, in float32."""
    weight, found = np.asarray(layer.weight, np.float32), []
    step = max(1, AT_ONCE // layer.vocab)
    for start in range(0, len(hidden), step):
        z = hidden[start : start + step].astype(np.float32) @ weight.T
        z = z if layer.bias is None else z + layer.bias
        found.append(np.argpartition(-z, top - 1, axis=1)[:, :top])
    return np.concatenate(found).astype(np.int64)


def _split(layer: Layer, calibration: Doubles, least: int) -> tuple[Doubles, Doubles]:
    """What is learned from and, every few rows, what is measured on."""
    if calibration.ndim != 2 or calibration.shape[1] != layer.dim or len(calibration) < max(10, least):
        raise ShapeError(
            f"calibration has shape {list(calibration.shape)}; expected {max(10, least)} rows of {layer.dim} or more: hidden "
            "vectors as the layer will see them"
        )
    held = np.zeros(len(calibration), bool)
    held[:: round(1 / HELD_OUT)] = True
    return calibration[~held], calibration[held]


def _means(unit: Doubles, clusters: int, rng: Any, rounds: int = 10) -> Doubles:
    means = unit[rng.choice(len(unit), clusters, replace=False)]
    for _ in range(rounds):
        sums = np.zeros_like(means)
        np.add.at(sums, (unit @ means.T).argmax(axis=1), unit)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        means = np.where(norms > 0, sums / np.maximum(norms, 1e-30), means)
    return np.asarray(means)


def _with_constant(vectors: Doubles) -> NDArray[np.float32]:
    return np.concatenate([vectors, np.zeros((len(vectors), 1))], axis=1).astype(np.float32)
