"""Rotated codes in NumPy: the readable statement of ``csrc/codes``.

::

    x = (hidden - mean) @ rotation,     x^ = step * (floor(x / step) or one more, at random so that its mean is x)
    estimate_i = base_i + sum_s scale_is <q_is, x^_s>
    sigma_i^2 = sum_s |x_s|^2 error_is^2 / (n_s - 1) + step_s^2 (scale_is |q_s|)^2 / 4
    likely radius = kappa sigma_i,     proved radius = sum_s |x_s| error_is + |x_s - x^_s| scale_is |q_s|
    of a class: its share of that of its tile's errors and scales

Ids: the best estimates are scored exactly; so is every class whose estimate and radius reach the worst of the best k. The union
goes over the k true best alone: ``kappa = sqrt(2 log(k / delta))``. Normalisers: intervals of all classes at once,
``kappa = sqrt(2 log(2 V / delta))``, where they are close enough; else all rows are read, where native code bets on some of
them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.answers import Answer
from headlong.dtypes import Doubles, Ids
from headlong.engines.reference.query import ordered
from headlong.engines.reference.rows import Rows, stacked
from headlong.layers.matrix import Layer
from headlong.plan import GROUP, TILE, Codes, TileLayout
from headlong.question import Question

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class CodesInNumPy:
    """A reader; ``rows`` scores rows exactly, draws, and reads all rows where codes leave too many open. Ids and normalisers
    may be wrong with probability ``delta``, by noise from ``seed``."""

    def __init__(self, layer: Layer, codes: Codes, rows: Rows, delta: float = 0.0, seed: int = 0) -> None:
        self.layer, self.codes, self.rows, self.delta, self.seed = layer, codes, rows, delta, seed
        self.isa = rows.isa
        self.q, self.scale, self.base, self.share, self.largest = decoded(codes, layer.vocab)

    def estimates(self, hidden: Doubles, kappa: float, seed: int) -> tuple[Doubles, Doubles]:
        """Estimates ``[batch, vocab]`` of the logits, and how far off they are: at kappa deviations, or for certain at 0."""
        codes = self.codes
        moved = hidden - codes.mean
        length = np.linalg.norm(moved, axis=1)
        x = moved.astype(np.float32).astype(np.float64) @ np.concatenate([*codes.rotation], axis=1)
        estimate = np.tile(self.base, (len(hidden), 1))
        squares, linear = np.zeros((2, len(hidden), len(codes.tiles)))
        constant, size, column = codes.lost * length, np.full(len(hidden), codes.most_base), 0
        for s, (start, stop, _, planes) in enumerate(codes.segments):
            code_norm, most, x_error, row_error = codes.bounds[s]
            own = x[:, column : column + stop - start]
            column += -(-(stop - start) // GROUP) * GROUP
            rest, step = own.copy(), np.zeros(len(hidden))
            for plane in range(planes):
                step = np.abs(rest).max(axis=1) / 127
                rounded = np.stack(
                    [_rounded(r, one, _key(h, seed), s << 8 | plane) for r, one, h in zip(rest, step, hidden, strict=True)]
                )
                rest -= rounded * step[:, None]
                estimate += (rounded * step[:, None]) @ self.q[s].T * self.scale[s]
            norm = np.linalg.norm(own, axis=1) + x_error * length
            loss = np.linalg.norm(rest, axis=1) + x_error * length
            error, scale = self.largest[:, s].T
            squares += np.outer(norm**2 / (stop - start - 1), error**2) + np.outer((step * code_norm / 2) ** 2, scale**2)
            linear += np.outer(norm, error) + np.outer(loss * code_norm, scale)
            constant += norm * row_error + x_error * length * most
            size += (norm + loss) * most
        radius = (kappa * np.sqrt(squares) if kappa > 0 else linear).repeat(TILE, axis=1)[:, : self.layer.vocab] * self.share
        return estimate + (hidden @ codes.centre)[:, None], radius + (constant + 2.0**-17 * size)[:, None]

    def ask(self, hidden: Doubles, question: Question) -> Answer:
        summed = question.verb == "normaliser" and question.temperature == 1
        if not len(hidden) or not (summed or question.verb == "best"):
            return self._told(hidden, question)
        vocab, k, eps = self.layer.vocab, question.k, math.inf if question.eps is None else question.eps
        sums = math.isfinite(eps)
        mask = np.ones((1, vocab), bool) if question.mask is None else np.asarray(question.mask, bool)
        estimate, radius = self.estimates(hidden, kappa_of(k, self.delta / 2 if sums else self.delta), self.seed)
        wide = self.estimates(hidden, kappa_of(2 * vocab, self.delta / 4), self.seed)[1] if sums else radius
        parts = []
        for row in range(len(hidden)):
            one, own, found = hidden[row : row + 1], mask[row % len(mask)], None
            if 4 * k <= vocab:
                found = self._one(one, k, eps, own, estimate[row], (radius[row], wide[row]))
            if found is None or found.rows[0] >= vocab:  # who has read every row knows
                here = None if question.mask is None else np.ascontiguousarray(question.mask[row % len(mask)][None])
                found = self.rows.ask(one, question._replace(mask=here))
            elif k:
                found = found._replace(proved=np.full(1, self.delta == 0))
            parts.append(found)
        return stacked(parts, question, self.rows.path)

    def _told(self, hidden: Doubles, question: Question) -> Answer:
        """What codes do not help with; the normaliser of given classes is theirs."""
        if question.verb != "given" or not len(hidden) or question.eps == math.inf:
            return self.rows.ask(hidden, question)
        found = self.rows.ask(hidden, question._replace(eps=math.inf))
        norm, count = self.ask(hidden, question._replace(verb="normaliser", ids=None)), found.logits.shape[1]
        log_probs = np.asarray(self.layer.link(found.logits)) - norm.lse[:, None]
        read = norm.bytes + count * float(self.layer.row_bytes)
        return norm._replace(logits=found.logits, log_probs=log_probs, rows=norm.rows + count, bytes=read)

    def _one(
        self, hidden: Doubles, k: int, eps: float, allowed: NDArray[np.bool_], estimate: Doubles,
        radii: tuple[Doubles, Doubles],
    ) -> Answer | None:  # fmt: skip
        """The answer for one query; None where a full scan is better."""
        order = np.flatnonzero(allowed)
        order = order[np.argsort(-estimate[order], kind="stable")]
        heads = order[: max(k, 128 if math.isfinite(eps) else k)]
        exact = self._logits(hidden, heads)
        if k and len(heads) >= k:
            rest = order[len(heads) :]
            more = rest[estimate[rest] + radii[0][rest] >= np.partition(exact, len(exact) - k)[len(exact) - k]]
            if len(heads) + len(more) > max(256, self.layer.vocab // 4):
                return None
            heads = np.concatenate([heads, more])
            exact = np.concatenate([exact, self._logits(hidden, more)])
        heads, exact = ordered(self.rows.matrix, hidden[0], heads, exact, k)
        ids, logits, there = np.full((1, k), -1, np.int64), np.full((1, k), -np.inf), min(k, len(heads))
        ids[0, :there], logits[0, :there] = heads[:there], exact[:there]
        lse, error = _normaliser(self.layer.link, exact, estimate[rest := np.setdiff1d(order, heads)], radii[1][rest], eps, k)
        if lse is None:
            return None
        with np.errstate(invalid="ignore"):
            log_probs = np.where(ids < 0, -np.inf, np.asarray(self.layer.link(np.where(ids < 0, 0.0, logits))) - lse)
        rows, row_bytes = len(heads), self.layer.dim * self.layer.weight.itemsize
        read = float(self.codes.tiles.nbytes + self.codes.rotation.nbytes + rows * row_bytes)
        norm = Answer(lse=np.array([lse]), error=np.array([error]), rows=np.array([rows]), bytes=np.array([read]))
        norm = norm._replace(full=np.zeros(1, bool))
        return norm._replace(ids=ids, logits=logits, log_probs=log_probs) if k else norm

    def _logits(self, hidden: Doubles, ids: Ids) -> Doubles:
        found: Doubles = self.rows.ask(hidden, Question("given", ids=ids[None])).logits[0]
        return found


def _normaliser(
    link: Any, exact: Doubles, estimate: Doubles, radius: Doubles, eps: float, k: int
) -> tuple[float | None, float]:
    """The normaliser within ``eps`` and its error, from exact logits and intervals of the others; None where they are too
    wide."""
    if math.isinf(eps):
        found = np.sort(np.asarray(link(exact)))[::-1][:k]
        return (float(found[0] + np.log(np.exp(found - found[0]).sum())) if len(found) else -math.inf), math.inf
    if not len(exact):
        return -math.inf, 0.0
    middle, reach = np.asarray(link(estimate)), radius * link.steepest
    shift = max(float(np.asarray(link(exact)).max()), float(middle.max(initial=-np.inf)))
    known = float(np.exp(np.asarray(link(exact)) - shift).sum())
    with np.errstate(over="ignore"):
        low, high = known + np.exp(middle - reach - shift).sum(), known + np.exp(middle + reach - shift).sum()
    half = 0.5 * math.log(high / low) + 1e-9 if math.isfinite(high) else math.inf
    return (None if half > eps else shift + 0.5 * math.log(high * low)), half


def kappa_of(events: float, delta: float) -> float:
    """How many deviations none of ``events`` exceeds except with probability ``delta``; 0: a proof is asked for."""
    return math.sqrt(2 * math.log(max(1.0, events) / delta)) if delta > 0 else 0.0


def decoded(codes: Codes, vocab: int) -> tuple[list[Doubles], list[Doubles], Doubles, Doubles, Doubles]:
    """Odd integers ``[vocab, n_s]`` and scales ``[vocab]`` of each segment; bases and shares ``[vocab]``; the errors and
    scales of tiles ``[tiles, segments, 2]``.
    """
    q, count, layout = [], len(codes.tiles), TileLayout.of(codes.segments)
    for place, (start, stop, bits, _) in zip(layout.codes, codes.segments, strict=True):
        groups = -(-(stop - start) // GROUP)
        words = codes.tiles[:, place : place + groups * bits * TILE * 4].reshape(count, groups, bits, TILE, 4)
        u = unpacked(words, bits).reshape(count * TILE, groups * GROUP)[:vocab, : stop - start]
        q.append(2.0 * u - (2**bits - 1))
    scale, base, share, largest = (part.astype(np.float64) for part in layout.numbers(codes.tiles))
    scales = list(scale.transpose(1, 0, 2).reshape(len(codes.segments), -1)[:, :vocab])
    return q, scales, base.reshape(-1)[:vocab], share.reshape(-1)[:vocab], largest


def unpacked(words: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """The inverse of :func:`headlong.encode.tiles.packed`: ``[tiles, groups, bits, 64, 4] -> [tiles, 64, groups, 8, 4]``."""
    if bits == 8:
        return np.ascontiguousarray(words.transpose(0, 3, 1, 2, 4))
    quads = np.zeros((*words.shape[:2], 8, *words.shape[3:]), np.uint8)
    place, left = 0, bits
    for field in (4, 2, 1):
        if not bits & field:
            continue
        left -= field
        for g in range(8):
            part = words[:, :, place + g * field // 8] >> np.uint8(g * field % 8) & np.uint8(2**field - 1)
            quads[:, :, g] |= part << np.uint8(left)
        place += field
    return np.ascontiguousarray(quads.transpose(0, 3, 1, 2, 4))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def _key(hidden: Doubles, seed: int) -> NDArray[np.uint64]:
    """What a query draws its noise from: its content and the seed."""
    with np.errstate(over="ignore"):
        part = np.array([(seed + i) % 2**64 for i in range(4)], np.uint64)
        words = np.ascontiguousarray(hidden).view(np.uint64)
        for j, word in enumerate(words):
            part[j % 4] = _mix(part[j % 4] ^ word) + GOLDEN
        found: NDArray[np.uint64] = _mix(_mix(_mix(part[:1]) ^ part[1:2]) ^ part[2:3]) ^ part[3:4]
        return found


def _rounded(x: Doubles, step: float, key: NDArray[np.uint64], plane: int) -> Doubles:
    """Whole numbers within 127 whose mean is ``x / step``."""
    if not step > 2.0**-120:
        return np.zeros_like(x)
    with np.errstate(over="ignore"):
        quads = np.arange(0, len(x), 4, dtype=np.uint64)
        noise = _mix(_mix(key ^ np.uint64(plane)) + quads)
        chance = (noise[:, None] >> (np.arange(4, dtype=np.uint64) * np.uint64(16)) & np.uint64(0xFFFF)).reshape(-1)[: len(x)]
    scaled = x / step
    low = np.floor(scaled)
    found: Doubles = np.clip(low + ((chance + 0.5) / 65536 < scaled - low), -127, 127)
    return found
