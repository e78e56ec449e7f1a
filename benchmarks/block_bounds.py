"""How many classes no bound on neighbours can leave closed: shapes, sizes and orders of blocks, at the true tenth best logit.

    python benchmarks/block_bounds.py results/block_bounds.json

Rays: classes that point the same way share a direction t and each is ``scale t + left``, so that a look at one is its scale,
its base and the lengths of what is left, a byte for each, behind one product with t for all of them:

    z_i = base_i + scale_i <t, x> + <left_i, x>  <=  base_i + scale_i <t, x> + sum_s ||left_i[s]|| ||x[s]||

Exact arithmetic on the two made layers of benchmarks/blocks.py, in the whitened basis: the share of the classes whose block
reaches the tenth best logit of 30 queries that chose nothing. No clock and no codes: what rounding adds is not in here.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from blocks import CALIBRATION, K, recommender, recurrent

from headlong import native
from headlong.layers.matrix import Layer
from headlong.previews.whitening import whiten

QUERIES, ROUNDS, SEED = 30, 8, 0


class Spread:
    """A layer in the basis of its calibration vectors, and queries with their thresholds."""

    def __init__(self, layer: Layer, hidden: Any) -> None:
        basis = whiten(layer.weight, hidden[:CALIBRATION].astype(np.float64))
        asked = hidden[CALIBRATION:][:: (len(hidden) - CALIBRATION) // QUERIES].astype(np.float64)
        rows = layer.weight.astype(np.float64) - basis.centre
        self.rows = rows @ basis.back
        self.base = rows @ basis.mean + (0.0 if layer.bias is None else layer.bias)
        self.whole = (layer.weight.astype(np.float64) @ basis.back, layer.weight.astype(np.float64) @ basis.mean)
        if layer.bias is not None:
            self.whole[1][:] += layer.bias
        self.x = (asked - basis.mean) @ basis.rotation.astype(np.float64)
        self.logits = self.x @ self.rows.T + self.base
        self.least = np.sort(self.logits, axis=1)[:, -K]

    def edges(self, look: int) -> list[int]:
        found, dim = [look], self.rows.shape[1]
        while found[-1] < dim:
            found.append(min(2 * found[-1], dim))
        return found

    def features(self, look: int) -> Any:
        parts = [self.rows[:, :look], self.base[:, None]]
        for a, b in itertools.pairwise(self.edges(look)):
            parts.append(np.linalg.norm(self.rows[:, a:b], axis=1)[:, None] * (b - a) ** 0.5)
        return np.ascontiguousarray(np.concatenate(parts, axis=1), np.float32)

    def tails(self, rows: Any, look: int) -> Any:
        """``sum_s max ||B_i[s]|| ||x[s]||`` of groups ``[groups, side, dim]``."""
        total = np.zeros((len(self.x), len(rows)))
        for a, b in itertools.pairwise(self.edges(look)):
            total += np.linalg.norm(self.x[:, a:b], axis=1)[:, None] * np.linalg.norm(rows[:, :, a:b], axis=2).max(axis=1)
        return total

    def box(self, members: Any, look: int) -> Any:
        """Upper ends ``[queries, groups]`` from boxes around the first ``look`` coordinates."""
        rows = self.rows[members]
        high, low = rows[:, :, :look].max(axis=1), rows[:, :, :look].min(axis=1)
        ends = np.maximum(self.x[:, :look], 0) @ high.T + np.minimum(self.x[:, :look], 0) @ low.T
        return ends + self.base[members].max(axis=1) + self.tails(rows, look)

    def rays(self, count: int) -> dict[str, float]:
        """From ``count`` directions: shares of the classes in directions that are opened, and of those that stay open by
        themselves; and what that reads of float32, with a byte for every number and the rotation in two."""
        rows, base = self.whole
        directions, near = rays_of(rows, count)
        along = np.einsum("ij,ij->i", rows, directions[near])
        left = rows - along[:, None] * directions[near]
        ends, tops = self.x @ directions.T, np.zeros((len(self.x), count))
        own = base + along * ends[:, near]
        low, high, most = (np.full(count, fill) for fill in (np.inf, -np.inf, -np.inf))
        np.minimum.at(low, near, along), np.maximum.at(high, near, along), np.maximum.at(most, near, base)
        with np.errstate(invalid="ignore"):  # a direction without classes
            tops += np.maximum(high * ends, low * ends) + most
        edges = [0, *self.edges(8)]
        for a, b in itertools.pairwise(edges):
            lengths, worst = np.linalg.norm(left[:, a:b], axis=1), np.zeros(count)
            np.maximum.at(worst, near, lengths)
            size = np.linalg.norm(self.x[:, a:b], axis=1)[:, None]
            own, tops = own + size * lengths, tops + size * worst
        opened = (tops >= self.least[:, None])[:, near]
        stay = opened & (own >= self.least[:, None])
        dim, lengths_ = rows.shape[1], len(edges) - 1
        read = count * (dim + lengths_ + 4) + opened.sum(axis=1).mean() * (lengths_ + 4) + stay.sum(axis=1).mean() * (dim + 4)
        read += 2 * dim**2 + 2 * K * 4 * dim
        return {"opened": float(opened.mean()), "stay": float(stay.mean()), "of float32": float(read / (4 * rows.size))}

    def ball(self, members: Any, look: int) -> Any:
        """From centres in all coordinates, and what is left of them: one length, or one for each segment."""
        rows = self.rows[members]
        middle = rows.mean(axis=1)
        left = rows - middle[:, None]
        first = np.linalg.norm(self.x[:, :look], axis=1)[:, None] * np.linalg.norm(left[:, :, :look], axis=2).max(axis=1)
        one = np.linalg.norm(self.x, axis=1)[:, None] * np.linalg.norm(left, axis=2).max(axis=1)
        best = np.minimum(one, first + self.tails(left, look))
        return self.x @ middle.T + self.base[members].max(axis=1) + best

    def reached(self, ends: Any, sizes: Any = None) -> float:
        """The share of the classes in groups that are opened."""
        open_ = ends >= self.least[:, None]
        return float(open_.mean() if sizes is None else (open_ * sizes).sum() / (len(ends) * sizes.sum()))


def in_order(features: Any, side: int) -> Any:
    order = native.neighbours(features, 1)
    return order[: len(order) // side * side].reshape(-1, side)


def clusters(features: Any, side: int) -> list[Any]:
    """k-means, a cluster for every ``side`` classes; unequal ones."""
    rng = np.random.default_rng(SEED)
    centres = features[rng.choice(len(features), len(features) // side, replace=False)].astype(np.float64)
    for _ in range(ROUNDS):
        near = np.argmin((centres**2).sum(axis=1) - 2 * features @ centres.T, axis=1)
        sums = np.zeros_like(centres)
        np.add.at(sums, near, features)
        counts = np.bincount(near, minlength=len(centres))
        centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
    return [found for found in (np.flatnonzero(near == one) for one in range(len(centres))) if len(found)]


def rays_of(rows: Any, count: int) -> tuple[Any, Any]:
    """Directions of length one and the nearest of each row: k-means on the sphere."""
    rng, units = np.random.default_rng(SEED), rows / np.maximum(np.linalg.norm(rows, axis=1), 1e-300)[:, None]
    directions = units[rng.choice(len(rows), count, replace=False)]
    for _ in range(2 * ROUNDS):
        near = np.argmax(units @ directions.T, axis=1)
        sums = np.zeros_like(directions)
        np.add.at(sums, near, rows)
        sizes = np.linalg.norm(sums, axis=1)[:, None]
        directions = np.where(sizes > 0, sums / np.maximum(sizes, 1e-300), directions)
    return directions, np.argmax(units @ directions.T, axis=1)


def measured(name: str, layer: Layer, hidden: Any) -> dict[str, Any]:
    spread = Spread(layer, hidden)
    found: dict[str, Any] = {"layer": name, "boxes": [], "other": {}}
    for look, side in itertools.product((8, 16, 32, 64), (4, 8, 16)):
        members = in_order(spread.features(look), side)
        found["boxes"].append({"look": look, "side": side, "opened": spread.reached(spread.box(members, look))})
    other, members = found["other"], in_order(spread.features(16), 16)
    balls = spread.ball(members, 16)
    other["balls of 16"] = spread.reached(balls)
    other["the lower of box and ball, 16"] = spread.reached(np.minimum(balls, spread.box(members, 16)))
    groups = clusters(spread.features(16), 16)
    ends = np.concatenate([spread.box(group[None], 16) for group in groups], axis=1)
    other["k-means, boxes of 16 on average"] = spread.reached(ends, np.array([len(group) for group in groups]))
    alone = np.arange(layer.vocab)[:, None]
    other["every class alone, 16 coordinates"] = spread.reached(spread.box(alone, 16))
    other["every class alone, 8 coordinates"] = spread.reached(spread.box(alone, 8))
    pairs = np.argsort(-spread.logits, axis=1)[:, :K]
    place = np.empty(layer.vocab, np.int64)
    place[members.ravel()] = np.arange(members.size) // 16
    held = [len(set(place[row])) for row in pairs]
    other["blocks of 16 that hold one of the ten"] = float(np.mean(held)) * 16 / layer.vocab
    found["rays"] = {str(count): spread.rays(count) for count in (150, 300, 600, 1200)}
    return found


def main() -> None:
    layers = (("a recommender's, made", recommender()), ("an LSTM's, made", recurrent()))
    runs = [measured(name, *made) for name, made in layers]
    Path(sys.argv[1]).write_text(json.dumps({"k": K, "queries": QUERIES, "runs": runs}, indent=1) + "\n")
    for run in runs:
        sys.stdout.write(json.dumps(run, indent=1) + "\n")


if __name__ == "__main__":
    main()
