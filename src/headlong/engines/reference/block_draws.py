"""A normaliser from the blocks that a search opened and a few of the others: the twin of ``csrc/by_blocks/normaliser.cpp``.

    m_i = exp(link(estimate_i)),   u_i = m_i (w + w^2 / 2),   w = narrow * radius_i       of the classes of looked-at blocks
    a shut block is drawn on each n-th of the line of exp(middle of its box), and stands for (times * step / that) blocks
    the widest u are taken, the others' are a line, too:  spend * (r^2 + r) points,   r = sum u / (aim * sum of m)
    sum of terms ~ exact + sum stands * m + sum over taken of weight * (closer look or term - m),   weight = 1 or step / u

What a closer look leaves open is drawn once more, and those rows are read. All weights are inverses of chances, so the estimate
is unbiased, whatever was thought typical. The native search raises its threshold while it opens blocks and so opens fewer: the
lines of the two executors differ, and therefore their points. A seed gives the same draws within an executor only.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.engines.reference.block_reach import rounding
from headlong.engines.reference.blocks import BlockSearch, BoxQuery, State, bounds, children, closer, halves_of
from headlong.engines.reference.executor import Executor
from headlong.engines.reference.query import logits
from headlong.links import Link
from headlong.native import Doubles

Ids = NDArray[np.int64]

BEST, TOGETHER, LEVELS = 10, 2, 2
"""Ids whose search says which blocks matter, queries at once, levels of a tree: no more are drawn for."""
FEWEST, MOST = 16, 124
"""Shut blocks that are drawn; between them one for each ``eps``."""
FIRST_STAGE = 0.6
"""Of the squared error: what a closer look costs is a third of a row."""
MOST_ROWS = 4096
"""Beyond, a look at all classes is cheaper."""


class Trail(State):
    """The ten best, and every row that was scored on the way to them."""

    def __init__(self, search: BlockSearch, hidden: Doubles) -> None:
        super().__init__(search, hidden, min(BEST, len(search.weight)))
        self.scored_ids, self.scored_logits = np.empty(0, np.int64), np.empty(0)

    def scored(self, ids: Ids) -> Doubles:
        z = super().scored(ids)
        self.scored_ids, self.scored_logits = np.append(self.scored_ids, ids), np.append(self.scored_logits, z)
        return z


class Start(NamedTuple):
    """What the search left of one query, the same for all that is drawn then; terms are ``exp(link(z) - shift)``."""

    query: BoxQuery
    trail: Trail
    shift: float
    exact: float
    aim: float
    shut: Ids
    boxes: Doubles


class Line(NamedTuple):
    """Classes by place: estimate, middle ``exp(link(estimate) - shift)``, gap, and how many such classes each stands for.

    Gaps count as often as their classes do; middles do not.
    """

    places: Ids
    est: Doubles
    middle: Doubles
    gap: Doubles
    stands: Doubles

    def of(self, some: Any, weight: Doubles) -> Line:
        """The classes ``some``, each now standing for ``weight``."""
        return Line(self.places[some], self.est[some], self.middle[some], self.gap[some], weight)


def learned(search: BlockSearch, k: int, eps: float, delta: float, count: int) -> bool:
    """Whether queries taught what is asked here."""
    blocks = search.blocks
    plain = len(blocks.levels) == LEVELS and blocks.rays is None and blocks.factor == 1.0
    taught = blocks.draws is not None and blocks.draws.spend > 0 and eps == blocks.draws.eps and delta > 0
    return plain and taught and k <= BEST and count <= TOGETHER


def topk_by_block_draws(
    executor: Executor, search: BlockSearch, hidden: Doubles, k: int, eps: float, threads: int, delta: float, seed: int
) -> tuple[NDArray[Any], ...] | None:
    """As :meth:`Executor.topk`; None where nothing was learned for what is asked. A query for which the search or the draws
    would be expensive is proved by the executor."""
    if not learned(search, k, eps, delta, len(hidden)):
        return None
    draws, link = search.blocks.draws, executor.matrix.link
    assert draws is not None
    parts = []
    for row in hidden:
        begun = start(executor, search, row, eps)
        lse = math.nan if begun is None else estimate(executor, search, begun, draws.spend, eps, seed)
        if begun is None or math.isnan(lse):
            parts.append(executor.topk(row[None], k, eps, None, False, threads))
            continue
        best, missing = begun.trail, max(0, k - len(begun.trail.ids))
        z = np.append(best.logits[:k], np.full(missing, -np.inf))
        ids = np.append(best.ids[:k], np.full(missing, -1, np.int64))
        values = lse, eps, True, best.rows, best.bytes, False
        log_probs = np.where(ids < 0, -np.inf, link(z) - lse) if k else z
        parts.append((z[None], ids[None], log_probs[None], *(np.array([value]) for value in values)))
    if not parts:
        return executor.topk(hidden, k, eps, None, False, threads)
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def try_block_draws(
    executor: Executor, search: BlockSearch, hidden: Doubles, eps: float, spends: list[float], tries: int, seed: int
) -> Doubles:
    """Estimates of normalisers ``[batch, spends, tries]``, NaN where blocks do not answer."""
    found = np.full((len(hidden), len(spends), tries), np.nan)
    for b, row in enumerate(hidden):
        begun = start(executor, search, row, eps)
        if begun is not None:
            found[b] = [[estimate(executor, search, begun, one, eps, seed + t) for t in range(tries)] for one in spends]
    return found


def start(executor: Executor, search: BlockSearch, hidden: Doubles, eps: float) -> Start | None:
    """The search for the ten best, and the boxes of the blocks that it left shut; None where blocks do not answer."""
    trail, link = Trail(search, hidden), executor.matrix.link
    if not search.one(hidden, trail.k, None, trail).done or not np.isfinite(trail.scored_logits).all() or not len(trail.ids):
        return None
    shift = float(link(trail.logits[:1])[0])
    fixed = rounding(executor.matrix, hidden) * link.steepest
    if not fixed < 0.5 * eps:
        return None
    exact = float(np.exp(link(trail.scored_logits) - shift).sum())
    query = halves_of(search.blocks, hidden)
    shut = np.setdiff1d(np.arange(len(search.blocks.levels[-1].records)), trail.seen)
    boxes = np.exp(link(box_middles(search, query, trail)[shut]) - shift)
    return Start(query, trail, shift, exact, eps - fixed, shut, boxes)


def box_middles(search: BlockSearch, query: BoxQuery, trail: Trail) -> Doubles:
    """``largest base + <(hi + lo) / 2, x>`` of every block's box, whose codes are its upper ends and its lower ones."""
    level, read = search.blocks.levels[0], trail.bytes
    both = query._replace(x=np.tile(0.5 * query.x[: search.blocks.look], 2))
    est, _ = bounds(level, False, both, np.arange(len(level.records)), trail)
    trail.bytes = read  # the search read them before
    return est.ravel()


def estimate(executor: Executor, search: BlockSearch, begun: Start, spend: float, eps: float, seed: int) -> float:
    """The normaliser as ``spend`` and ``seed`` say; NaN where a look at all classes is cheaper."""
    draws, link, trail = search.blocks.draws, executor.matrix.link, begun.trail
    assert draws is not None
    hidden, rng = trail.hidden, np.random.default_rng([seed, zlib.crc32(trail.hidden.tobytes())])
    line = _looked_at(search, begun, link, draws.narrow[0], eps, rng)
    known = begun.exact + float((line.middle * line.stands).sum())
    deep = search.blocks.closer is not None
    taken = taken_of(line, spend / FIRST_STAGE if deep else spend, begun.aim, begun.exact, known, rng)
    if taken is None:
        return math.nan
    more = 0.0
    if deep:
        nearer = _closer(search, begun, link, taken, draws.narrow[1])
        more = float((taken.stands * (nearer.middle - taken.middle)).sum())
        taken = taken_of(nearer, spend / (1 - FIRST_STAGE), begun.aim, known + more, known + more, rng)
        if taken is None:
            return math.nan
    ids = search.blocks.order[taken.places].astype(np.int64)
    terms = np.exp(link(logits(executor.matrix, hidden, ids)) - begun.shift)
    trail.rows += len(ids)
    trail.bytes += len(ids) * search.weight.shape[1] * search.weight.itemsize
    more += float((taken.stands * (terms - taken.middle)).sum())
    return begun.shift + math.log(max(known + more, begun.exact))


def taken_of(line: Line, spend: float, aim: float, sure: float, known: float, rng: np.random.Generator) -> Line | None:
    """The classes with the widest gaps, and points on the line of the others, each with what it stands for; None: too many.

    ``sure``  what is known of the sum before the line: a class whose gap is more than ``aim * sure / spend`` stands for itself
    """
    wide = line.gap >= aim * sure / spend
    left = np.where(wide, 0.0, line.gap)
    total = float(left.sum())
    r = total / max(aim * known, 1e-300)
    wanted = spend * (r * r + r)
    if not wanted < MOST_ROWS or wide.sum() > MOST_ROWS:
        return None
    at, times = points(left, math.ceil(wanted), rng)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = line.stands[at] * times * (total / math.ceil(wanted) / left[at] if len(at) else 0.0)
    some = np.append(np.flatnonzero(wide), at)
    return line.of(some, np.append(line.stands[wide], each))


def points(mass: Doubles, count: int, rng: np.random.Generator) -> tuple[Ids, NDArray[np.int64]]:
    """Where one point in each of ``count`` equal parts of the line of ``mass`` falls, and how often."""
    if count == 0 or not mass.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    line = mass.cumsum()
    places = (np.arange(count) + rng.random(count)) * (line[-1] / count)
    at = np.minimum(np.searchsorted(line, places, side="right"), np.flatnonzero(mass)[-1])
    return np.unique(at, return_counts=True)


def _looked_at(search: BlockSearch, begun: Start, link: Link, narrow: float, eps: float, rng: np.random.Generator) -> Line:
    """The classes of blocks that were opened, less those that were scored, and of some that are drawn from the others."""
    trail, read = begun.trail, begun.trail.bytes
    count = int(np.clip(1 / eps, FEWEST, MOST))
    at, times = points(begun.boxes, count, rng)
    stands = times * begun.boxes.sum() / count / begun.boxes[at]
    groups = np.append(trail.seen, begun.shut[at])
    level = search.blocks.levels[-1]
    est, upper = (side.ravel() for side in bounds(level, False, begun.query, groups, trail))
    trail.bytes = read + len(at) * level.records.shape[1]  # the search read the others before
    places = children(groups)
    ids = search.blocks.order[places]
    there = (ids >= 0) & ~np.isin(ids, trail.scored_ids)
    each = np.repeat(np.append(np.ones(len(trail.seen)), stands), len(est) // max(1, len(groups)))
    return _line(link, begun.shift, places[there], est[there], narrow * (upper - est)[there], each[there])


def _closer(search: BlockSearch, begun: Start, link: Link, taken: Line, narrow: float) -> Line:
    """The same classes by a closer look."""
    assert search.blocks.closer is not None
    est, upper = closer(search.blocks, begun.query, taken.places, taken.est)
    begun.trail.bytes += len(est) * search.blocks.closer.shape[1]
    return _line(link, begun.shift, taken.places, est, narrow * (upper - est), taken.stands)


def _line(link: Link, shift: float, places: Ids, est: Doubles, radius: Doubles, stands: Doubles) -> Line:
    middle, wide = np.exp(link(est) - shift), link.steepest * radius
    return Line(places, est, middle, middle * (wide + wide**2 / 2) * stands, stands)
