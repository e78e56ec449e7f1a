"""Rivals that group the rows of a layer and read some of the groups: ids only; the bias is one more coordinate.

::

    clustered head    the classes of the PROBED clusters whose mean has the largest product with the query, and no others
    cluster bound     z_i <= <c_j, h> + r_j * ‖h‖,  c_j the mean of cluster j, r_j = max ‖w_i - c_j‖: best bounds first, until
                      no bound reaches the k-th best logit

The second is CSV-Decode's bound (arXiv 2511.21702), over rows as they are: theirs takes radii from rows of length one beside
logits of rows that are longer, which holds for neither. Rounding is a part of ours, so its ids are proved.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.bench.rivals.registry import Search, best, searching, with_bias
from headlong.dtypes import Floats
from headlong.layers.matrix import Layer

CLUSTERS, PROBED = 2048, 32
"""As the drafters of a language model have them."""
FEWEST = 4
"""Rows of a cluster on average, at least: smaller layers have fewer clusters."""
LEAST = 64
"""Dimensions that LoRANN wants at least."""
ROUNDING = 2.0**-23
"""What a float32 product may lose for each coordinate, in the lengths of its sides; once in a bound, once in a logit."""


class Clusters(NamedTuple):
    """Rows side by side with those of their cluster: cluster ``j`` is ``rows[starts[j]:starts[j + 1]]``."""

    means: Floats
    rows: Floats
    ids: NDArray[np.int64]
    starts: NDArray[np.int64]

    def parts(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of the rows of some clusters."""
        return np.concatenate([np.arange(self.starts[j], self.starts[j + 1]) for j in chosen])


def clustered(layer: Layer) -> Clusters:
    """By k-means."""
    import faiss

    rows = with_bias(layer)
    count = max(1, min(CLUSTERS, layer.vocab // FEWEST))
    means = faiss.Kmeans(rows.shape[1], count, niter=10, seed=1, max_points_per_centroid=64, min_points_per_centroid=1)
    means.train(rows)
    near = means.index.search(rows, 1)[1][:, 0]
    order = np.argsort(near, kind="stable")
    starts = np.searchsorted(near[order], np.arange(count + 1))
    return Clusters(np.asarray(means.centroids, np.float32), rows[order], order.astype(np.int64), starts.astype(np.int64))


@searching("clustered head", "faiss")
def clustered_head(layer: Layer, k: int, threads: int) -> Search:
    """2,048 centroids, 32 probed: what is in no probed cluster has no chance."""
    groups = clustered(layer)
    probed = min(PROBED, len(groups.means))

    def one(query: Floats) -> NDArray[np.int64]:
        chosen = np.argpartition(-(groups.means @ query), probed - 1)[:probed]
        places = groups.parts(np.sort(chosen))
        scores = groups.rows[places] @ query
        found = np.full(k, -1, np.int64)
        some = best(scores[None], min(k, len(scores)))[0]
        found[: len(some)] = groups.ids[places[some]]
        return found

    reads = f"{probed} of {len(groups.means)} clusters, float32"
    return Search(lambda hidden: [one(query) for query in hidden], reads)


@searching("cluster bound", "faiss")
def cluster_bound(layer: Layer, k: int, threads: int) -> Search:
    """Exact: clusters by their bounds, the best first, until no bound reaches the k-th best."""
    groups = clustered(layer)
    means, rows = groups.means.astype(np.float64), groups.rows
    sizes = np.diff(groups.starts)
    away = np.linalg.norm(rows - means[np.repeat(np.arange(len(means)), sizes)], axis=1)
    radius, some = np.zeros(len(means)), sizes > 0
    radius[some] = np.maximum.reduceat(away, groups.starts[:-1][some])
    lost = 2 * (rows.shape[1] + 2) * ROUNDING * float((np.linalg.norm(means, axis=1) + radius).max())
    reach = np.where(some, radius + lost, -np.inf)

    def one(query: Floats) -> NDArray[np.int64]:
        bounds = groups.means @ query + reach * float(np.linalg.norm(query.astype(np.float64)))
        order = np.argsort(-bounds)
        scores, ids, taken, step = np.empty(0, np.float32), np.empty(0, np.int64), 0, PROBED
        while taken < len(order):
            places = groups.parts(np.sort(order[taken : taken + step]))
            scores = np.concatenate([scores, rows[places] @ query])
            ids = np.concatenate([ids, groups.ids[places]])
            keep = best(scores[None], min(k, len(scores)))[0]
            scores, ids, taken, step = scores[keep], ids[keep], taken + step, 2 * step
            if len(scores) == k and (taken >= len(order) or scores[-1] >= bounds[order[taken]]):
                break
        return ids

    reads = f"of {len(groups.means)} clusters those whose bounds ask for it"
    return Search(lambda hidden: [one(query) for query in hidden], reads)


@searching("lorann", "lorann")
def lorann_clusters(layer: Layer, k: int, threads: int) -> Search:
    """LoRANN's clusters with low-rank scores: sqrt(vocab) clusters, an eighth of them searched, the best 20 k re-ranked."""
    import lorann

    multiple = 8 if layer.dim >= LEAST else LEAST
    rows = with_bias(layer, multiple)
    dim, count = rows.shape[1], max(1, round(layer.vocab**0.5))
    reduced = None if dim < 200 else 128 if dim <= 1000 else 256  # as its authors advise
    probed, again = max(1, count // 8), min(20 * k, layer.vocab)
    index = lorann.LorannIndex(data=rows, n_clusters=count, global_dim=reduced, distance=lorann.IP)
    index.build(n_threads=threads)

    reads = f"{probed} of {count} clusters, low rank, {again} rows"
    return Search(lambda hidden: index.search(hidden, k, probed, again, n_threads=threads), reads, multiple)
