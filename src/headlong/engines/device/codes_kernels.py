"""The kernels that read a plan's int8 codes: all classes at level 0, candidates behind it, and what the rest weighs.

::

    scan_codes    estimate = base_i + shared + sum_s scale_si * step_s * (256 <code_i, coarse> + <code_i, fine>)
    refine        the next level's codes for the candidates of the one before; those that still reach go on
    weigh         sums of exp(f(estimate)) and exp(f(estimate) + slope * radius) over the classes that were not scored

Products are of whole numbers, added up in int32 (or in float32 by a matrix unit, 64 at a time, which is exact, too): what
rounds is one conversion for each segment. The slacks of the plan cover that, as they do on the CPU. Imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headlong.engines.device.common import finish_tile, gumbel, linked, widened
from headlong.engines.device.scan_kernels import tile_there


@triton.jit
def scan_codes(
    codes, scale, slack, base, edges, planes, steps, halves, shared, mask, mask_stride, steepest, link, heat, seed, rows,
    draws, class0, high_at, estimate_at, best_at, best_id_at, mass_at, vocab, width, padded, batch, tiles, best_count,
    segments, slacks, MASKED: tl.constexpr, KIND: tl.constexpr, SAMPLE: tl.constexpr, PRODUCT: tl.constexpr,
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
        stop = tl.load(edges + s + 1)
        for start in range(tl.load(edges + s), stop, BLOCK_D):
            d = start + tl.arange(0, BLOCK_D)
            c = tl.load(codes + row[:, None] + d[None, :], mask=inside[:, None] & (d < stop)[None, :], other=0)
            if PRODUCT:
                at = some[None, :] * (2 * width) + d[:, None]
                there = (b >= 0)[None, :] & (d < stop)[:, None]
                wide = c.to(tl.float16)
                high = tl.load(planes + at, mask=there, other=0).to(tl.float16)
                low = tl.load(planes + at + width, mask=there, other=0).to(tl.float16)
                coarse += tl.dot(wide, high).to(tl.int32)
                fine += tl.dot(wide, low).to(tl.int32)
            else:
                at = planes + tl.program_id(0).to(tl.int64) * (2 * width) + d
                high = tl.load(at, mask=d < stop, other=0).to(tl.int32)
                low = tl.load(at + width, mask=d < stop, other=0).to(tl.int32)
                coarse += tl.sum(c.to(tl.int32) * high[None, :], 1)[:, None]
                fine += tl.sum(c.to(tl.int32) * low[None, :], 1)[:, None]
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
        z, radius, i, b, there, tile, tiles, steepest, link, heat, seed, rows, draws, class0,
        high_at, estimate_at, best_at, best_id_at, mass_at, vocab, best_count, KIND, SAMPLE, True, False,
    )  # fmt: skip


@triton.jit
def refine(
    codes, scale, slack, edges, planes, steps, halves, shared, kept, count, threshold, high_at, estimate_at, open_count,
    still_open, link, heat, seed, rows, draws, class0, vocab, width, padded, capacity, room, segments, slacks,
    KIND: tl.constexpr, SAMPLE: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A level that adds to the one before, for the candidates ``kept``; those whose new upper end still reaches go on."""
    b = tl.program_id(0).to(tl.int64)
    filled = tl.minimum(tl.load(count + b), capacity)
    if tl.program_id(1) * ROWS >= filled:
        return
    c = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    ids = tl.load(kept + b * capacity + c, mask=c < filled, other=0).to(tl.int64)
    there = c < filled
    z = tl.load(estimate_at + b * vocab + ids, mask=there, other=0.0)
    for s in range(segments):
        coarse = tl.zeros((ROWS,), tl.int32)
        fine = tl.zeros((ROWS,), tl.int32)
        stop = tl.load(edges + s + 1)
        for start in range(tl.load(edges + s), stop, BLOCK_D):
            d = start + tl.arange(0, BLOCK_D)
            code = tl.load(codes + ids[:, None] * width + d[None, :], mask=there[:, None] & (d < stop)[None, :], other=0)
            high = tl.load(planes + b * (2 * width) + d, mask=d < stop, other=0).to(tl.int32)
            low = tl.load(planes + b * (2 * width) + width + d, mask=d < stop, other=0).to(tl.int32)
            coarse += tl.sum(code.to(tl.int32) * high[None, :], 1)
            fine += tl.sum(code.to(tl.int32) * low[None, :], 1)
        size = tl.load(scale + s * padded + ids, mask=there, other=0.0) * tl.load(steps + b * segments + s)
        z += (coarse.to(tl.float32) * 256.0 + fine.to(tl.float32)) * size
    radius = tl.zeros((ROWS,), tl.float32)
    for m in range(slacks):
        half = tl.load(halves + b * slacks + m)
        radius += tl.where(half > 0, tl.load(slack + m * padded + ids, mask=there, other=0.0) * half, 0.0)
    radius = radius * 1.000001 + (tl.abs(z) + tl.abs(tl.load(shared + b))) * 4.8e-7 + 1e-37
    known = tl.abs(z) < 3.0e38
    z = tl.where(known, z, 0.0)
    top = tl.where(known, z.to(tl.float64) + radius.to(tl.float64), float("inf"))
    tl.store(estimate_at + b * vocab + ids, z, mask=there)
    if SAMPLE:
        noise = gumbel(seed, tl.load(rows + b), tl.load(draws + b).to(tl.uint32), ids + tl.load(class0))
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
