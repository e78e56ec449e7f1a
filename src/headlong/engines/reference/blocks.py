"""The best classes of one query from bounds on blocks: the readable twin of ``csrc/blocks/search.cpp``.

    bound(node) = base + scale <codes, x> + unit <lengths, ‖x_s‖>        no less than any logit below the node

All nodes of the coarsest level are looked at. The classes below the best of them are scored for a threshold tau, the k-th best
logit so far; then every node whose bound reaches tau is opened, every class of an open block whose bound reaches tau is looked
at closer, and what still reaches tau is scored, best first. Nothing below tau can be among the k best, whoever bounds it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.engines.reference.query import dots
from headlong.engines.reference.search_trial import Trial
from headlong.native import FoundByBlocks, Mask
from headlong.plan import NEIGHBOURS, SHORT, Blocks, BoxLevel, Rays

Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]

SEEDS = 16
STEP = 8
"""Rows scored before the threshold is looked at again."""
MOST_X = 1e30
REACHED = 1 / 16
"""The share of the classes to score beyond which a sum or a draw is left to who looks at all; the same in ``csrc/blocks``."""


class BoxQuery(NamedTuple):
    """The query's side of every bound: coordinates, lengths of its segments (for a closer look, too), what all get, and
    products with the directions of rays.
    """

    x: Doubles
    lengths: Doubles
    closer: Doubles
    add: float
    slack: float
    ends: Doubles | None = None


class BlockAnswer(NamedTuple):
    """Ids and logits, best first; ``done`` False: a look at all classes would have been cheaper."""

    ids: Ids
    logits: Doubles
    rows: int
    bytes: float
    opened: float
    done: bool


class BlockSearch:
    """The verbs of ``headlong._native.Blocks``."""

    isa = "numpy"

    def __init__(self, weight: NDArray[Any], bias: NDArray[np.float32] | None, blocks: Blocks, share: float) -> None:
        self.weight, self.bias, self.blocks, self.share = weight, bias, blocks, share
        self.trial = Trial(blocks.trial)

    def topk(self, hidden: Doubles, k: int, mask: Mask, threads: int) -> FoundByBlocks:
        none = BlockAnswer(np.empty(0, np.int64), np.empty(0), 0, 0.0, 0.0, done=False)
        found = [none] * len(hidden)
        counted = mask is None and k <= SHORT
        if self.trial.goes_on() if counted else not self.trial.over():
            found = [self.one(row, k, None if mask is None else mask[b % len(mask)] != 0) for b, row in enumerate(hidden)]
            if counted:
                for answer in found:  # the answers' rows are read by whoever answers
                    self.trial.count(answer.bytes - k * self.weight.shape[1] * self.weight.itemsize, answer.done)
        ids, logits = np.full((len(found), k), -1, np.int64), np.full((len(found), k), -np.inf)
        for b, one in enumerate(found):
            ids[b, : len(one.ids)], logits[b, : len(one.ids)] = one.ids, one.logits
        costs = (np.array([one[at] for one in found], kind) for at, kind in ((2, np.int64), (3, float), (4, float), (5, bool)))
        return FoundByBlocks(ids, logits, *costs)

    def one(self, hidden: Doubles, k: int, there: NDArray[np.bool_] | None, state: State | None = None) -> BlockAnswer:
        """One query; ``state`` says what is looked for, if it is not the ``k`` best."""
        blocks, query = self.blocks, halves_of(self.blocks, hidden)
        if max(np.abs(query.x).max(), query.lengths.max(), query.closer.max(), abs(query.add)) > MOST_X:
            return BlockAnswer(np.empty(0, np.int64), np.empty(0), 0, 0.0, 0.0, done=False)
        state = State(self, hidden, k) if state is None else state
        if blocks.rays is not None:
            state.bytes += blocks.rays.directions.nbytes + blocks.rays.scale.nbytes
        levels, last = blocks.levels, len(blocks.levels) - 1
        groups = np.arange(len(levels[0].records))
        if last == 0:
            self._look(query, groups, state, there)
            return state.found()
        root = bounds(levels[0], True, query, groups, state)[1].ravel()
        nodes, bound = children(groups), root
        for level in range(1, last + 1):  # down to the best blocks
            best = np.argsort(-bound, kind="stable")[: max(SEEDS, 2 * -(-k // NEIGHBOURS))]
            seeds = np.sort(nodes[best[bound[best] > -np.inf]])
            if level < last:
                nodes, bound = children(seeds), bounds(levels[level], True, query, seeds, state)[1].ravel()
        self._look(query, seeds, state, there)
        nodes, bound = children(groups), root
        if state.wanders(bound[~np.isin(nodes, seeds)] if last == 1 else bound):
            return state.answer(done=False)
        for level in range(1, last + 1):  # down to all that reach the threshold
            nodes = nodes[(bound >= state.tau) & (bound > -np.inf)]
            if level < last:
                nodes, bound = children(nodes), bounds(levels[level], True, query, nodes, state)[1].ravel()
        self._look(query, np.setdiff1d(nodes, state.seen), state, there)
        return state.found()

    def _look(self, query: BoxQuery, groups: Ids, state: State, there: NDArray[np.bool_] | None) -> None:
        """Looks at the classes of some blocks, closer at those that reach the threshold, and scores the k best estimates."""
        blocks = self.blocks
        state.seen = np.union1d(state.seen, groups)
        est, upper = (side.ravel() for side in bounds(blocks.levels[-1], False, query, groups, state))
        places = children(groups)
        ids = blocks.order[places]
        live = (ids >= 0) & (upper >= state.tau)
        if there is not None:
            live &= there[ids]
        places, est, upper = places[live], est[live], upper[live]
        if blocks.closer is not None:
            est, upper = closer(blocks, query, places, est)
            state.bytes += len(places) * blocks.closer.shape[1]
        live = upper >= state.tau
        places, est, upper = places[live], est[live], upper[live]
        best = np.argsort(-est, kind="stable")[: state.k]
        state.score(blocks.order[places[best]].astype(np.int64))
        rest = np.setdiff1d(np.arange(len(places)), best)
        state.keep(blocks.order[places[rest]].astype(np.int64), upper[rest])


class State:
    """Rows scored so far, best first, and the classes that may yet join them."""

    def __init__(self, search: BlockSearch, hidden: Doubles, k: int) -> None:
        self.search, self.hidden, self.k, self.share = search, hidden, k, search.share
        self.ids, self.logits = np.empty(0, np.int64), np.empty(0)
        self.open, self.upper = np.empty(0, np.int64), np.empty(0)
        self.seen = np.empty(0, np.int64)
        self.tau, self.rows, self.bytes = -np.inf, 0, 0.0

    def scored(self, ids: Ids) -> Doubles:
        """Exact logits."""
        weight, bias = self.search.weight, self.search.bias
        logits = dots(weight[ids], self.hidden)
        if bias is not None:
            logits += bias[ids]
        self.rows += len(ids)
        self.bytes += len(ids) * weight.shape[1] * weight.itemsize
        return logits

    def score(self, ids: Ids) -> None:
        logits = self.scored(ids)
        ids, logits = np.concatenate([self.ids, ids]), np.concatenate([self.logits, logits])
        order = np.lexsort((ids, -logits))[: self.k]
        self.ids, self.logits = ids[order], logits[order]
        if len(self.ids) == self.k:
            self.tau = float(self.logits[-1])

    def keep(self, ids: Ids, upper: Doubles) -> None:
        self.open, self.upper = np.concatenate([self.open, ids]), np.concatenate([self.upper, upper])

    def wanders(self, bound: Doubles) -> bool:
        """Whether the search is given up with its first threshold, for the bounds of the coarsest nodes that are not opened."""
        return False

    def found(self) -> BlockAnswer:
        """Scores what is open, best first."""
        order = np.argsort(-self.upper, kind="stable")
        ids, upper = self.open[order], self.upper[order]
        done = int((upper >= self.tau).sum()) <= max(64 + self.k, self.share * len(self.search.weight))
        for start in range(0, len(ids) if done else 0, STEP):
            if not upper[start] >= self.tau:
                break
            part = slice(start, start + STEP)
            self.score(ids[part][upper[part] >= self.tau])
        return self.answer(done)

    def answer(self, done: bool) -> BlockAnswer:
        """What was scored, and what that took."""
        opened = len(self.seen) / len(self.search.blocks.levels[-1].records)
        return BlockAnswer(self.ids, self.logits, self.rows, self.bytes, opened, done)


def children(nodes: Ids) -> Ids:
    """Those of every node, in order."""
    return (nodes[:, None] * NEIGHBOURS + np.arange(NEIGHBOURS)).ravel()


def halves_of(blocks: Blocks, hidden: Doubles) -> BoxQuery:
    """``x = head @ (hidden - mean)``, and no less than the lengths of all segments."""
    centred = hidden - blocks.mean
    x, width, length = blocks.head.astype(np.float64) @ centred, len(blocks.head), float(np.linalg.norm(centred))
    sizes, behind = [], 0
    for start, stop in zip(blocks.edges, blocks.edges[1:], strict=False):
        if start < width:
            sizes.append(float(np.linalg.norm(x[start:stop])))
            continue
        assert blocks.rest_lost is not None
        assert blocks.back is not None
        assert blocks.rest is not None
        assert blocks.rest_scale is not None
        left, part = centred - x @ blocks.back.astype(np.float64), slice(start - width, stop - width)
        seen = left @ blocks.rest[:, part].astype(np.float64) * blocks.rest_scale[part]
        lost = blocks.rest_lost[behind] @ np.array([np.linalg.norm(left), length, np.linalg.norm(x)])
        sizes.append(float(np.linalg.norm(seen) * (1 + 2.0**-20) + lost))
        behind += 1
    halves = np.array([np.linalg.norm(x[: blocks.look]), np.linalg.norm(x[blocks.look :]), 1.0, length])
    widened = np.array(sizes) * (1 + 2.0**-18)
    shared, own = (float(np.array(factors) @ halves) * (1 + 2.0**-18) for factors in (blocks.shared, blocks.closer_shared))
    add = float(blocks.centre @ hidden)
    first = blocks.edges.index(width) if width in blocks.edges else len(sizes)
    if blocks.rays is not None:
        sides = np.append(halves[0] * (1 + 2.0**-18), widened)
        near = np.array([float(np.linalg.norm(x)) * (1 + 2.0**-18), own])
        ends = x @ blocks.rays.directions.astype(np.float64) * blocks.rays.scale
        return BoxQuery(x, np.append(sides, shared), near, add, abs(add) * 2.0**-20 + 2.0**-100, ends)
    return BoxQuery(x, np.append(widened, shared), np.append(widened[first:], own), add, abs(add) * 2.0**-20 + 2.0**-100)


def bounds(level: BoxLevel, box: bool, query: BoxQuery, groups: Ids, state: State) -> tuple[Doubles, Doubles]:
    """``estimate, upper end [groups, 16]`` of the neighbours of some records: of boxes, or of classes."""
    records = level.records[groups]
    state.bytes += records.nbytes
    if query.ends is not None:
        rays = state.search.blocks.rays
        assert rays is not None
        return node_ends(rays, level, query, groups, records) if box else ray_ends(rays, level, query, groups, records)
    count, codes = len(records), level.codes * NEIGHBOURS
    numbers = codes + level.lengths * NEIGHBOURS
    x = query.x[: level.codes // 2 if box else level.codes]
    x = np.concatenate([np.maximum(x, 0), np.minimum(x, 0)]) if box else x
    coded = records[:, :codes].view(np.int8).reshape(count, level.codes, NEIGHBOURS).astype(np.float64)
    sizes = records[:, codes:numbers].reshape(count, level.lengths, NEIGHBOURS).astype(np.float64)
    product, lengths = np.einsum("gcs,c->gs", coded, x), np.einsum("gts,t->gs", sizes, query.lengths)
    scale, unit, base = np.moveaxis(
        np.ascontiguousarray(records[:, numbers:]).view(np.float32).reshape(count, 3, NEIGHBOURS).astype(np.float64), 1, 0
    )
    est = base + scale * product + query.add
    return est, est + unit * lengths + query.slack


def node_ends(rays: Rays, level: BoxLevel, query: BoxQuery, groups: Ids, records: NDArray[np.uint8]) -> tuple[Doubles, Doubles]:
    """``estimate, upper end [groups, 16]`` of pieces of rays: at one of the ends of their scales."""
    assert query.ends is not None
    numbers = level.lengths * NEIGHBOURS
    sizes = records[:, :numbers].reshape(-1, level.lengths, NEIGHBOURS).astype(np.float64)
    floats = np.ascontiguousarray(records[:, numbers:]).view(np.float32).reshape(-1, 4, NEIGHBOURS).astype(np.float64)
    high, low, base, unit = np.moveaxis(floats, 1, 0)
    end = query.ends[rays.owner[children(groups)]].reshape(-1, NEIGHBOURS)
    est = base + query.add + np.maximum(high * end, low * end)
    return est, est + unit * np.einsum("gts,t->gs", sizes, query.lengths) + query.slack


def ray_ends(rays: Rays, level: BoxLevel, query: BoxQuery, groups: Ids, records: NDArray[np.uint8]) -> tuple[Doubles, Doubles]:
    """The same of their classes."""
    assert query.ends is not None
    numbers = (2 + level.lengths) * NEIGHBOURS
    scales = records[:, :NEIGHBOURS].view(np.int8).astype(np.float64)
    bases = records[:, NEIGHBOURS : 2 * NEIGHBOURS].astype(np.float64)
    sizes = records[:, 2 * NEIGHBOURS : numbers].reshape(-1, level.lengths, NEIGHBOURS).astype(np.float64)
    unit, step, least, own = np.ascontiguousarray(records[:, numbers:]).view(np.float32).astype(np.float64).T[:, :, None]
    end = query.ends[rays.owner[groups]][:, None]
    est = least + step * bases + query.add + unit * scales * end
    return est, est + own * np.einsum("gts,t->gs", sizes, query.lengths) + query.slack


def closer(blocks: Blocks, query: BoxQuery, places: Ids, est: Doubles) -> tuple[Doubles, Doubles]:
    """The same of single classes, by the coordinates behind those of a block."""
    assert blocks.closer is not None
    records, count = blocks.closer[places], len(blocks.head) - blocks.look
    count, first = (count, blocks.look) if blocks.rays is None else (len(blocks.head), 0)
    numbers = np.ascontiguousarray(records[:, -8:]).view(np.float32).astype(np.float64)
    product = records[:, :count].view(np.int8).astype(np.float64) @ query.x[first:]
    lengths = records[:, count:-8].astype(np.float64) @ query.closer
    est = est + numbers[:, 0] * product
    return est, est + numbers[:, 1] * lengths + query.slack
