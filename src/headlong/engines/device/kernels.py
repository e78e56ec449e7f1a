"""The three Triton kernels, and what they share: the link and the Gumbels.

::

    scan     z_i = s_i <w_i, x> + b_i for every class, in float32, within r_i = |x| slack_i + |b_i| unit:
             the upper end of z_i (or of f(z_i) / T + gumbel_i), and sums of exp(f(z_i) / T) with both ends, a tile at a time
    exact    <w_i, x> + b_i of given classes, in float64
    noise    -log(-log u) of (seed, row, draw, class): the numbers that engines on the CPU draw with

``numbers [batch, 5]`` int64 holds what a row's noise depends on: row, draw, the two halves of the seed, the first class.
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
    """Philox4x32-10, word by word as ``engines/reference/gumbel.py`` computes it."""
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
def gumbel(numbers, ids, here):
    """Gumbels of ``ids`` int64, ``numbers`` pointing at the row's five; ``here`` says which of these rows there are.

    u = (H 2^32 + L + 1/2) / 2^64 of two words H and L; near one, log u is taken of what is missing to one.
    """
    row, draw = tl.load(numbers, mask=here, other=0), tl.load(numbers + 1, mask=here, other=0).to(tl.uint32)
    first = tl.load(numbers + 2, mask=here, other=0).to(tl.uint32)
    second = tl.load(numbers + 3, mask=here, other=0).to(tl.uint32)
    ids += tl.load(numbers + 4, mask=here, other=0)
    high = words(first, second, row, draw, ids)
    low = words(first, second, row, draw | 0x80000000, ids).to(tl.float64)
    below = (high.to(tl.float64) * 4294967296.0 + low + 0.5) * 5.421010862427522e-20
    above = ((4294967295.0 - high.to(tl.float64)) * 4294967296.0 + (4294967296.0 - low) - 0.5) * 5.421010862427522e-20
    # log1p(-v) = log(1 - v) * v / (1 - (1 - v)): the rounding of 1 - v cancels
    rest = 1.0 - above
    gap = tl.where(rest == 1.0, 1.0, 1.0 - rest)
    near_one = tl.where(rest == 1.0, above, -tl.log(rest) * (above / gap))
    upper = high >= 0x80000000
    return -tl.log(tl.where(upper, near_one, -tl.log(tl.where(upper, 0.5, below))))


@triton.jit
def products(weight, x, one, i, b, vocab, batch, dim, PRODUCT: tl.constexpr, WIDEN: tl.constexpr,
             BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr):  # fmt: skip
    """``<w_i, x_b>`` of a tile, float32 ``[BLOCK_V, BLOCK_B]``.

    Each block of columns is summed on its own and then added: an accumulator that ran over all of them could be off by dim
    roundings, this one by BLOCK_D + dim / BLOCK_D, whatever the order inside. ``one`` is 1: a number that the compiler does not
    know keeps it from making one accumulator of them after all. Without PRODUCT there is one query.
    """
    total = tl.zeros((BLOCK_V, BLOCK_B), tl.float32)
    rows, there, known = i.to(tl.int64)[:, None] * dim, (i < vocab)[:, None], b < batch
    for start in tl.range(0, dim, BLOCK_D, num_stages=3):
        d = start + tl.arange(0, BLOCK_D)
        w = tl.load(weight + rows + d[None, :], mask=there & (d < dim)[None, :], other=0)
        if PRODUCT:
            at = b.to(tl.int64)[None, :] * dim + d[:, None]
            v = tl.load(x + at, mask=known[None, :] & (d < dim)[:, None], other=0.0)
            if WIDEN:
                part = tl.dot(w.to(tl.float32), v.to(tl.float32), input_precision="ieee")
            else:  # 16 bits hold x, and int8 codes exactly
                part = tl.dot(w.to(v.dtype), v)
        else:
            v = tl.load(x + d, mask=d < dim, other=0.0)
            part = tl.sum(w.to(tl.float32) * v.to(tl.float32)[None, :], 1)[:, None]
        total += part * one
    return total


@triton.jit(do_not_specialize=["batch", "tiles", "mask_stride"])
def scan(
    weight, scale, bias, slack, x, lengths, mask, link, facts, heat_at, numbers, high_at, sums_at,
    vocab, dim, batch, tiles, mask_stride,
    SCALED: tl.constexpr, BIAS: tl.constexpr, MASKED: tl.constexpr, KIND: tl.constexpr, SAMPLE: tl.constexpr,
    PRODUCT: tl.constexpr, WIDEN: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """``high [batch, vocab]`` float32, ``sums [batch, tiles, 3]`` float64: the shift, and both sums over it of a tile.

    ``facts``  float64: the unit of rounding, the link's steepest slope, and 1;  ``heat_at``  the temperature
    """
    tile = tl.program_id(1)
    i, b = tile * BLOCK_V + tl.arange(0, BLOCK_V), tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    known, unit, heat = b < batch, tl.load(facts), tl.load(heat_at)
    one = tl.load(facts + 2).to(tl.float32)
    z = products(weight, x, one, i, b, vocab, batch, dim, PRODUCT, WIDEN, BLOCK_V, BLOCK_D, BLOCK_B)
    if SCALED:
        z *= tl.load(scale + i, mask=i < vocab, other=0.0)[:, None]
    length = tl.load(lengths + b, mask=known, other=0.0).to(tl.float64)
    reach = tl.load(slack + i, mask=i < vocab, other=0.0).to(tl.float64)[:, None] * length[None, :]
    if BIAS:
        offset = tl.load(bias + i, mask=i < vocab, other=0.0)
        z += offset[:, None]
        reach += tl.abs(offset).to(tl.float64)[:, None] * unit
    there = (i < vocab)[:, None] & known[None, :]
    if MASKED:
        there = there & (tl.load(mask + b.to(tl.int64)[None, :] * mask_stride + i[:, None], mask=there, other=0) != 0)
    # A sum that overflowed says nothing: 0 within infinity. (So does 0 times infinity.)
    sound = (tl.abs(z) < 3.0e38) & (reach < float("inf"))
    wide, reach = tl.where(sound, z, 0.0).to(tl.float64), tl.where(sound, reach + 1e-30, float("inf"))
    top = wide + reach
    if SAMPLE:
        noise = gumbel((numbers + b.to(tl.int64) * 5)[None, :], i.to(tl.int64)[:, None] + 0 * b[None, :], known[None, :])
        top = tl.where(sound, linked(tl.where(sound, top, 0.0), link, KIND) / heat + noise, float("inf"))
    else:
        exponent = tl.where(there, linked(wide, link, KIND) / heat, float("-inf"))
        shift = tl.max(exponent, 0)
        shift = tl.where(shift == float("-inf"), 0.0, shift)
        less = (exponent - shift[None, :]).to(tl.float32)
        # exp(reach) may overflow where the exponent itself is far below: then nothing is known, which is true
        more = (exponent - shift[None, :] + reach * (tl.load(facts + 1) / heat)).to(tl.float32)
        at = sums_at + (b.to(tl.int64) * tiles + tile) * 3
        tl.store(at, shift, mask=known)
        tl.store(at + 1, tl.sum(tl.exp(less), 0).to(tl.float64), mask=known)
        tl.store(at + 2, tl.sum(tl.where(there, tl.exp(more), 0.0), 0).to(tl.float64), mask=known)
    high = tl.where(there, (top + tl.abs(top) * 2.4e-7 + 1e-37).to(tl.float32), float("-inf"))
    tl.store(high_at + b.to(tl.int64)[None, :] * vocab + i[:, None], high, mask=(i < vocab)[:, None] & known[None, :])


@triton.jit(do_not_specialize=["count", "stride"])
def exact(weight, bias, x, ids, out, dim, count, stride, BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Logits ``[batch, count]`` of ``ids`` int64, whose rows are ``stride`` apart (0: one row for all); -1: -inf."""
    b, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    i = tl.load(ids + b * stride + place, mask=place < count, other=-1)
    asked = i >= 0
    z = tl.full((ROWS,), float("-inf"), tl.float64)
    if tl.max(i, 0) >= 0:  # most blocks of candidates are empty
        rows = tl.where(asked, i, 0) * dim
        total = tl.zeros((ROWS,), tl.float64)
        for start in range(0, dim, BLOCK_D):
            d = start + tl.arange(0, BLOCK_D)
            w = tl.load(weight + rows[:, None] + d[None, :], mask=asked[:, None] & (d < dim)[None, :], other=0.0)
            v = tl.load(x + b * dim + d, mask=d < dim, other=0.0)
            total += tl.sum(w.to(tl.float64) * v[None, :], 1)
        if BIAS:
            total += tl.load(bias + tl.where(asked, i, 0), mask=asked, other=0.0).to(tl.float64)
        z = tl.where(asked, total, z)
    tl.store(out + b * count + place, z, mask=place < count)


@triton.jit(do_not_specialize=["count", "stride"])
def noise(numbers, ids, out, count, stride, BLOCK: tl.constexpr):
    """Gumbels ``[batch, count]`` of ``ids`` int64, whose rows are ``stride`` apart; 0 for -1."""
    b, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    i = tl.load(ids + b * stride + place, mask=place < count, other=-1)
    drawn = gumbel(numbers + b * 5 + place * 0, tl.maximum(i, 0), place < count)
    tl.store(out + b * count + place, tl.where(i >= 0, drawn, 0.0), mask=place < count)
