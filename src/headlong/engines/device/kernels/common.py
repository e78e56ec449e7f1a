"""What the GPU kernels compute alike: links, Gumbels, and the bookkeeping of one tile of logits. Imports Triton.

    linked   f(z) in float64 from a lowered link                                    links/
    gumbel   -log(-log(u)) of (seed, row, draw, class), the CPU's own numbers       gumbel.py

Loaded by ``device.py`` only where an engine on a device is made. Not here: loads of weights, launches.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headlong.links.base import FORMS

AFFINE, SOFTCAP = (tl.constexpr(FORMS.index(form)) for form in ("affine", "softcap"))


@triton.jit
def linked(z, link, KIND: tl.constexpr):
    """f(z) in float64; ``link`` points at (scale, shift), (cap, 0) or (start, step, left, right, cells, values...)."""
    if KIND == AFFINE:
        f = z * tl.load(link) + tl.load(link + 1)
    elif KIND == SOFTCAP:
        cap = tl.load(link)
        small = tl.exp(-2.0 * tl.abs(z) / cap)
        f = cap * (1.0 - small) / (1.0 + small)
        f = tl.where(z < 0, -f, f)
    else:
        start, step = tl.load(link), tl.load(link + 1)
        cells = tl.load(link + 4)
        place = tl.where(z == z, (z - start) / step, 0.0)
        cell = tl.minimum(tl.maximum(tl.floor(place), 0.0), cells - 1.0).to(tl.int64)
        low, high = tl.load(link + 5 + cell), tl.load(link + 6 + cell)
        f = low + (z - (start + step * cell.to(tl.float64))) * ((high - low) / step)
        f = tl.where(z < start, low + (z - start) * tl.load(link + 2), f)
        end = start + step * cells
        f = tl.where(z > end, high + (z - end) * tl.load(link + 3), f)
    return f


@triton.jit
def philox(a, b, c, d, first, second):
    """Philox4x32-10, ``gumbel.philox`` with 32-bit words."""
    for _ in tl.static_range(10):
        left, right = tl.umulhi(a, 0 * a + 0xD2511F53), tl.umulhi(c, 0 * c + 0xCD9E8D57)
        low_left, low_right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = right ^ b ^ first, low_right, left ^ d ^ second, low_left
        first += 0x9E3779B9
        second += 0xBB67AE85
    return a, b, c, d


@triton.jit
def words(first, second, row, draw, ids):
    """32 bits for each class of ``ids`` int64: output ``class & 3`` of the block at counter ``(class >> 2, draw, row)``."""
    zero = (ids * 0).to(tl.uint32)
    high_row = (row >> 32).to(tl.uint32) + zero
    low_row, start = row.to(tl.uint32) + zero, (ids >> 2).to(tl.uint32) + zero
    a, b, c, d = philox(start, draw + zero, low_row, high_row, first + zero, second + zero)
    place = ids & 3
    return tl.where(place == 0, a, tl.where(place == 1, b, tl.where(place == 2, c, d)))


@triton.jit
def gumbel(first, second, row, draw, ids):
    """``-log(-log((H 2^32 + L + 1/2) / 2^64))`` in float64, H and L two words; near one by what is missing to one.

    ``first, second``: the halves of the seed, uint32; ``row`` int64, ``draw`` uint32.
    """
    high = words(first, second, row, draw, ids)
    low = words(first, second, row, draw | 0x80000000, ids)
    low64 = low.to(tl.float64)
    upper = high >= 0x80000000
    near_zero = (high.to(tl.float64) * 4294967296.0 + low64 + 0.5) * 5.421010862427522e-20
    near_one = ((4294967295.0 - high.to(tl.float64)) * 4294967296.0 + (4294967296.0 - low64) - 0.5) * 5.421010862427522e-20
    rest = 1.0 - near_one
    # log1p(-v) = log(1 - v) * v / (1 - (1 - v)): the rounding of 1 - v cancels
    gap = tl.where(rest == 1.0, 1.0, 1.0 - rest)
    beside_one = tl.where(rest == 1.0, near_one, -tl.log(rest) * (near_one / gap))
    plain = -tl.log(tl.where(upper, 0.5, near_zero))
    return -tl.log(tl.where(upper, beside_one, plain))


@triton.jit
def gumbel_at(seed, row, draw, ids):
    """The same, of a seed that lies in memory."""
    return gumbel(tl.load(seed).to(tl.uint32), tl.load(seed + 1).to(tl.uint32), row, draw, ids)


@triton.jit
def widened(values, WIDER: tl.constexpr):
    """float64 to the float32 at or above it (``WIDER`` 1) or at or below it (-1), generously; infinities stay."""
    return (values + WIDER * (tl.abs(values) * 2.4e-7 + 1e-37)).to(tl.float32)


@triton.jit
def finish_tile(
    z, radius, i, b, there, tile, tiles, steepest, link, temperature, low, high_word, row, draw, class0,
    high_at, estimate_at, best_at, best_id_at, mass_at, vocab, best_count,
    KIND: tl.constexpr, SAMPLE: tl.constexpr, KEEP: tl.constexpr, MASS: tl.constexpr,
):  # fmt: skip
    """From estimates and radii ``[classes, batch]`` of one tile: upper ends, the best few, and the sum of exponentials.

    ``there`` says which entries are classes of the call. An estimate that overflowed knows nothing: 0 within infinity.
    ``low, high_word`` are the seed; ``row, draw [batch]`` the numbers of each query's noise.
    """
    known = tl.abs(z) < 3.0e38
    z = tl.where(known, z, 0.0)
    radius = tl.where(known & (radius == radius), radius, float("inf"))  # 0 times infinity
    wide, reach = z.to(tl.float64), radius.to(tl.float64)
    if SAMPLE:
        noise = gumbel(low, high_word, row[None, :], draw[None, :], i.to(tl.int64)[:, None] + class0)
        top = tl.where(known, linked(wide + reach, link, KIND) / temperature + noise, float("inf"))
        middle = (linked(wide, link, KIND) / temperature + noise).to(tl.float32)
    else:
        top = tl.where(known, wide + reach, float("inf"))
        middle = z
    high = tl.where(there, widened(top, 1), float("-inf"))
    middle = tl.where(there, middle, float("-inf"))
    at = b.to(tl.int64)[None, :] * vocab + i[:, None]
    inside = (i < vocab)[:, None] & (b >= 0)[None, :]
    tl.store(high_at + at, high, mask=inside)
    if KEEP:
        tl.store(estimate_at + at, tl.where(there, z, float("-inf")), mask=inside)
    if MASS:
        exponent = tl.where(there, linked(wide, link, KIND) / temperature, float("-inf"))
        shift = tl.max(exponent, 0)
        shift = tl.where(shift == float("-inf"), 0.0, shift)
        least = tl.exp((exponent - shift[None, :]).to(tl.float32))
        # exp(radius) can overflow where the exponent itself is far below: then nothing is known, which is true
        most = tl.exp((exponent - shift[None, :] + reach * (steepest / temperature)).to(tl.float32))
        place = (tl.maximum(b, 0).to(tl.int64) * tiles + tile) * 3
        tl.store(mass_at + place, shift, mask=b >= 0)
        tl.store(mass_at + place + 1, tl.sum(least, 0).to(tl.float64), mask=b >= 0)
        tl.store(mass_at + place + 2, tl.sum(tl.where(there, most, 0.0), 0).to(tl.float64), mask=b >= 0)
    place = (tl.maximum(b, 0).to(tl.int64) * tiles + tile) * best_count
    for n in range(best_count):
        best = tl.max(middle, 0)
        first = tl.min(tl.where((middle == best[None, :]) & there, i[:, None], 2147483647), 0)
        tl.store(best_at + place + n, best, mask=b >= 0)
        tl.store(best_id_at + place + n, first, mask=b >= 0)
        middle = tl.where(i[:, None] == first[None, :], float("-inf"), middle)
