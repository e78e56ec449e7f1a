"""The kernels that read a plan's int8 codes: all classes at level 0, candidates behind it, and what the rest weighs.

::

    scan_codes    estimate = base_i + shared + sum_s scale_si * step_s * (256 <code_i, coarse> + <code_i, fine>)
    refine        the next level's codes for the candidates of the one before; those that still reach go on
    weigh         sums of exp(f(estimate)) and exp(f(estimate) + slope * radius) over the classes that were not scored

Products are of whole numbers, added up in int32: four at a time where one query is read (``dp4a``), by a matrix unit
(``tl.dot`` of int8) where there are several. What rounds is one conversion for each segment. The slacks of the plan cover
that, as they do on the CPU. A segment's columns are padded to whole ``ALIGN``, so that loads are 16 bytes wide. Imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headlong.engines.device.kernels.common import finish_tile, gumbel_at, linked, widened
from headlong.engines.device.kernels.scan import tile_there


@triton.jit
def dot4(a, b, total, DP4A: tl.constexpr):
    """``total + sum a_j * b_j`` over the four signed bytes of each word; Triton's interpreter knows no ``dp4a``."""
    if DP4A:
        total = tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, total], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        for j in tl.static_range(4):
            total += ((a << (24 - 8 * j)) >> 24) * ((b << (24 - 8 * j)) >> 24)
    return total


@triton.jit
def segment_sums(
    words, row, there, planes, width, first, stop, DP4A: tl.constexpr, ROWS: tl.constexpr, BLOCK_W: tl.constexpr
):  # fmt: skip
    """``256 <code_i, coarse> + <code_i, fine>`` over the words ``first .. stop`` of one segment, ``[ROWS]`` float32.

    ``row`` points at each class's words; ``planes`` at one query's coarse words, its fine ones ``width`` behind. Both ends are
    multiples of 4, which the caller has to say where it loads them: what is said here is lost when this is inlined.
    """
    coarse, fine = tl.zeros((ROWS, BLOCK_W), tl.int32), tl.zeros((ROWS, BLOCK_W), tl.int32)
    for start in range(first, stop, BLOCK_W):
        d = start + tl.arange(0, BLOCK_W)
        code = tl.load(words + row[:, None] + d[None, :], mask=there[:, None] & (d < stop)[None, :], other=0)
        high = tl.load(planes + d, mask=d < stop, other=0)[None, :]
        low = tl.load(planes + width + d, mask=d < stop, other=0)[None, :]
        coarse, fine = dot4(code, high, coarse, DP4A), dot4(code, low, fine, DP4A)
    return tl.sum(coarse, 1).to(tl.float32) * 256.0 + tl.sum(fine, 1).to(tl.float32)


@triton.jit
def scan_codes_of_one(
    words, scale, slack, base, edges, planes, steps, halves, shared, mask, mask_stride, steepest, link, heat, seed, rows,
    draws, class0, high_at, estimate_at, best_at, best_id_at, mass_at, vocab, lines, padded, tiles, best_count,
    segments, slacks, MASKED: tl.constexpr, KIND: tl.constexpr, SAMPLE: tl.constexpr, DP4A: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Level 0 for a tile of classes and one query. Codes and ``planes [batch, 2, width]`` are read as 32-bit words,
    four to a line."""
    query, tile, width = tl.program_id(0), tl.program_id(1), 4 * lines
    i = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    inside = i < vocab
    row = tl.where(inside, i, 0).to(tl.int64) * width
    z = tl.load(base + i, mask=inside, other=0.0)
    x = planes + query.to(tl.int64) * (2 * width)
    for s in range(segments):
        first, stop = tl.multiple_of(tl.load(edges + s), 4), tl.multiple_of(tl.load(edges + s + 1), 4)
        total = segment_sums(words, row, inside, x, width, first, stop, DP4A, BLOCK_V, BLOCK_W)
        z += total * (tl.load(scale + s * padded + i, mask=inside, other=0.0) * tl.load(steps + query * segments + s))
    radius = tl.zeros((BLOCK_V,), tl.float32)
    for m in range(slacks):
        half = tl.load(halves + query * slacks + m)
        radius += tl.where(half > 0, tl.load(slack + m * padded + i, mask=inside, other=0.0) * half, 0.0)
    offset = tl.load(shared + query)
    z += offset
    radius = radius * 1.000001 + (tl.abs(z) + tl.abs(offset)) * 2.4e-7 + 1e-37
    b = query + tl.arange(0, 1)
    there = tile_there(i, b, mask, mask_stride, vocab, MASKED)
    finish_tile(
        z[:, None], radius[:, None], i, b, there, tile, tiles, steepest, link, tl.load(heat),
        tl.load(seed).to(tl.uint32), tl.load(seed + 1).to(tl.uint32),
        tl.load(rows + b, mask=b >= 0), tl.load(draws + b, mask=b >= 0).to(tl.uint32), tl.load(class0),
        high_at, estimate_at, best_at, best_id_at, mass_at, vocab, best_count, KIND, SAMPLE, True, False,
    )  # fmt: skip


@triton.jit
def scan_codes(
    codes, scale, slack, base, edges, planes, steps, halves, shared, mask, mask_stride, steepest, link, heat, seed, rows,
    draws, class0, high_at, estimate_at, best_at, best_id_at, mass_at, vocab, width, padded, batch, tiles, best_count,
    segments, slacks, MASKED: tl.constexpr, KIND: tl.constexpr, SAMPLE: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Level 0 for a tile of classes and a block of queries. ``planes [batch, 2, width]`` holds the queries' two planes."""
    tile = tl.program_id(1)
    i = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    b = tl.where(b < batch, b, -1)
    some = tl.maximum(b, 0).to(tl.int64)
    inside = i < vocab
    row = tl.where(inside, i, 0).to(tl.int64) * width
    z = tl.load(base + i, mask=inside, other=0.0)[:, None] + tl.zeros((BLOCK_V, BLOCK_B), tl.float32)
    for s in range(segments):
        coarse = tl.zeros((BLOCK_V, BLOCK_B), tl.int32)
        fine = tl.zeros((BLOCK_V, BLOCK_B), tl.int32)
        first, stop = tl.multiple_of(tl.load(edges + s), 16), tl.multiple_of(tl.load(edges + s + 1), 16)
        for start in range(first, stop, BLOCK_D):
            d = start + tl.arange(0, BLOCK_D)
            c = tl.load(codes + row[:, None] + d[None, :], mask=inside[:, None] & (d < stop)[None, :], other=0)
            at = some[None, :] * (2 * width) + d[:, None]
            there = (b >= 0)[None, :] & (d < stop)[:, None]
            high = tl.load(planes + at, mask=there, other=0)
            low = tl.load(planes + at + width, mask=there, other=0)
            coarse, fine = tl.dot(c, high, coarse, out_dtype=tl.int32), tl.dot(c, low, fine, out_dtype=tl.int32)
        size = tl.load(scale + s * padded + i, mask=inside, other=0.0)[:, None]
        step = tl.load(steps + some * segments + s, mask=b >= 0, other=0.0)[None, :]
        z += (coarse.to(tl.float32) * 256.0 + fine.to(tl.float32)) * (size * step)
    radius = tl.zeros((BLOCK_V, BLOCK_B), tl.float32)
    for m in range(slacks):
        gap = tl.load(slack + m * padded + i, mask=inside, other=0.0)[:, None]
        half = tl.load(halves + some * slacks + m, mask=b >= 0, other=0.0)[None, :]
        radius += tl.where(half > 0, gap * half, 0.0)
    offset = tl.load(shared + b, mask=b >= 0, other=0.0)[None, :]
    z += offset
    radius = radius * 1.000001 + (tl.abs(z) + tl.abs(offset)) * 2.4e-7 + 1e-37
    there = tile_there(i, b, mask, mask_stride, vocab, MASKED)
    finish_tile(
        z, radius, i, b, there, tile, tiles, steepest, link, tl.load(heat),
        tl.load(seed).to(tl.uint32), tl.load(seed + 1).to(tl.uint32),
        tl.load(rows + b, mask=b >= 0), tl.load(draws + b, mask=b >= 0).to(tl.uint32), tl.load(class0),
        high_at, estimate_at, best_at, best_id_at, mass_at, vocab, best_count, KIND, SAMPLE, True, False,
    )  # fmt: skip


@triton.jit
def closer(
    z, ids, there, b, words, scale, slack, edges, planes, steps, halves, shared, lines, padded, segments, slacks,
    DP4A: tl.constexpr, ROWS: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Estimates ``z`` of ``ids`` with what the next level adds to them, and radii; one that overflowed: 0 and infinity."""
    width = 4 * lines
    x = planes + b * (2 * width)
    for s in range(segments):
        first, stop = tl.multiple_of(tl.load(edges + s), 4), tl.multiple_of(tl.load(edges + s + 1), 4)
        total = segment_sums(words, ids * width, there, x, width, first, stop, DP4A, ROWS, BLOCK_W)
        z += total * (tl.load(scale + s * padded + ids, mask=there, other=0.0) * tl.load(steps + b * segments + s))
    radius = tl.zeros((ROWS,), tl.float32)
    for m in range(slacks):
        half = tl.load(halves + b * slacks + m)
        radius += tl.where(half > 0, tl.load(slack + m * padded + ids, mask=there, other=0.0) * half, 0.0)
    radius = radius * 1.000001 + (tl.abs(z) + tl.abs(tl.load(shared + b))) * 4.8e-7 + 1e-37
    known = tl.abs(z) < 3.0e38
    return tl.where(known, z, 0.0), tl.where(known & (radius == radius), radius, float("inf"))


@triton.jit
def refine(
    words, scale, slack, edges, planes, steps, halves, shared, kept, count, threshold, high_at, estimate_at, open_count,
    still_open, link, heat, seed, rows, draws, class0, vocab, lines, padded, capacity, room, segments, slacks,
    KIND: tl.constexpr, SAMPLE: tl.constexpr, DP4A: tl.constexpr, ROWS: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """A level that adds to the one before, for the candidates ``kept``; those whose new upper end still reaches go on."""
    b = tl.program_id(0).to(tl.int64)
    filled = tl.minimum(tl.load(count + b), capacity)
    if tl.program_id(1) * ROWS >= filled:
        return
    c = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    ids = tl.load(kept + b * capacity + c, mask=c < filled, other=0).to(tl.int64)
    there = c < filled
    z, radius = closer(
        tl.load(estimate_at + b * vocab + ids, mask=there, other=0.0), ids, there, b,
        words, scale, slack, edges, planes, steps, halves, shared, lines, padded, segments, slacks, DP4A, ROWS, BLOCK_W,
    )  # fmt: skip
    top = z.to(tl.float64) + radius.to(tl.float64)
    tl.store(estimate_at + b * vocab + ids, z, mask=there)
    if SAMPLE:
        noise = gumbel_at(seed, tl.load(rows + b), tl.load(draws + b).to(tl.uint32), ids + tl.load(class0))
        finite = top < float("inf")
        top = tl.where(finite, linked(tl.where(finite, top, 0.0), link, KIND) / tl.load(heat) + noise, float("inf"))
    end = widened(top, 1)
    tl.store(high_at + b * vocab + ids, end, mask=there)
    hit = there & (end >= tl.load(threshold + b))
    found = tl.sum(hit.to(tl.int32), 0)
    if found > 0:
        place = tl.atomic_add(open_count + b, found) + tl.cumsum(hit.to(tl.int32), 0) - 1
        tl.store(still_open + b * room + place, ids.to(tl.int32), mask=hit & (place < room))


@triton.jit
def leave(kept, count, estimate_at, vocab, capacity, BLOCK: tl.constexpr):
    """Scored classes leave the estimates: their terms are known."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = c < tl.minimum(tl.load(count + b), capacity)
    ids = tl.load(kept + b * capacity + c, mask=there, other=0).to(tl.int64)
    tl.store(estimate_at + b * vocab + ids, float("-inf"), mask=there)


@triton.jit
def weigh(
    estimate_at, high_at, mass_at, link, heat, steepest, vocab, tiles, KIND: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One tile's ``(shift, sum, upper sum)`` over the estimates that are still there."""
    b, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tile * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(estimate_at + b * vocab + i, mask=i < vocab, other=float("-inf"))
    there = z > float("-inf")
    wide = tl.where(there, z, 0.0).to(tl.float64)
    reach = tl.load(high_at + b * vocab + i, mask=there, other=0.0).to(tl.float64) - wide
    temperature = tl.load(heat)
    exponent = tl.where(there, linked(wide, link, KIND) / temperature, float("-inf"))
    shift = tl.max(exponent, 0)
    shift = tl.where(shift == float("-inf"), 0.0, shift)
    most = tl.where(there, exponent - shift + reach * (steepest / temperature), float("-inf"))
    place = (b * tiles + tile) * 3
    tl.store(mass_at + place, shift)
    tl.store(mass_at + place + 1, tl.sum(tl.exp((exponent - shift).to(tl.float32)), 0).to(tl.float64))
    tl.store(mass_at + place + 2, tl.sum(tl.exp(most.to(tl.float32)), 0).to(tl.float64))
