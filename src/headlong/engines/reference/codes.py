"""Rotated codes in NumPy: the readable statement of ``csrc/codes``.

::

    x = (hidden - mean) @ rotation,     x^ = step * (floor(x / step) or one more, at random so that its mean is x)
    estimate_i = base_i + sum_s scale_is <q_is, x^_s>
    sigma_i^2 = sum_s |x_s|^2 error_is^2 / (n_s - 1) + step_s^2 (scale_is |q_s|)^2 / 4
    likely radius = kappa sigma_i,     proved radius = sum_s |x_s| error_is + |x_s - x^_s| scale_is |q_s|
    of a class: its share of that of its tile's errors and scales

``csrc/codes/ask.cpp`` scores the best estimates exactly, then every class whose estimate and radius reach the worst of the best
k. The union goes over the k true best alone: ``kappa = sqrt(2 log(k / delta))``. Normalisers take intervals of all classes at
once, ``kappa = sqrt(2 log(2 V / delta))``, and bets. With ``HEADLONG_ISA=numpy`` an engine reads all rows instead.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import Doubles
from headlong.layers.matrix import Layer
from headlong.plan import GROUP, TILE, Codes, TileLayout

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class CodesInNumPy:
    """What a scan of ``codes`` says of every class."""

    def __init__(self, layer: Layer, codes: Codes) -> None:
        self.layer, self.codes = layer, codes
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
