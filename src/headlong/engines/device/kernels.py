"""The Triton kernels, and what they share: the link and the Gumbels.

::

    a call       prepare,  scan -> merge -> exact -> order  (-> weigh -> pick, in a nucleus),  said

They are given the records ``rows``, ``read``, ``found`` of ``matrix.py`` and ``call`` of ``memory.py``: shapes and types are
there. What is not there is None, for which a kernel is compiled by itself.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def linked(z, rows, SHIFTED: tl.constexpr = True):
    """f(z) in the type of z.

    float32 is within 2^-21 of itself, and where it is a soft-cap 2^-20 of the cap, but for an affine map's shift, if SHIFTED.
    """
    if rows.affine is not None:
        f = z * tl.load(rows.affine).to(z.dtype)
        if SHIFTED:
            f += tl.load(rows.affine + 1).to(z.dtype)
    elif rows.softcap is not None:
        cap = tl.load(rows.softcap).to(z.dtype)
        small = tl.exp(-2.0 * tl.abs(z) / cap)
        f = cap * (1.0 - small) / (1.0 + small)
        f = tl.where(z < 0, -f, f)
    else:
        at = rows.table
        wide, start, step, cells = z.to(tl.float64), tl.load(at), tl.load(at + 1), tl.load(at + 4)
        place = tl.where(wide == wide, (wide - start) / step, 0.0)
        cell = tl.minimum(tl.maximum(tl.floor(place), 0.0), cells - 1.0).to(tl.int64)
        low, high = tl.load(at + 5 + cell), tl.load(at + 6 + cell)
        f = low + (wide - (start + step * cell.to(tl.float64))) * ((high - low) / step)
        f = tl.where(wide < start, low + (wide - start) * tl.load(at + 2), f)
        end = start + step * cells
        f = tl.where(wide > end, high + (wide - end) * tl.load(at + 3), f).to(z.dtype)
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


@triton.jit(do_not_specialize=["row", "seed", "first", "heat", "top_p"])
def prepare(call, dim, row: tl.uint64, seed: tl.uint64, first: tl.uint64, heat: tl.uint64, top_p: tl.uint64,
            BLOCK: tl.constexpr):  # fmt: skip
    """The length of each vector, and whether it is bad; where there is noise, its numbers. ``heat, top_p``: their bits."""
    b = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, dim, BLOCK):
        d = start + tl.arange(0, BLOCK)
        v = tl.load(call.x + b * dim + d, mask=d < dim, other=0.0).to(tl.float64)
        total += tl.where(tl.abs(v) < float("inf"), v * v, float("nan"))
    square = tl.sum(total, 0)
    wrong = square != square
    tl.store(call.bad + b, wrong)
    tl.store(call.length + b, (tl.sqrt(tl.where(wrong, float("inf"), square)) * 1.0000002384185791 + 1e-30).to(tl.float32))
    if call.numbers is not None:
        at, zero = call.numbers + b * 5, tl.zeros((), tl.uint64)
        tl.store(at, (zero + row).to(tl.int64) + b)
        tl.store(at + 1, zero.to(tl.int64))
        tl.store(at + 2, ((zero + seed) & 0xFFFFFFFF).to(tl.int64) ^ 0x64616568)
        tl.store(at + 3, ((zero + seed) >> 32).to(tl.int64) ^ 0x676E6F6C)
        tl.store(at + 4, (zero + first).to(tl.int64))
        tl.store(call.heat, (zero + heat).to(tl.float64, bitcast=True))  # by every program the same
        tl.store(call.heat + 1, (zero + top_p).to(tl.float64, bitcast=True))


@triton.jit(do_not_specialize=["batch"])
def scan(rows, call, read, batch, WIDEN: tl.constexpr, CLASSES: tl.constexpr, COLUMNS: tl.constexpr,
         QUERIES: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """``read``, of every class; with the ``numbers`` of a call its keys, else its logits.

    ``<w_i, x_b>``: one accumulator that ran over all columns could be off by dim roundings, these by COLUMNS + dim / COLUMNS,
    whatever the order inside: each block of columns is summed on its own and then added. For one query COLUMNS accumulators
    take turns. float32 is multiplied as three products of its halves of 11 bits. All is in float32, whose rounding has its
    place in the ends: registers for float64 would not suffice.
    """
    tile, tiles, vocab, dim = tl.program_id(1), tl.num_programs(1), rows.vocab, rows.dim
    i, b = tile * CLASSES + tl.arange(0, CLASSES), tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    first, known, unit = i.to(tl.int64)[:, None] * dim, b < batch, tl.load(rows.facts).to(tl.float32)
    cool = (1.0 / tl.load(call.heat)).to(tl.float32)
    one = tl.load(rows.facts + 2).to(tl.float32)  # a 1 that the compiler does not know: else it makes one accumulator after all
    z = tl.zeros((CLASSES, QUERIES if QUERIES > 1 else COLUMNS), tl.float32)
    for start in tl.range(0, dim, COLUMNS, num_stages=STAGES):
        d = start + tl.arange(0, COLUMNS)
        w = tl.load(rows.weight + first + d[None, :], mask=(i < vocab)[:, None] & (d < dim)[None, :], other=0)
        if QUERIES > 1:
            at = b.to(tl.int64)[None, :] * dim + d[:, None]
            v = tl.load(call.narrow + at, mask=known[None, :] & (d < dim)[:, None], other=0.0)
            if WIDEN:
                part = tl.dot(w.to(tl.float32), v.to(tl.float32), input_precision="tf32x3")
            else:  # 16 bits hold x
                part = tl.dot(w.to(v.dtype), v)
            z += part * one
        else:
            z += w.to(tl.float32) * tl.load(call.narrow + d, mask=d < dim, other=0.0).to(tl.float32)[None, :]
    if QUERIES == 1:
        z = tl.sum(z, 1)[:, None]
    length = tl.load(call.length + b, mask=known, other=0.0)
    reach = tl.load(rows.slack + i, mask=i < vocab, other=0.0)[:, None] * length[None, :]
    if rows.bias is not None:
        offset = tl.load(rows.bias + i, mask=i < vocab, other=0.0)
        z += offset[:, None]
        reach += tl.abs(offset)[:, None] * unit
    inside = (i < vocab)[:, None] & known[None, :]
    there = inside
    if call.mask is not None:
        there = there & (tl.load(call.mask + b.to(tl.int64)[None, :] * call.stride + i[:, None], mask=there, other=0) != 0)
    # A sum that overflowed says nothing: 0 within infinity. (So does 0 times infinity.)
    sound = (tl.abs(z) < 3.0e38) & (reach < float("inf"))
    z, reach = tl.where(sound, z, 0.0), tl.where(sound, reach + 1e-30, float("inf"))
    warm = linked(z, rows, False) * cool
    around = reach * ((tl.load(rows.facts + 1).to(tl.float32) * 1.000001) * cool) + tl.abs(warm) * 4.8e-7
    around += tl.load(rows.facts + 3).to(tl.float32) * cool
    sound = (tl.abs(warm) < 3.0e38) & (around < float("inf"))
    warm, around = tl.where(sound, warm, 0.0), tl.where(sound, around, float("inf"))
    row, plane = b.to(tl.int64) * tiles + tile, tl.cast(batch, tl.int64) * tiles
    column = b.to(tl.int64)[None, :] * vocab + i[:, None]
    if read.masses is not None:
        exponent = tl.where(there, warm, float("-inf"))
        shift = tl.max(exponent, 0)
        shift = tl.where(shift == float("-inf"), 0.0, shift)
        tl.store(read.masses + row, shift, mask=known)
        tl.store(read.masses + plane + row, tl.sum(tl.exp(exponent - shift[None, :]), 0), mask=known)
        tl.store(read.masses + 2 * plane + row, tl.max(tl.where(there, around, 0.0), 0), mask=known)
        if read.exponents is not None:
            tl.store(read.exponents + column, exponent, mask=inside)
    if call.numbers is not None:
        at = 4 * tl.arange(0, CLASSES // 4) if call.fours is not None else tl.arange(0, CLASSES)
        ids = (tile * CLASSES).to(tl.int64) + at[:, None] + 0 * known[None, :].to(tl.int64)
        drawn = words((call.numbers + b.to(tl.int64) * 5)[None, :], ids, known[None, :], 0, call.fours is not None)
        above, below = gumbel_ends(drawn)
        high, low = warm + around + above, warm - around + below
    else:
        high, low = z + reach, z - reach
    high = tl.where(there, high + tl.abs(high) * 2.4e-7 + 1e-37, float("-inf"))
    low = tl.where(there, low - tl.abs(low) * 2.4e-7 - 1e-37, float("-inf"))
    tl.store(read.ends + row, tl.max(high, 0), mask=known)
    tl.store(read.ends + plane + row, tl.max(low, 0), mask=known)
    tl.store(read.high + column, high, mask=inside)


@triton.jit(do_not_specialize=["k", "room"])
def merge(rows, call, read, found, ids, met, k, room, eps,
          CLASSES: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """``found`` but for what is best; and the classes that reach the k-th largest lower end of a tile: ``met [batch]`` int32
    of them, at most ``room``, in ``ids [batch, room]`` int64, in any order. ``open``: they were more, or the error is above
    ``eps``.

    With radii r the true sum is at most the one by upper ends; and it is at least ``sum p exp(-r)`` of the one by estimates,
    which by Jensen is as near: ``-log sum p exp(-r) <= sum p r <= log sum p exp(r)``.
    """
    b, tiles = tl.program_id(0).to(tl.int64), tl.cdiv(rows.vocab, CLASSES)
    plane, wrong = tl.num_programs(0).to(tl.int64) * tiles, tl.load(call.bad + b) != 0
    lse, error = tl.full((), float("-inf"), tl.float64), tl.zeros((), tl.float64)
    if read.masses is not None:
        masses = read.masses + b * tiles
        top = tl.full((BLOCK,), float("-inf"), tl.float64)
        for start in range(0, tiles, BLOCK):
            t = start + tl.arange(0, BLOCK)
            shift = tl.load(masses + t, mask=t < tiles, other=float("-inf"))
            some = tl.load(masses + plane + t, mask=t < tiles, other=0.0)
            top = tl.maximum(top, tl.where(some > 0.0, shift, float("-inf")).to(tl.float64))
        peak = tl.max(top, 0)
        peak = tl.where(peak > float("-inf"), peak, 0.0)
        by, above = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
        for start in range(0, tiles, BLOCK):
            t = start + tl.arange(0, BLOCK)
            part = tl.exp(tl.load(masses + t, mask=t < tiles, other=0.0).to(tl.float64) - peak)
            some = tl.load(masses + plane + t, mask=t < tiles, other=0.0).to(tl.float64)
            around = tl.load(masses + 2 * plane + t, mask=t < tiles, other=0.0).to(tl.float64)
            by += tl.where(some > 0.0, part * some, 0.0)
            above += tl.where(some > 0.0, part * some * tl.exp(around), 0.0)
        total, upper = tl.sum(by, 0), tl.sum(above, 0)
        if total > 0.0:
            lse = peak + tl.log(total)
            error = tl.log(upper / total) + tl.load(rows.facts + 4) + tl.abs(lse) * 9.1e-13
            error = tl.where(error == error, error, float("inf"))
            if rows.affine is not None:
                lse += tl.load(rows.affine + 1) / tl.load(call.heat)
    tl.store(found.lse + b, lse)
    tl.store(found.error + b, error)
    # floats in the order of unsigned words: the largest word that k of them reach, but for its last bits
    tops, lows, digits = read.ends + b * tiles, read.ends + plane + b * tiles, tl.zeros((), tl.uint32)
    for step in range(12):
        digit = tl.arange(0, 4).to(tl.uint32)
        tried = digits | (digit << (30 - 2 * step))
        count = tl.zeros((4,), tl.int32)
        for start in range(0, tiles, BLOCK):
            t = start + tl.arange(0, BLOCK)
            word = tl.load(lows + t, mask=t < tiles, other=float("-inf")).to(tl.uint32, bitcast=True)
            word = tl.where(word >= 0x80000000, word ^ 0xFFFFFFFF, word | 0x80000000)
            count += tl.sum(((word[:, None] >= tried[None, :]) & (t < tiles)[:, None]).to(tl.int32), 0)
        digits |= tl.max(tl.where(count >= k, digit, 0), 0) << (30 - 2 * step)
    word = tl.where(digits >= 0x80000000, digits ^ 0x80000000, digits ^ 0xFFFFFFFF)
    bar = word.to(tl.float32, bitcast=True)
    bar = tl.where(bar == bar, bar, float("-inf"))  # words below that of -inf
    none = wrong | (k == 0)
    # tiles that reach the bar, where their lower ends were; then their classes
    high_tiles, count = tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    for start in range(0, tiles, BLOCK):
        t = start + tl.arange(0, BLOCK)
        yes = (tl.load(tops + t, mask=t < tiles, other=float("-inf")) >= bar) & (t < tiles) & ~none
        tl.store(lows + high_tiles + tl.cumsum(yes.to(tl.int32), 0) - 1, t.to(tl.float32), mask=yes)
        high_tiles += tl.sum(yes.to(tl.int32), 0)
    tl.debug_barrier()
    for start in range(0, high_tiles, GROUP):
        t = start + tl.arange(0, GROUP)
        tile = tl.load(lows + t, mask=t < high_tiles, other=-1.0).to(tl.int32)
        i = tl.ravel(tile[:, None] * CLASSES + tl.arange(0, CLASSES)[None, :])
        high = tl.load(read.high + b * rows.vocab + i, mask=(i >= 0) & (i < rows.vocab), other=float("-inf"))
        yes = ((high >= bar) & (high > float("-inf"))).to(tl.int32)
        place = count + tl.cumsum(yes, 0) - 1
        tl.store(ids + b * room + place, i.to(tl.int64), mask=(yes != 0) & (place < room))
        count += tl.sum(yes, 0)
    there = tl.minimum(count, room)
    tl.store(met + b, there)
    tl.store(found.rows + b, tl.cast(rows.vocab, tl.int64))
    tl.store(found.read + b, there.to(tl.float64) * rows.bytes + read.bytes)
    tl.store(found.sure + b, (count <= room) & ~wrong)
    tl.store(found.open + b, ((count > room) | (error > eps)) & ~wrong)
    tl.store(found.whole + b, 1)


@triton.jit
def scores(rows, call, b, i, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Logits in float64 of ``i [ROWS]`` int64 for vector b; -inf for -1 and for what the mask takes out."""
    asked, total, dim = i >= 0, tl.zeros((ROWS,), tl.float64), rows.dim
    safe = tl.where(asked, i, 0)
    for start in range(0, dim, COLUMNS):
        d = start + tl.arange(0, COLUMNS)
        w = tl.load(rows.weight + safe[:, None] * dim + d[None, :], mask=asked[:, None] & (d < dim)[None, :], other=0.0)
        v = tl.load(call.x + b * dim + d, mask=d < dim, other=0.0)
        total += tl.sum(w.to(tl.float64) * v.to(tl.float64)[None, :], 1)
    if rows.bias is not None:
        total += tl.load(rows.bias + safe, mask=asked, other=0.0).to(tl.float64)
    if call.mask is not None:
        asked = asked & (tl.load(call.mask + b * call.stride + safe, mask=asked, other=0) != 0)
    return tl.where(asked, total, float("-inf"))


@triton.jit(do_not_specialize=["count"])
def exact(rows, call, ids, met, logits, keys, count, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Logits ``[batch, count]`` of ``ids`` int64 likewise (of all classes, where that is None), -inf for -1 and for what a mask
    takes out; without COLUMNS, those that are there. ``met [batch]``: only of as many ids as it says. ``keys``: and
    ``f(z) / T``, with the ``numbers`` of a call ``+ gumbel_i``."""
    b, place = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there, at = place < count, b * count + place
    if met is not None:
        some = tl.load(met + b)
        if tl.program_id(1) * ROWS >= some:
            return
        there = place < some
    i = tl.where(there, place, -1).to(tl.int64)
    if ids is not None:
        i = tl.load(ids + at, mask=there, other=-1)
    if COLUMNS == 0:
        z = tl.load(logits + at, mask=there, other=float("-inf"))
    else:
        z = scores(rows, call, b, i, ROWS, COLUMNS)
        tl.store(logits + at, z, mask=there)
    if keys is not None:
        here = z > float("-inf")
        key = linked(tl.where(here, z, 0.0), rows) / tl.load(call.heat)
        if call.numbers is not None:
            key += gumbel(call.numbers + b * 5 + 0 * i, tl.where(here, i, 0), here)
        tl.store(keys + at, tl.where(here, key, float("-inf")), mask=there)


@triton.jit(do_not_specialize=["room", "k"])
def order(ids, logits, keys, met, found, room, k, BLOCK: tl.constexpr):
    """What is best: the k largest keys of ``[batch, room]``, equal ones by id, with ids and logits. A candidate's place is the
    number of those before it."""
    b, mine = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there, at = tl.load(met + b), b * room + mine
    name = tl.load(ids + at, mask=mine < there, other=-1)
    key = tl.load(keys + at, mask=mine < there, other=float("-inf"))
    place = tl.where(mine < there, 0, mine)
    for start in range(0, there, BLOCK):
        j = start + tl.arange(0, BLOCK)
        other = tl.load(keys + b * room + j, mask=j < there, other=float("-inf"))[None, :]
        called = tl.load(ids + b * room + j, mask=j < there, other=-1)[None, :]
        before = (other > key[:, None]) | ((other == key[:, None]) & (called < name[:, None]))
        place += tl.sum((before & (j < there)[None, :] & (mine < there)[:, None]).to(tl.int32), 1)
    put, out, here = (mine < room) & (place < k), b * k + place, key > float("-inf")
    tl.store(found.ids + out, tl.where(here, name, -1), mask=put)
    z = tl.load(logits + at, mask=mine < there, other=float("-inf"))
    tl.store(found.logits + out, tl.where(here, z, float("-inf")), mask=put)
    tl.store(found.keys + out, tl.where(here, key, float("-inf")), mask=put)


@triton.jit(do_not_specialize=["k"])
def weigh(rows, call, read, tried, told, sums, k, EXACT: tl.constexpr, CLASSES: tl.constexpr, BLOCK: tl.constexpr,
          ROWS: tl.constexpr, TRIED: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """``sums [batch, blocks, 2, TRIED]``: an upper and a lower end of ``sum_i m_i ([i is before c] - top_p)`` over a BLOCK of
    classes i, for each class ``c`` of those that are ``tried``; ``m_i = exp(f(z_i) / T - lse)``.

    Below zero over all classes: c has less than top_p of the mass before it. EXACT: in float64, of rows that are still open;
    else by the exponents of a scan and how far these can be off.
    """
    b, block, j = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, TRIED)
    heat, p, lse, vocab = tl.load(call.heat), tl.load(call.heat + 1), tl.load(tried.lse + b), rows.vocab
    if EXACT and tl.load(told.open + b) == 0:
        return
    c = tl.load(tried.ids + b * k + j, mask=j < k, other=-1)[None, :]
    at = tl.where(c >= 0, tl.load(tried.logits + b * k + j, mask=j < k, other=0.0)[None, :], 0.0)
    if not EXACT:
        tiles = tl.cdiv(vocab, CLASSES)
        arounds = read.masses + (2 * tl.num_programs(0) + b) * tiles
        shift = tl.load(rows.affine + 1) / heat if rows.affine is not None else 0.0
        at, lse = (linked(at, rows) / heat - shift).to(tl.float32), (lse - shift).to(tl.float32)
    before = tl.zeros((ROWS, TRIED), tl.float64 if EXACT else tl.float32)  # ends of sums
    behind, surely_before, maybe_behind = before, before, before
    for start in range(0, BLOCK, ROWS):
        i = block * BLOCK + start + tl.arange(0, ROWS).to(tl.int64)
        if EXACT:
            z = scores(rows, call, b, tl.where(i < vocab, i, -1), ROWS, COLUMNS)[:, None]
            here = z > float("-inf")
            most = tl.where(here, tl.exp(linked(tl.where(here, z, 0.0), rows) / heat - lse), 0.0)
            least, first = most, (z > at) | ((z == at) & (i[:, None] < c))
            later = first
        else:
            e = tl.load(read.exponents + b * vocab + i, mask=i < vocab, other=float("-inf"))
            around = tl.load(arounds + i // CLASSES, mask=i < vocab, other=0.0)
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


@triton.jit(do_not_specialize=["blocks", "k"])
def pick(rows, call, tried, told, sums, blocks, k, EXACT: tl.constexpr, TRIED: tl.constexpr, BLOCK: tl.constexpr):
    """What is ``told``: of those that are ``tried``, by their keys, the first that is in the nucleus; ``sure``: that can be
    told; ``open``: it cannot, and the row is one of numbers. EXACT: of rows that were open, all of whose classes were read."""
    b, j = tl.program_id(0).to(tl.int64), tl.arange(0, TRIED)
    if EXACT and tl.load(told.open + b) == 0:
        return
    if EXACT:
        tl.store(told.rows + b, tl.load(told.rows + b) + rows.vocab)
        tl.store(told.read + b, tl.load(told.read + b) + tl.cast(rows.vocab, tl.float64) * rows.bytes)
        tl.store(told.whole + b, True)
    upper, lower = tl.zeros((TRIED,), tl.float64), tl.zeros((TRIED,), tl.float64)
    for start in range(0, blocks, BLOCK):
        block = start + tl.arange(0, BLOCK)
        at = sums + (b * blocks + block)[:, None] * 2 * TRIED + j[None, :]
        upper += tl.sum(tl.load(at, mask=(block < blocks)[:, None], other=0.0), 0)
        lower += tl.sum(tl.load(at + TRIED, mask=(block < blocks)[:, None], other=0.0), 0)
    met = tl.load(tried.ids + b * k + j, mask=j < k, other=-1) >= 0  # nearer than 1e-9, sums in float64 may fall on either side
    place = tl.min(tl.where(met & ~(lower >= 1e-9), j, TRIED), 0)
    inside = tl.sum(((j == place) & (upper < -1e-9)).to(tl.int32), 0) > 0
    fine = tl.load(call.bad + b) == 0
    yes = inside & fine & (tl.load(tried.sure + b) != 0)
    place += b * k
    tl.store(told.ids + b, tl.load(tried.ids + place, mask=yes, other=-1))
    tl.store(told.logits + b, tl.load(tried.logits + place, mask=yes, other=float("-inf")))
    tl.store(told.keys + b, tl.load(tried.keys + place, mask=yes, other=float("-inf")))
    tl.store(told.sure + b, yes)
    tl.store(told.open + b, fine & ~yes)


@triton.jit(do_not_specialize=["count"])
def said(rows, call, found, log_probs, lse_at, error_at, count, BLOCK: tl.constexpr):
    """``f(z) - lse [batch, count]``, ``lse``, and ``error`` with what rounding to float32 adds, rounded up; NaN of bad rows."""
    b = tl.program_id(0).to(tl.int64)
    wrong = tl.load(call.bad + b) != 0
    lse = tl.where(wrong, float("nan"), tl.load(found.lse + b))
    error = tl.where(wrong, float("inf"), tl.load(found.error + b))
    known = tl.where(tl.abs(lse) < float("inf"), lse, 0.0)
    lost = tl.zeros((BLOCK,), tl.float64) + tl.abs(known.to(tl.float32).to(tl.float64) - known)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        z = tl.load(found.logits + b * count + place, mask=place < count, other=float("-inf"))
        some = z > float("-inf")
        value = tl.where(some, linked(tl.where(some, z, 0.0), rows) - known, float("-inf"))
        value = tl.where(wrong, float("nan"), value)
        kept = tl.where(tl.abs(value) < float("inf"), value, 0.0)
        lost = tl.maximum(lost, tl.abs(kept.to(tl.float32).to(tl.float64) - kept))
        tl.store(log_probs + b * count + place, value, mask=place < count)  # in the type that there is place for
    if lse_at.dtype.element_ty == tl.float32:
        error += tl.max(lost, 0)
        error = tl.where(error > 0.0, error * 1.0000002384185791 + 1e-37, 0.0)
    tl.store(lse_at + b, lse)
    tl.store(error_at + b, error)
