"""The Triton kernels, and what they share: the link and the Gumbels.

::

    a call       prepare,  scan -> merge -> collect -> exact -> order  (-> weigh -> pick, in a nucleus),  said

``numbers [batch, 5]`` int64 holds what a row's noise depends on: row, draw, the two halves of the seed, the first class. A
scale, bias, mask or count that is not there is None, for which a kernel is compiled by itself; so is noise.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headlong.links.base import FORMS

AFFINE, SOFTCAP = (tl.constexpr(FORMS.index(form)) for form in ("affine", "softcap"))


@triton.jit
def linked(z, link, KIND: tl.constexpr, SHIFTED: tl.constexpr = True):
    """f(z) in the type of z; ``link`` points at (scale, shift), (cap, 0) or (start, step, left, right, cells, values...).

    float32 is within 2^-21 of itself, and where it is a soft-cap 2^-20 of the cap, but for an affine map's shift, if SHIFTED.
    """
    if KIND == AFFINE:
        f = z * tl.load(link).to(z.dtype)
        if SHIFTED:
            f += tl.load(link + 1).to(z.dtype)
    elif KIND == SOFTCAP:
        cap = tl.load(link).to(z.dtype)
        small = tl.exp(-2.0 * tl.abs(z) / cap)
        f = cap * (1.0 - small) / (1.0 + small)
        f = tl.where(z < 0, -f, f)
    else:
        wide, start, step, cells = z.to(tl.float64), tl.load(link), tl.load(link + 1), tl.load(link + 4)
        place = tl.where(wide == wide, (wide - start) / step, 0.0)
        cell = tl.minimum(tl.maximum(tl.floor(place), 0.0), cells - 1.0).to(tl.int64)
        low, high = tl.load(link + 5 + cell), tl.load(link + 6 + cell)
        f = low + (wide - (start + step * cell.to(tl.float64))) * ((high - low) / step)
        f = tl.where(wide < start, low + (wide - start) * tl.load(link + 2), f)
        end = start + step * cells
        f = tl.where(wide > end, high + (wide - end) * tl.load(link + 3), f).to(z.dtype)
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
def words(numbers, ids, here, HALF: tl.constexpr, FOURS: tl.constexpr = False):
    """32 bits for each class of ``ids`` int64: word ``class & 3`` of the block at counter ``(class >> 2, draw, row)``;
    ``numbers`` points at the five of a row that is ``here``. HALF: 0, or the bit of the draw that stands for the other half of
    each number. FOURS: ids start blocks, of which all four are wanted, in order."""
    row, draw = tl.load(numbers, mask=here, other=0), tl.load(numbers + 1, mask=here, other=0).to(tl.uint32) | HALF
    first, second = tl.load(numbers + 2, mask=here, other=0), tl.load(numbers + 3, mask=here, other=0)
    ids += tl.load(numbers + 4, mask=here, other=0)
    zero = (ids * 0).to(tl.uint32)
    high_row, low_row = (row >> 32).to(tl.uint32) + zero, row.to(tl.uint32) + zero
    start = (ids >> 2).to(tl.uint32) + zero
    a, b, c, d = philox(start, draw + zero, low_row, high_row, first.to(tl.uint32) + zero, second.to(tl.uint32) + zero)
    if FOURS:
        found = tl.join(tl.join(a, c), tl.join(b, d)).permute(0, 2, 3, 1).reshape(4 * ids.shape[0], ids.shape[1])
    else:
        place = ids & 3
        found = tl.where(place == 0, a, tl.where(place == 1, b, tl.where(place == 2, c, d)))
    return found


@triton.jit
def gumbel(numbers, ids, here):
    """Gumbels in float64 of two words H and L: u = (H 2^32 + L + 1/2) / 2^64; near one, log u is taken of what is missing."""
    high, low = words(numbers, ids, here, 0), words(numbers, ids, here, 0x80000000).to(tl.float64)
    below = (high.to(tl.float64) * 4294967296.0 + low + 0.5) * 5.421010862427522e-20
    above = ((4294967295.0 - high.to(tl.float64)) * 4294967296.0 + (4294967296.0 - low) - 0.5) * 5.421010862427522e-20
    # log1p(-v) = log(1 - v) * v / (1 - (1 - v)): the rounding of 1 - v cancels
    rest = 1.0 - above
    gap = tl.where(rest == 1.0, 1.0, 1.0 - rest)
    near_one = tl.where(rest == 1.0, above, -tl.log(rest) * (above / gap))
    upper = high >= 0x80000000
    return -tl.log(tl.where(upper, near_one, -tl.log(tl.where(upper, 0.5, below))))


@triton.jit
def gumbel_ends(high):
    """float32 numbers between which a Gumbel lies, from its first word H alone: H <= 2^32 u < H + 1.

    ``-log u`` is within 1e-5 of itself: by its series where u is near one, by the processor's logarithm elsewhere.
    """
    upper, number = high >= 0x80000000, high.to(tl.float32)
    v = (0xFFFFFFFF - high).to(tl.float32) * 2.3283064365386963e-10
    series = v * (1.0 + v * (0.5 + v * (0.3333333 + v * 0.25)))
    other = -tl.log(tl.where(upper, 1.0 - v, (number + 1.0) * 2.3283064365386963e-10))
    least = tl.where(upper & (v < 0.03125), series, other)
    most = least + tl.where(upper, 4.7e-10, tl.where(number == 0.0, float("inf"), 1.0001 / number))
    # the logarithm of zero may be anything: the first word is all ones
    top = tl.where(least > 0.0, -tl.log(tl.where(least > 0.0, least, 1.0)) + 3e-5, float("inf"))
    bottom = tl.where(most < float("inf"), -tl.log(tl.where(most < float("inf"), most, 1.0)) - 3e-5, float("-inf"))
    return top, bottom


@triton.jit(do_not_specialize=["row", "seed", "first", "heat"])
def prepare(x, length, bad, numbers, heat_at, dim, row: tl.uint64, seed: tl.uint64, first: tl.uint64, heat: tl.uint64,
            BLOCK: tl.constexpr):  # fmt: skip
    """``length [batch]`` float32, not below ``|x|``; ``bad [batch]``: a row with NaN or infinity. ``heat``: its bits."""
    b = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, dim, BLOCK):
        d = start + tl.arange(0, BLOCK)
        v = tl.load(x + b * dim + d, mask=d < dim, other=0.0).to(tl.float64)
        total += tl.where(tl.abs(v) < float("inf"), v * v, float("nan"))
    square = tl.sum(total, 0)
    wrong = square != square
    tl.store(bad + b, wrong.to(tl.int8))
    tl.store(length + b, (tl.sqrt(tl.where(wrong, float("inf"), square)) * 1.0000002384185791 + 1e-30).to(tl.float32))
    if numbers is not None:
        at, zero = numbers + b * 5, tl.zeros((), tl.uint64)
        tl.store(at, (zero + row).to(tl.int64) + b)
        tl.store(at + 1, zero.to(tl.int64))
        tl.store(at + 2, ((zero + seed) & 0xFFFFFFFF).to(tl.int64))
        tl.store(at + 3, ((zero + seed) >> 32).to(tl.int64))
        tl.store(at + 4, (zero + first).to(tl.int64))
        tl.store(heat_at, (zero + heat).to(tl.float64, bitcast=True))  # by every program the same


@triton.jit
def products(weight, x, one, i, b, vocab, batch, dim, WIDEN: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
             BLOCK_B: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """``<w_i, x_b>`` of a tile, float32 ``[BLOCK_V, BLOCK_B]``.

    One accumulator that ran over all columns could be off by dim roundings, these by BLOCK_D + dim / BLOCK_D, whatever the
    order inside: each block of columns is summed on its own and then added. ``one`` is 1: a number that the compiler does not
    know keeps it from making one accumulator of them after all. For one query BLOCK_D accumulators take turns. float32 is
    multiplied as three products of its halves of 11 bits.
    """
    total = tl.zeros((BLOCK_V, BLOCK_B if BLOCK_B > 1 else BLOCK_D), tl.float32)
    rows, there, known = i.to(tl.int64)[:, None] * dim, (i < vocab)[:, None], b < batch
    for start in tl.range(0, dim, BLOCK_D, num_stages=STAGES):
        d = start + tl.arange(0, BLOCK_D)
        w = tl.load(weight + rows + d[None, :], mask=there & (d < dim)[None, :], other=0)
        if BLOCK_B > 1:
            at = b.to(tl.int64)[None, :] * dim + d[:, None]
            v = tl.load(x + at, mask=known[None, :] & (d < dim)[:, None], other=0.0)
            if WIDEN:
                part = tl.dot(w.to(tl.float32), v.to(tl.float32), input_precision="tf32x3")
            else:  # 16 bits hold x, and int8 codes exactly
                part = tl.dot(w.to(v.dtype), v)
            total += part * one
        else:
            total += w.to(tl.float32) * tl.load(x + d, mask=d < dim, other=0.0).to(tl.float32)[None, :]
    return total if BLOCK_B > 1 else tl.sum(total, 1)[:, None]


@triton.jit(do_not_specialize=["batch", "mask_stride"])
def scan(weight, scale, bias, slack, x, lengths, mask, link, facts, heat_at, numbers, high_at, exponent_at, tile_at,
         vocab, dim, batch, mask_stride, KIND: tl.constexpr, MASS: tl.constexpr, FOURS: tl.constexpr, WIDEN: tl.constexpr,
         BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """``high [batch, vocab]`` float32; ``tile_at [5, batch, tiles]`` float32: of each tile the largest upper end, the largest
    lower end; MASS: a shift, the sum over it of ``exp(f(z) / T)`` by estimates, and how far ``f(z) / T`` can be off; and
    where there is one ``exponent_at [batch, vocab]`` float32, ``f(z) / T`` but for an affine map's shift.

    ``facts``  float64: the unit of rounding, the link's steepest slope, 1, the link's rounding;  ``heat_at``  the temperature.
    All is in float32, whose rounding has its place in the ends: registers for float64 would not suffice.
    """
    tile, tiles = tl.program_id(1), tl.num_programs(1)
    i, b = tile * BLOCK_V + tl.arange(0, BLOCK_V), tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    known, unit = b < batch, tl.load(facts).to(tl.float32)
    cool = (1.0 / tl.load(heat_at)).to(tl.float32)
    one = tl.load(facts + 2).to(tl.float32)
    z = products(weight, x, one, i, b, vocab, batch, dim, WIDEN, BLOCK_V, BLOCK_D, BLOCK_B, STAGES)
    if scale is not None:
        z *= tl.load(scale + i, mask=i < vocab, other=0.0)[:, None]
    reach = tl.load(slack + i, mask=i < vocab, other=0.0)[:, None] * tl.load(lengths + b, mask=known, other=0.0)[None, :]
    if bias is not None:
        offset = tl.load(bias + i, mask=i < vocab, other=0.0)
        z += offset[:, None]
        reach += tl.abs(offset)[:, None] * unit
    there = (i < vocab)[:, None] & known[None, :]
    if mask is not None:
        there = there & (tl.load(mask + b.to(tl.int64)[None, :] * mask_stride + i[:, None], mask=there, other=0) != 0)
    # A sum that overflowed says nothing: 0 within infinity. (So does 0 times infinity.)
    sound = (tl.abs(z) < 3.0e38) & (reach < float("inf"))
    z, reach = tl.where(sound, z, 0.0), tl.where(sound, reach + 1e-30, float("inf"))
    warm = linked(z, link, KIND, False) * cool
    around = reach * ((tl.load(facts + 1).to(tl.float32) * 1.000001) * cool) + tl.abs(warm) * 4.8e-7
    around += tl.load(facts + 3).to(tl.float32) * cool
    sound = (tl.abs(warm) < 3.0e38) & (around < float("inf"))
    warm, around = tl.where(sound, warm, 0.0), tl.where(sound, around, float("inf"))
    row, plane = tile_at + b.to(tl.int64) * tiles + tile, tl.cast(batch, tl.int64) * tiles
    column, inside = b.to(tl.int64)[None, :] * vocab + i[:, None], (i < vocab)[:, None] & known[None, :]
    if MASS:
        exponent = tl.where(there, warm, float("-inf"))
        shift = tl.max(exponent, 0)
        shift = tl.where(shift == float("-inf"), 0.0, shift)
        tl.store(row + 2 * plane, shift, mask=known)
        tl.store(row + 3 * plane, tl.sum(tl.exp(exponent - shift[None, :]), 0), mask=known)
        tl.store(row + 4 * plane, tl.max(tl.where(there, around, 0.0), 0), mask=known)
        if exponent_at is not None:
            tl.store(exponent_at + column, exponent, mask=inside)
    if numbers is not None:
        at = 4 * tl.arange(0, BLOCK_V // 4) if FOURS else tl.arange(0, BLOCK_V)
        ids = (tile * BLOCK_V).to(tl.int64) + at[:, None] + 0 * known[None, :].to(tl.int64)
        drawn = words((numbers + b.to(tl.int64) * 5)[None, :], ids, known[None, :], 0, FOURS)
        above, below = gumbel_ends(drawn)
        high, low = warm + around + above, warm - around + below
    else:
        high, low = z + reach, z - reach
    high = tl.where(there, high + tl.abs(high) * 2.4e-7 + 1e-37, float("-inf"))
    low = tl.where(there, low - tl.abs(low) * 2.4e-7 - 1e-37, float("-inf"))
    tl.store(row, tl.max(high, 0), mask=known)
    tl.store(row + plane, tl.max(low, 0), mask=known)
    tl.store(high_at + column, high, mask=inside)


@triton.jit(do_not_specialize=["batch", "tiles", "k"])
def merge(tile_at, bad, link, heat_at, more, lse_at, error_at, bar_at, count_at, batch, tiles, k,
          KIND: tl.constexpr, MASS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """``lse, error [batch]`` float64 (of MASS), ``bar [batch]`` float32 at most the k-th largest lower end of a tile, and a
    count of zero. ``more``: what float32 exponentials and the link's table may add to an error.

    With radii r the true sum is at most the one by upper ends; and it is at least ``sum p exp(-r)`` of the one by estimates,
    which by Jensen is as near: ``-log sum p exp(-r) <= sum p r <= log sum p exp(r)``.
    """
    b = tl.program_id(0).to(tl.int64)
    plane = tl.cast(batch, tl.int64) * tiles
    row = tile_at + b * tiles
    if MASS:
        top = tl.full((BLOCK,), float("-inf"), tl.float64)
        for start in range(0, tiles, BLOCK):
            t = start + tl.arange(0, BLOCK)
            shift = tl.load(row + 2 * plane + t, mask=t < tiles, other=float("-inf"))
            some = tl.load(row + 3 * plane + t, mask=t < tiles, other=0.0)
            top = tl.maximum(top, tl.where(some > 0.0, shift, float("-inf")).to(tl.float64))
        peak = tl.max(top, 0)
        peak = tl.where(peak > float("-inf"), peak, 0.0)
        by, above = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
        for start in range(0, tiles, BLOCK):
            t = start + tl.arange(0, BLOCK)
            part = tl.exp(tl.load(row + 2 * plane + t, mask=t < tiles, other=0.0).to(tl.float64) - peak)
            some = tl.load(row + 3 * plane + t, mask=t < tiles, other=0.0).to(tl.float64)
            around = tl.load(row + 4 * plane + t, mask=t < tiles, other=0.0).to(tl.float64)
            by += tl.where(some > 0.0, part * some, 0.0)
            above += tl.where(some > 0.0, part * some * tl.exp(around), 0.0)
        total, upper = tl.sum(by, 0), tl.sum(above, 0)
        any_left = total > 0.0
        lse = peak + tl.log(tl.where(any_left, total, 1.0))
        error = tl.log(tl.where(any_left, upper / tl.where(any_left, total, 1.0), 1.0)) + tl.load(more) + tl.abs(lse) * 9.1e-13
        if KIND == AFFINE:
            lse += tl.load(link + 1) / tl.load(heat_at)
        error = tl.where(error == error, error, float("inf"))
        tl.store(lse_at + b, tl.where(any_left, lse, float("-inf")))
        tl.store(error_at + b, tl.where(any_left, error, 0.0))
    # floats in the order of unsigned words: the largest word that k of them reach, but for its last bits
    found = tl.zeros((), tl.uint32)
    for step in range(12):
        digit = tl.arange(0, 4).to(tl.uint32)
        tried = found | (digit << (30 - 2 * step))
        count = tl.zeros((4,), tl.int32)
        for start in range(0, tiles, BLOCK):
            t = start + tl.arange(0, BLOCK)
            word = tl.load(row + plane + t, mask=t < tiles, other=float("-inf")).to(tl.uint32, bitcast=True)
            word = tl.where(word >= 0x80000000, word ^ 0xFFFFFFFF, word | 0x80000000)
            count += tl.sum(((word[:, None] >= tried[None, :]) & (t < tiles)[:, None]).to(tl.int32), 0)
        found |= tl.max(tl.where(count >= k, digit, 0), 0) << (30 - 2 * step)
    word = tl.where(found >= 0x80000000, found ^ 0x80000000, found ^ 0xFFFFFFFF)
    bar = word.to(tl.float32, bitcast=True)
    bar = tl.where(bar == bar, bar, float("-inf"))  # words below that of -inf
    none = (tl.load(bad + b) != 0) | (k == 0)
    tl.store(bar_at + b, tl.where(none, float("inf"), bar))
    tl.store(count_at + b, tl.zeros((), tl.int32))


@triton.jit(do_not_specialize=["tiles", "room"])
def collect(high_at, tile_at, bar_at, count_at, ids, vocab, tiles, room, BLOCK_V: tl.constexpr, GROUP: tl.constexpr):
    """``count [batch]`` classes that reach the bar; those that there is room for in ``ids [batch, room]``, in any order."""
    b, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * GROUP
    bar, t = tl.load(bar_at + b), first + tl.arange(0, GROUP)
    tops = tl.load(tile_at + b * tiles + t, mask=t < tiles, other=float("-inf"))
    if (tl.max(tops, 0) >= bar) & (bar < float("inf")):
        for tile in range(first, tl.minimum(first + GROUP, tiles)):
            if tl.load(tile_at + b * tiles + tile) >= bar:
                i = tile * BLOCK_V + tl.arange(0, BLOCK_V)
                high = tl.load(high_at + b * vocab + i, mask=i < vocab, other=float("-inf"))
                yes = ((high >= bar) & (high > float("-inf"))).to(tl.int32)
                place = tl.atomic_add(count_at + b, tl.sum(yes, 0)) + tl.cumsum(yes, 0) - 1
                tl.store(ids + b * room + place, i.to(tl.int64), mask=(yes != 0) & (place < room))


@triton.jit
def scores(weight, bias, x, mask, place, i, dim, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Logits in float64 of ``i [ROWS]`` int64 for one vector; -inf for -1 and for what the mask from ``place`` on takes out."""
    asked, total = i >= 0, tl.zeros((ROWS,), tl.float64)
    safe = tl.where(asked, i, 0)
    for start in range(0, dim, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        w = tl.load(weight + safe[:, None] * dim + d[None, :], mask=asked[:, None] & (d < dim)[None, :], other=0.0)
        v = tl.load(x + d, mask=d < dim, other=0.0)
        total += tl.sum(w.to(tl.float64) * v.to(tl.float64)[None, :], 1)
    if bias is not None:
        total += tl.load(bias + safe, mask=asked, other=0.0).to(tl.float64)
    if mask is not None:
        asked = asked & (tl.load(mask + place + safe, mask=asked, other=0) != 0)
    return tl.where(asked, total, float("-inf"))


@triton.jit
def keyed(z, i, numbers, link, heat_at, KIND: tl.constexpr):
    """``f(z) / T`` of float64 logits, -inf staying, and with the ``numbers`` of a row the Gumbels of ``i``."""
    here = z > float("-inf")
    key = linked(tl.where(here, z, 0.0), link, KIND) / tl.load(heat_at)
    if numbers is not None:
        key += gumbel(numbers + 0 * i, tl.where(here, i, 0), here)
    return tl.where(here, key, float("-inf"))


@triton.jit(do_not_specialize=["count", "mask_stride"])
def exact(weight, bias, x, ids, count_at, mask, link, heat_at, numbers, logits_at, keys_at, dim, count, mask_stride,
          KIND: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Logits ``[batch, count]`` of ``ids`` int64 likewise (of all classes, where that is None), -inf for -1 and for what a mask
    takes out; without a ``weight``, those that are there. ``count_at [batch]``: only of as many ids as it says. ``keys_at``:
    and ``f(z) / T``, with ``numbers`` ``+ gumbel_i``."""
    b, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there, at = place < count, b * count + place
    if count_at is not None:
        there = there & (place < tl.load(count_at + b))
    i = tl.where(there, place, -1).to(tl.int64)
    if ids is not None:
        i = tl.load(ids + at, mask=there, other=-1)
    mine = None if numbers is None else numbers + b * 5
    z = tl.full((ROWS,), float("-inf"), tl.float64)
    key = z
    if weight is None:
        key = keyed(tl.load(logits_at + at, mask=there, other=float("-inf")), i, mine, link, heat_at, KIND)
    else:
        if tl.max(i, 0) >= 0:  # most blocks of candidates are empty
            z = scores(weight, bias, x + b * dim, mask, b * mask_stride, i, dim, ROWS, BLOCK_D)
            if keys_at is not None:
                key = keyed(z, i, mine, link, heat_at, KIND)
        tl.store(logits_at + at, z, mask=place < count)
    if keys_at is not None:
        tl.store(keys_at + at, key, mask=place < count)


@triton.jit(do_not_specialize=["room", "k", "vocab", "base", "eps"])
def order(ids, logits, keys, count_at, bad, error_at, ids_at, logits_at, keys_at, rows_at, read_at, flags_at,
          room, k, vocab, row_bytes, base, eps, EVERY: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The k largest keys of ``[batch, room]``, equal ones by id, with ids and logits; what that cost; ``flags_at [3, batch]``:
    whether all were there, whether the row is still open (they were not, or its error is above ``eps``), and EVERY.
    A candidate's place is the number of those before it."""
    b, mine = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    met = tl.load(count_at + b)
    there, wrong = tl.minimum(met, room), tl.load(bad + b) != 0
    at = b * room + mine
    name = tl.load(ids + at, mask=mine < there, other=-1)
    key = tl.load(keys + at, mask=mine < there, other=float("-inf"))
    place = tl.where(mine < there, 0, mine)
    for start in range(0, there, BLOCK):
        j = start + tl.arange(0, BLOCK)
        other = tl.load(keys + b * room + j, mask=j < there, other=float("-inf"))[None, :]
        called = tl.load(ids + b * room + j, mask=j < there, other=-1)[None, :]
        before = (other > key[:, None]) | ((other == key[:, None]) & (called < name[:, None]))
        place += tl.sum((before & (j < there)[None, :] & (mine < there)[:, None]).to(tl.int32), 1)
    put, here = (mine < room) & (place < k), (key > float("-inf")) & (wrong == 0)
    out = b * k + place
    tl.store(ids_at + out, tl.where(here, name, -1), mask=put)
    z = tl.load(logits + at, mask=mine < there, other=float("-inf"))
    tl.store(logits_at + out, tl.where(here, z, float("-inf")), mask=put)
    tl.store(keys_at + out, tl.where(here, key, float("-inf")), mask=put)
    if tl.program_id(1) == 0:
        tl.store(rows_at + b, tl.cast(vocab, tl.int64) if EVERY else there.to(tl.int64))
        tl.store(read_at + b, there.to(tl.float64) * row_bytes + base)
        batch, lost = tl.num_programs(0), (met > room) | (tl.load(error_at + b) > eps)
        tl.store(flags_at + b, ((met <= room) & (wrong == 0)).to(tl.int8))
        tl.store(flags_at + batch + b, (lost & (wrong == 0)).to(tl.int8))
        tl.store(flags_at + 2 * batch + b, tl.full((), EVERY, tl.int8))


@triton.jit(do_not_specialize=["tiles", "k", "mask_stride", "top_p", "rest"])
def weigh(weight, bias, x, mask, exponent_at, around_at, ids, logits, lse_at, link, heat_at, open_at, sums,
          vocab, dim, tiles, k, mask_stride, top_p, rest,
          EXACT: tl.constexpr, KIND: tl.constexpr, CLASSES: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr,
          TRIED: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """``sums [batch, blocks, 2, TRIED]``: an upper and a lower end of ``sum_i m_i ([i is before c] - p)`` over a block of
    classes i, for each class ``c`` of ``ids [batch, k]`` with its logit; ``m_i = exp(f(z_i) / T - lse)``, ``p = top_p + rest``.

    Below zero over all classes: c has less than p of the mass before it. EXACT: in float64, of rows that are ``open_at``;
    else by ``f(z_i) / T`` within ``around_at [batch, tiles]``.
    """
    b, block, j = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, TRIED)
    p, heat, lse = tl.cast(top_p, tl.float64) + rest, tl.load(heat_at), tl.load(lse_at + b)
    if EXACT and tl.load(open_at + b) == 0:
        return
    c = tl.load(ids + b * k + j, mask=j < k, other=-1)[None, :]
    at = tl.where(c >= 0, tl.load(logits + b * k + j, mask=j < k, other=0.0)[None, :], 0.0)
    if not EXACT:
        shift = tl.load(link + 1) / heat if KIND == AFFINE else 0.0
        at, lse = (linked(at, link, KIND) / heat - shift).to(tl.float32), (lse - shift).to(tl.float32)
    before = tl.zeros((ROWS, TRIED), tl.float64 if EXACT else tl.float32)  # ends of sums; float32: of STEPS and then ROWS terms
    behind, surely_before, maybe_behind = before, before, before
    for step in range(STEPS):
        i = (block * STEPS + step) * ROWS + tl.arange(0, ROWS).to(tl.int64)
        if EXACT:
            row = tl.where(i < vocab, i, -1)
            z = scores(weight, bias, x + b * dim, mask, b * mask_stride, row, dim, ROWS, BLOCK_D)[:, None]
            here = z > float("-inf")
            most = tl.where(here, tl.exp(linked(tl.where(here, z, 0.0), link, KIND) / heat - lse), 0.0)
            least, first = most, (z > at) | ((z == at) & (i[:, None] < c))
            later = first
        else:
            e = tl.load(exponent_at + b * vocab + i, mask=i < vocab, other=float("-inf"))
            around = tl.load(around_at + b * tiles + i // CLASSES, mask=i < vocab, other=0.0)
            mass, off = tl.exp(e - lse), tl.exp(around + 6e-5)  # of float32: exponentials and sums
            most, least = (mass * off)[:, None], (mass / off)[:, None]
            gap, reach = e[:, None] - at, around[:, None] * 1.0001 + tl.abs(at) * 2.4e-7 + 1e-37
            first, later = gap > reach, (gap >= -reach) & (i[:, None] != c)
        before += tl.where(later, most, 0.0)
        behind += tl.where(later, 0.0, least)
        surely_before += tl.where(first, least, 0.0)
        maybe_behind += tl.where(first, 0.0, most)
    out = sums + (b * tl.num_programs(1) + block) * 2 * TRIED + j
    tl.store(out, tl.sum(before, 0) * (1.0 - p) - tl.sum(behind, 0) * p)
    tl.store(out + TRIED, tl.sum(surely_before, 0) * (1.0 - p) - tl.sum(maybe_behind, 0) * p)


@triton.jit(do_not_specialize=["blocks", "k", "vocab", "row_bytes"])
def pick(sums, ids, logits, keys, bad, sure_at, ids_at, logits_at, keys_at, flags_at, rows_at, read_at, whole_at,
         blocks, k, vocab, row_bytes, EXACT: tl.constexpr, TRIED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """``ids, logits, keys [batch]``: of ``[batch, k]`` in the order of their keys the first that is in the nucleus, where that
    can be told; ``flags_at [2, batch]``: it can; it cannot, and the row is one of numbers. EXACT: of those where it could not,
    all of whose classes were read."""
    b, j, batch = tl.program_id(0).to(tl.int64), tl.arange(0, TRIED), tl.num_programs(0)
    if EXACT and tl.load(flags_at + batch + b) == 0:
        return
    if EXACT:
        tl.store(rows_at + b, tl.load(rows_at + b) + vocab)
        tl.store(read_at + b, tl.load(read_at + b) + tl.cast(vocab, tl.float64) * row_bytes)
        tl.store(whole_at + b, 1)
    upper, lower = tl.zeros((TRIED,), tl.float64), tl.zeros((TRIED,), tl.float64)
    for start in range(0, blocks, BLOCK):
        block = start + tl.arange(0, BLOCK)
        at = sums + (b * blocks + block)[:, None] * 2 * TRIED + j[None, :]
        upper += tl.sum(tl.load(at, mask=(block < blocks)[:, None], other=0.0), 0)
        lower += tl.sum(tl.load(at + TRIED, mask=(block < blocks)[:, None], other=0.0), 0)
    met = tl.load(ids + b * k + j, mask=j < k, other=-1) >= 0  # nearer than 1e-9, sums in float64 may fall on either side
    place = tl.min(tl.where(met & ~(lower >= 1e-9), j, TRIED), 0)
    inside = tl.sum(((j == place) & (upper < -1e-9)).to(tl.int32), 0) > 0
    fine = tl.load(bad + b) == 0
    told = inside & fine & (tl.load(sure_at + b) != 0)
    place += b * k
    tl.store(ids_at + b, tl.load(ids + place, mask=told, other=-1))
    tl.store(logits_at + b, tl.load(logits + place, mask=told, other=float("-inf")))
    tl.store(keys_at + b, tl.load(keys + place, mask=told, other=float("-inf")))
    tl.store(flags_at + b, told.to(tl.int8))
    tl.store(flags_at + batch + b, (fine & ~told).to(tl.int8))


@triton.jit(do_not_specialize=["count"])
def said(logits, lse_at, error_at, bad, link, log_probs_at, lse_out, error_out, count,
         KIND: tl.constexpr, SINGLE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """``f(z) - lse [batch, count]``, ``lse``, and ``error`` with what rounding to float32 adds, rounded up; NaN of bad rows."""
    b = tl.program_id(0).to(tl.int64)
    wrong = tl.load(bad + b) != 0
    lse, error = tl.load(lse_at + b), tl.load(error_at + b)
    lse, error = tl.where(wrong, float("nan"), lse), tl.where(wrong, float("inf"), error)
    known = tl.where(tl.abs(lse) < float("inf"), lse, 0.0)
    lost = tl.zeros((BLOCK,), tl.float64) + tl.abs(known.to(tl.float32).to(tl.float64) - known)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        z = tl.load(logits + b * count + place, mask=place < count, other=float("-inf"))
        some = z > float("-inf")
        value = tl.where(some, linked(tl.where(some, z, 0.0), link, KIND) - known, float("-inf"))
        value = tl.where(wrong, float("nan"), value)
        kept = tl.where(tl.abs(value) < float("inf"), value, 0.0)
        lost = tl.maximum(lost, tl.abs(kept.to(tl.float32).to(tl.float64) - kept))
        tl.store(log_probs_at + b * count + place, value, mask=place < count)  # in the type that there is place for
    if SINGLE:
        error += tl.max(lost, 0)
        error = tl.where(error > 0.0, error * 1.0000002384185791 + 1e-37, 0.0)
    tl.store(lse_out + b, lse)
    tl.store(error_out + b, error)
