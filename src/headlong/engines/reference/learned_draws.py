"""The normaliser from as many rows as queries taught, in NumPy: the twin of ``csrc/normaliser/by_learned_draws.cpp``.

    b_i = exp(link(estimate_i)),   u_i = exp(link(estimate_i + narrow * radius_i)) - b_i
    the widest u are scored; the others' are a line, on each n-th of which one point falls:
    n = spend * (r^2 + r),   r = sum u / (eps * sum)         u of scored classes beyond the TAUGHT best are in this sum, too
    sum of terms ~ exact + sum b + (sum u) * mean (term - b) / u

The native executor also looks more closely at wide classes before it scores them; here rows follow at once, and the noise is
another.
"""

from __future__ import annotations

import math
import zlib

import numpy as np

from headlong.engines.reference.query import Doubles, Query, logits, radii
from headlong.plan import TAUGHT, Draws


def estimates(query: Query, draws: Draws, k: int, seeds: list[int]) -> list[float] | None:
    """What each sample says of the normaliser, asked beside ``k`` ids; None where so many rows would have to be read that all
    of them are cheaper."""
    eps, spend = draws.eps, draws.spent_on(k)
    link, live = query.matrix.link, np.flatnonzero(query.live)
    scored = query.scored[live]
    middle = link(query.estimate[live])
    shift = float(middle.max())
    radius = np.where(scored, 0.0, draws.narrow[0] * query.radius[live])
    with np.errstate(over="ignore", invalid="ignore"):
        gap = np.exp(link(query.estimate[live] + radius) - shift) - np.exp(middle - shift)
    gap[scored] = 0.0
    middle = np.exp(middle - shift)
    order = np.argsort(-gap, kind="stable")
    more = _beyond_taught(query, draws, live[scored], shift) if k > TAUGHT else 0.0
    rest = gap[order][::-1].cumsum()[::-1] + more
    with np.errstate(invalid="ignore"):
        r = rest / (eps * middle.sum())
        rows = np.arange(len(order)) + np.where(np.isfinite(rest), spend * (r * r + r), np.inf)
    wide = order[: int(np.argmin(rows))]
    share = query.matrix.plan.dense.share * len(query.estimate)
    if not rows.min() < share:
        return None
    query.score(live[wide])
    exact = float(np.exp(link(query.estimate[live[wide]]) - shift).sum() + middle[scored].sum())
    middle[wide], gap[wide] = 0.0, 0.0
    known = exact + float(middle[~scored].sum())
    total = float(gap.sum())
    r = (total + more) / (eps * known)
    count = math.ceil(spend * (r * r + r) * total / (total + more)) if total > 0 else 0
    return [shift + math.log(max(known + total * _mean(query, live, middle, gap, shift, count, seed), exact)) for seed in seeds]


def _beyond_taught(query: Query, draws: Draws, scored: np.ndarray, shift: float) -> float:
    """The gaps that the first look left of what was scored, but for the best."""
    some = scored[np.argsort(-query.estimate[scored], kind="stable")[TAUGHT:]]
    radius = draws.narrow[0] * radii(query.matrix.plan.levels[0], query.halves, some)
    link, z = query.matrix.link, query.estimate[some]
    with np.errstate(over="ignore", invalid="ignore"):
        return float((np.exp(link(z + radius) - shift) - np.exp(link(z) - shift)).sum())


def _mean(query: Query, live: np.ndarray, middle: Doubles, gap: Doubles, shift: float, count: int, seed: int) -> float:
    """Of ``(term - b) / u`` where the points fall; the rows are read."""
    if count == 0:
        return 0.0
    rng = np.random.default_rng([seed, zlib.crc32(query.hidden.tobytes())])
    line = gap.cumsum()
    points = (np.arange(count) + rng.random(count)) * (line[-1] / count)
    at = np.minimum(np.searchsorted(line, points, side="right"), np.flatnonzero(gap)[-1])
    taken, times = np.unique(at, return_counts=True)
    z = logits(query.matrix, query.hidden, live[taken])
    query.rows += len(taken)
    query.bytes += len(taken) * query.matrix.weight.shape[1] * query.matrix.weight.itemsize
    with np.errstate(over="ignore"):
        x = (np.exp(query.matrix.link(z) - shift) - middle[taken]) / gap[taken]
    return float((x * times).sum() / count)
