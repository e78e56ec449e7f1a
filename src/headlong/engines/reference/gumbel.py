"""One Gumbel per (seed, row, draw, class), the same in every executor and every split of a batch.

    u = (H * 2**32 + L + 0.5) / 2**64        g = -log(-log(u))

with H and L two 32-bit words of the counter-based generator Philox4x32-10 (Salmon et al., 2011). Its key is the seed xor
:data:`headlong.randomness.NOISE`, since others take their seeds for keys. Any class's noise can be had alone, in any order,
on any machine. One block of the generator serves the four classes that share ``class >> 2``; L comes from a second block
whose draw number has its top bit set.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headlong.randomness import NOISE

Words = NDArray[np.uint64]  # 32-bit words held in 64 bits, so that products do not overflow

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_SECOND = 0x80000000
"""Added to the draw number: the block that gives the low words."""


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10: ten rounds of two 32 x 32 -> 64 bit products; four words in, four words out."""
    a, b, c, d = counter
    for step in range(10):
        first, second = (np.uint64((word + step * weyl) & 0xFFFFFFFF) for word, weyl in zip(key, _WEYL, strict=True))
        left, right = _MULTIPLY[0] * a, _MULTIPLY[1] * c
        a, b, c, d = (right >> _SHIFT) ^ b ^ first, right & _LOW, (left >> _SHIFT) ^ d ^ second, left & _LOW
    return a, b, c, d


def gumbels(seed: int, row: int, draw: int, classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """``-log(-log(u))`` for each of ``classes``; ``seed`` and ``row`` are 64-bit, ``draw`` is 31-bit."""
    high, low = (words(seed, row, number, classes) for number in (draw, draw | _SECOND))
    near_zero = high.astype(np.float64) * 2.0**32 + low.astype(np.float64) + 0.5
    near_one = (_LOW - high).astype(np.float64) * 2.0**32 + (2.0**32 - low.astype(np.float64)) - 0.5
    # Near one u itself would round to 1, so there its distance from one goes into log1p.
    upper = high >= 2**31
    negative_log = np.empty(len(classes))
    negative_log[~upper] = -np.log(near_zero[~upper] * 2.0**-64)
    negative_log[upper] = -np.log1p(-near_one[upper] * 2.0**-64)
    return -np.log(negative_log)


def words(seed: int, row: int, draw: int, classes: NDArray[np.int64]) -> Words:
    """The word of each class: output ``class & 3`` of the block at counter ``(class >> 2, draw, row)``."""
    blocks, place = np.unique(classes >> 2, return_inverse=True)
    fixed = (draw, row & 0xFFFFFFFF, row >> 32)
    counter = (blocks.astype(np.uint64) & _LOW, *(np.full(len(blocks), word, np.uint64) for word in fixed))
    key = seed ^ NOISE
    words = np.stack(philox(counter, (key & 0xFFFFFFFF, key >> 32)))
    picked: Words = words[classes & 3, place]
    return picked
