"""Three launches for an answer from all rows: a look at all classes, what it leaves, and the dense way out.

::

    look     z = <w_i, x> + b_i for a tile of classes: upper ends, the best two, the sum of exponentials
    settle   the best estimates exactly -> the threshold; what reaches it, exactly; the last program to end orders and answers
    dense    queries that are flagged, once more over all classes in float64; programs of the others return at once

A query is settled by several programs side by side: each finds the threshold for itself (k rows), then takes every so-many-th
block of classes. Whoever ends last, which an atomic count says, sees what all have written. Counts are zeroed by the look, so
that no launch is spent on it, and nothing waits for the host. Imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headlong.engines.device.kernels.common import finish_tile, linked
from headlong.engines.device.kernels.finish import exact
from headlong.engines.device.kernels.fused_answers import (
    LINK_ROUNDING,
    SCALARS,
    add_exp,
    close,
    keep,
    length_of,
    log_of,
    noisy_key,
    reaching,
    sum_parts,
    sum_tiles,
    threshold_of,
)
from headlong.engines.device.kernels.scan import row_products, tile_there


@triton.jit(do_not_specialize=SCALARS)
def look(
    weight, bias, norms, x, one, mask, mask_stride, steepest, link,
    heat: tl.int64, seed_low: tl.int64, seed_high: tl.int64, row0: tl.int64, class0: tl.int64,
    high_at, best_at, best_id_at, mass_at, state, vocab, dim, batch, tiles, best_count, unit,
    BIAS: tl.constexpr, MASKED: tl.constexpr, KIND: tl.constexpr, SAMPLE: tl.constexpr,
    PRODUCT: tl.constexpr, NATIVE: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """``scan_rows`` for queries as they came: their lengths are found on the way. ``heat``: the bits of the temperature."""
    tile = tl.program_id(1)
    i = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    b = tl.where(b < batch, b, -1)
    if tile == 0:
        for n in tl.static_range(3):
            tl.store(state + tl.maximum(b, 0) * 4 + n, 0, mask=b >= 0)
    inside = i < vocab
    total, squares = row_products(
        weight, x, tl.where(inside, i, 0).to(tl.int64) * dim, inside, b, dim, tl.load(one),
        True, PRODUCT, NATIVE, BLOCK_V, BLOCK_D, BLOCK_B,
    )  # fmt: skip
    length = (tl.sqrt(tl.sum(squares, 0)) * 1.0000003 + 1e-37).to(tl.float32)
    size = tl.load(norms + i, mask=inside, other=0.0)[:, None] * length[None, :]
    if BIAS:
        offset = tl.load(bias + i, mask=inside, other=0.0)
        total += offset[:, None]
        size += tl.abs(offset)[:, None]
    there = tile_there(i, b, mask, mask_stride, vocab, MASKED)
    finish_tile(
        total, size * unit + 1e-30, i, b, there, tile, tiles, steepest, link, heat.to(tl.float64, bitcast=True),
        seed_low.to(tl.uint32), seed_high.to(tl.uint32), row0 + b.to(tl.int64), (b * 0).to(tl.uint32), class0,
        high_at, high_at, best_at, best_id_at, mass_at, vocab, best_count, KIND, SAMPLE, False, not SAMPLE,
    )  # fmt: skip


@triton.jit(do_not_specialize=SCALARS)
def settle(
    weight, bias, hidden, high_at, best_at, best_id_at, mass_at, hits_at, kept_at, scores_at, keys_at, part_at, state,
    ids_at, logits_at, scored_at, values_at, lse_at, error_at, proved_at, flags_at, rows_at, bytes_at, dense_at,
    link, facts, heat: tl.int64, seed_low: tl.int64, seed_high: tl.int64, row0: tl.int64, class0: tl.int64,
    eps, k, vocab, dim, best_count, tiles, capacity, region, parts, share,
    BIAS: tl.constexpr, KIND: tl.constexpr, SAMPLE: tl.constexpr, ROOM: tl.constexpr, LANES: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, ORDER: tl.constexpr,
):  # fmt: skip
    """One of ``parts`` programs for query b. ``facts``: longest row, largest bias, the link's slope, offset and error, u, bytes
    of a row, of a look, and of a closer one."""
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length, known = length_of(hidden + b * dim, dim, BLOCK_D)
    threshold = threshold_of(
        weight, bias, hidden, b, best_at, best_id_at, tiles * best_count, link, facts, heat, seed_low, seed_high, row0, class0,
        length, k, dim, BIAS, KIND, SAMPLE, ROOM, LANES, BLOCK_D,
    )  # fmt: skip
    hits = hits_at + (b * parts + part) * region
    found = reaching(high_at + b * vocab, hits, threshold, vocab, part, parts, BLOCK)
    for start in range(0, found, ROWS):
        c = start + tl.arange(0, ROWS)
        ids = tl.load(hits + c, mask=c < found, other=0).to(tl.int64)
        z = exact(weight, bias, hidden, b * dim, ids, c < found, dim, BIAS, ROWS, BLOCK_D)
        keep(
            z, ids, c < found, b, kept_at, scores_at, keys_at, state, capacity,
            link, heat, seed_low, seed_high, row0, class0, KIND, SAMPLE,
        )  # fmt: skip
    if not SAMPLE:
        span = (tiles + parts - 1) // parts
        stop = tl.minimum((part + 1) * span, tiles)
        sum_tiles(mass_at + b * tiles * 3, part * span, stop, part_at + (b * parts + part) * 2, LANES)
    tl.debug_barrier()
    if tl.atomic_add(state + b * 4 + 1, 1) == parts - 1:
        close(
            b, known, length, kept_at, scores_at, keys_at, part_at, state,
            ids_at, logits_at, scored_at, values_at, lse_at, error_at, proved_at, flags_at, rows_at, bytes_at, dense_at,
            link, facts, heat, eps, k, vocab, dim, capacity, parts, share, KIND, SAMPLE, True, ROOM, LANES, ORDER,
        )  # fmt: skip


@triton.jit(do_not_specialize=SCALARS)
def dense(
    weight, bias, hidden, mask, mask_stride, scratch, part_at, state,
    ids_at, logits_at, scored_at, values_at, lse_at, error_at, flags_at, link, facts,
    heat: tl.int64, seed_low: tl.int64, seed_high: tl.int64, row0: tl.int64, class0: tl.int64, k, vocab, dim, parts,
    BIAS: tl.constexpr, MASKED: tl.constexpr, KIND: tl.constexpr, SAMPLE: tl.constexpr,
    ROOM: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Flagged queries: keys of all classes into ``scratch [batch, vocab]``, the normaliser, and (flag 2) the k best anew."""
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    flag = tl.load(flags_at + b)
    if flag == 0:
        return
    top, total = tl.full((), float("-inf"), tl.float64), tl.full((), 0.0, tl.float64)
    for start in range(part * ROWS, vocab, parts * ROWS):
        i = start + tl.arange(0, ROWS)
        there = i < vocab
        if MASKED:
            there = there & (tl.load(mask + b * mask_stride + i, mask=there, other=0) != 0)
        ids = tl.where(there, i, 0).to(tl.int64)
        z = exact(weight, bias, hidden, b * dim, ids, there, dim, BIAS, ROWS, BLOCK_D)
        if SAMPLE:
            z = noisy_key(z, ids, b, link, heat, seed_low, seed_high, row0, class0, KIND)
        else:
            finite = z > float("-inf")
            value = linked(tl.where(finite, z, 0.0), link, KIND) / heat.to(tl.float64, bitcast=True)
            top, total = add_exp(top, total, tl.where(finite, value, float("-inf")))
        tl.store(scratch + b * vocab + i, z, mask=i < vocab)
    tl.store(part_at + (b * parts + part) * 2, log_of(top, total))
    tl.store(part_at + (b * parts + part) * 2 + 1, float("-inf"))
    tl.debug_barrier()
    if tl.atomic_add(state + b * 4 + 2, 1) == parts - 1:
        if flag == 2:
            pick(
                scratch + b * vocab, weight, bias, hidden, b * dim, ids_at + b * k, logits_at + b * k, scored_at + b * k,
                k, vocab, dim, BIAS, SAMPLE, ROOM, BLOCK_D, BLOCK,
            )  # fmt: skip
            tl.debug_barrier()
        if not SAMPLE:
            lse, _ = sum_parts(part_at + b * parts * 2, parts, LANES)
            length, _ = length_of(hidden + b * dim, dim, BLOCK_D)
            longest, largest, steepest, offset = tl.load(facts), tl.load(facts + 1), tl.load(facts + 2), tl.load(facts + 3)
            size = longest * length + largest
            error = steepest * (dim + 4) * tl.load(facts + 5) * size + 2 * tl.load(facts + 4)
            far = tl.where(tl.abs(lse) < float("inf"), tl.abs(lse), 0.0)
            error += (steepest * size + 2 * offset + far) * 4 * LINK_ROUNDING + (vocab + 16) * tl.load(facts + 5)
            tl.store(lse_at + b, lse)
            tl.store(error_at + b, error)
            n = tl.arange(0, ROOM)
            z = tl.load(logits_at + b * k + n, mask=n < k, other=float("-inf"))
            finite = z > float("-inf")
            value = linked(tl.where(finite, z, 0.0), link, KIND) / heat.to(tl.float64, bitcast=True)
            value = tl.where(finite, value - tl.where(tl.abs(lse) < float("inf"), lse, 0.0), float("-inf"))
            tl.store(values_at + b * k + n, value, mask=n < k)


@triton.jit
def pick(
    keys, weight, bias, hidden, at, ids_at, logits_at, scored_at, k, vocab, dim,
    BIAS: tl.constexpr, SAMPLE: tl.constexpr, ROOM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The k best keys: each the largest behind the one before in the order (key, smaller id)."""
    last_key, last_id = tl.full((), float("inf"), tl.float64), tl.full((), -1, tl.int64)
    chosen, n = tl.full((ROOM,), -1, tl.int64), tl.arange(0, ROOM)
    for taken in range(k):
        top = tl.full((BLOCK,), float("-inf"), tl.float64)
        top_id = tl.full((BLOCK,), 9223372036854775807, tl.int64)
        for start in range(0, vocab, BLOCK):
            i = (start + tl.arange(0, BLOCK)).to(tl.int64)
            key = tl.load(keys + i, mask=i < vocab, other=float("-inf"))
            better = ((key < last_key) | ((key == last_key) & (i > last_id))) & (key > top)
            top, top_id = tl.where(better, key, top), tl.where(better, i, top_id)
        last_key = tl.max(top, 0)
        last_id = tl.min(tl.where(top == last_key, top_id, 9223372036854775807), 0)
        chosen = tl.where(n == tl.where(last_key > float("-inf"), taken, -1), last_id, chosen)
        tl.store(scored_at + taken, last_key)
    if SAMPLE:
        z = exact(weight, bias, hidden, at, tl.maximum(chosen, 0), chosen >= 0, dim, BIAS, ROOM, BLOCK_D)
    else:
        z = tl.load(keys + tl.maximum(chosen, 0), mask=chosen >= 0, other=float("-inf"))
    tl.store(ids_at + n, chosen, mask=n < k)
    tl.store(logits_at + n, z, mask=n < k)
