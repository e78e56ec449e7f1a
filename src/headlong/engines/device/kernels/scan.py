"""The kernels that look at all classes: the stored rows in float32 arithmetic, or the int8 codes of a plan. Imports Triton.

::

    scan_rows    z = <w_i, x> + b_i within (‖w_i‖ ‖x‖ + |b_i|) * unit                    float32 accumulation, no tf32
    scan_codes   base_i + shared + sum_s scale_si * step_s * <code_i, plane of x>        whole numbers, then float32

One program takes a tile of classes for one query (``PRODUCT`` False: multiply and add) or for a block of queries (True:
``tl.dot``, 16 or more), and leaves upper ends, the best few and the sum of exponentials (``device_maths.finish_tile``).
Each block of columns is summed on its own and then added: an accumulator that ran over all of them could be off by dim
roundings, this one by BLOCK_D + dim / BLOCK_D, whatever the order inside.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headlong.engines.device.kernels.common import finish_tile


@triton.jit
def tile_there(i, b, mask, mask_stride, vocab, MASKED: tl.constexpr):
    """Which entries of a tile are classes that may be answered."""
    there = (i < vocab)[:, None] & (b >= 0)[None, :]
    if MASKED:
        at = tl.maximum(b, 0).to(tl.int64)[None, :] * mask_stride + i[:, None]
        there = there & (tl.load(mask + at, mask=there, other=0) != 0)
    return there


@triton.jit
def row_products(
    weight, x, row, inside, b, dim, scale,
    SQUARES: tl.constexpr, PRODUCT: tl.constexpr, NATIVE: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """``<w_i, x>`` of a tile of rows, which start at ``row``, and a block of queries; ``SQUARES``: and the squares of x, whose
    sums over the first axis are ``‖x‖²``. ``scale`` is 1: it keeps the compiler from chaining the accumulators."""
    total, squares = tl.zeros((BLOCK_V, BLOCK_B), tl.float32), tl.zeros((BLOCK_D, BLOCK_B), tl.float64)
    for start in range(0, dim, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        w = tl.load(weight + row[:, None] + d[None, :], mask=inside[:, None] & (d < dim)[None, :], other=0.0)
        if PRODUCT:
            at = tl.maximum(b, 0).to(tl.int64)[None, :] * dim + d[:, None]
            v = tl.load(x + at, mask=(b >= 0)[None, :] & (d < dim)[:, None], other=0.0)
            if NATIVE:
                part = tl.dot(w, v)
            else:
                part = tl.dot(w.to(tl.float32), v.to(tl.float32), input_precision="ieee")
            wide = v.to(tl.float64)
        else:
            v = tl.load(x + tl.program_id(0).to(tl.int64) * dim + d, mask=d < dim, other=0.0)
            part = tl.sum(w.to(tl.float32) * v.to(tl.float32)[None, :], 1)[:, None]
            wide = v.to(tl.float64)[:, None]
        total += part * scale
        if SQUARES:
            squares += wide * wide
    return total, squares


@triton.jit
def scan_rows(
    weight, bias, norms, x, lengths, one, mask, mask_stride, steepest, link, heat, seed, rows, draws, class0,
    high_at, estimate_at, best_at, best_id_at, mass_at, vocab, dim, batch, tiles, best_count, unit,
    BIAS: tl.constexpr, MASKED: tl.constexpr, KIND: tl.constexpr, SAMPLE: tl.constexpr, KEEP: tl.constexpr,
    PRODUCT: tl.constexpr, NATIVE: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Logits of all classes with their rounding as the radius. ``NATIVE``: x has the weights' 16-bit type, and so the
    products; otherwise both are widened to float32."""
    tile = tl.program_id(1)
    i = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    b = tl.where(b < batch, b, -1)
    inside = i < vocab
    row = tl.where(inside, i, 0).to(tl.int64) * dim
    total, _ = row_products(
        weight, x, row, inside, b, dim, tl.load(one), False, PRODUCT, NATIVE, BLOCK_V, BLOCK_D, BLOCK_B
    )  # fmt: skip
    size = tl.load(norms + i, mask=inside, other=0.0)[:, None] * tl.load(lengths + b, mask=b >= 0, other=0.0)[None, :]
    if BIAS:
        offset = tl.load(bias + i, mask=inside, other=0.0)
        total += offset[:, None]
        size += tl.abs(offset)[:, None]
    there = tile_there(i, b, mask, mask_stride, vocab, MASKED)
    radius = size * unit + 1e-30
    finish_tile(
        total, radius, i, b, there, tile, tiles, steepest, link, tl.load(heat),
        tl.load(seed).to(tl.uint32), tl.load(seed + 1).to(tl.uint32),
        tl.load(rows + b, mask=b >= 0), tl.load(draws + b, mask=b >= 0).to(tl.uint32), tl.load(class0),
        high_at, estimate_at, best_at, best_id_at, mass_at, vocab, best_count, KIND, SAMPLE, KEEP, not SAMPLE,
    )  # fmt: skip
