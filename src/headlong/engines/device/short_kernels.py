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

from headlong.engines.device.common import finish_tile, gumbel, linked
from headlong.engines.device.finish_kernels import exact
from headlong.engines.device.scan_kernels import row_products, tile_there

SCALARS = ["heat", "seed_low", "seed_high", "row0", "class0"]
"""Numbers of a call: no kernel is compiled anew for one of them."""
LINK_ROUNDING = tl.constexpr(2.0**-50)
NOTHING = tl.constexpr(-9223372036854775808)


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


@triton.jit
def length_of(hidden, dim, BLOCK_D: tl.constexpr):
    """``‖hidden‖``, rounded up, and whether all of it is finite."""
    squares, wrong = tl.zeros((BLOCK_D,), tl.float64), tl.zeros((BLOCK_D,), tl.int32)
    for start in range(0, dim, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        v = tl.load(hidden + d, mask=d < dim, other=0.0).to(tl.float64)
        squares += v * v
        wrong += tl.where(tl.abs(v) < float("inf"), 0, 1)
    return tl.sqrt(tl.sum(squares, 0)) * 1.000000000001, tl.sum(wrong, 0) == 0


@triton.jit
def best_estimates(best_at, best_id_at, count, k, LANES: tl.constexpr, ROOM: tl.constexpr):
    """Ids of about the k best of ``count`` estimates, ``[ROOM]`` (-1: none): k of the best two that each lane meets.

    An estimate and its id are one number, in the order of the estimate and then of the smaller id.
    """
    first, second = tl.full((LANES,), NOTHING, tl.int64), tl.full((LANES,), NOTHING, tl.int64)
    for start in range(0, count, LANES):
        at = start + tl.arange(0, LANES)
        value = tl.load(best_at + at, mask=at < count, other=float("-inf"))
        bits = value.to(tl.int32, bitcast=True)
        place = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64) * 4294967296
        key = place + (2147483647 - tl.load(best_id_at + at, mask=at < count, other=0)).to(tl.int64)
        key = tl.where(value > float("-inf"), key, NOTHING)
        second = tl.maximum(second, tl.minimum(first, key))
        first = tl.maximum(first, key)
    chosen, n = tl.full((ROOM,), -1, tl.int32), tl.arange(0, ROOM)
    for taken in range(k):
        top = tl.max(first, 0)
        here = (n == taken) & (top > NOTHING)
        chosen = tl.where(here, (2147483647 - (top & 0xFFFFFFFF)).to(tl.int32), chosen)
        was = first == top
        first, second = tl.where(was, second, first), tl.where(was, NOTHING, second)
    return chosen


@triton.jit
def noisy_key(z, ids, b, link, heat, seed_low, seed_high, row0, class0, KIND: tl.constexpr):
    """``f(z) / temperature + gumbel``; -inf stays."""
    row, draw = row0 + b.to(tl.int64), (b * 0).to(tl.uint32)
    noise = gumbel(seed_low.to(tl.uint32), seed_high.to(tl.uint32), row, draw, ids + class0)
    finite = z > float("-inf")
    value = linked(tl.where(finite, z, 0.0), link, KIND) / heat.to(tl.float64, bitcast=True) + noise
    return tl.where(finite, value, float("-inf"))


@triton.jit
def add_exp(top, total, values):
    """``(top, total)`` with ``log sum exp = top + log total``, and more values; where one is infinite, total is no number."""
    peak = tl.maximum(top, tl.max(values, 0))
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    return peak, total * tl.exp(top - shift) + tl.sum(tl.exp(values - shift), 0)


@triton.jit
def log_of(top, total):
    """``top + log total``; -inf for nothing."""
    empty = total == 0.0
    return tl.where(empty, float("-inf"), top + tl.log(tl.where(empty, 1.0, total)))


@triton.jit
def sum_parts(part_at, parts, LANES: tl.constexpr):
    """The logarithms that ``parts`` programs left, ``part_at [parts, 2]``, as two normalisers."""
    low_top, high_top = tl.full((), float("-inf"), tl.float64), tl.full((), float("-inf"), tl.float64)
    low, high = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    for start in range(0, parts, LANES):
        at = start + tl.arange(0, LANES)
        low_top, low = add_exp(low_top, low, tl.load(part_at + 2 * at, mask=at < parts, other=float("-inf")))
        high_top, high = add_exp(high_top, high, tl.load(part_at + 2 * at + 1, mask=at < parts, other=float("-inf")))
    return log_of(low_top, low), log_of(high_top, high)


@triton.jit
def sum_tiles(mass_at, first, stop, part_at, LANES: tl.constexpr):
    """``(shift, sum, upper sum)`` of the tiles ``first .. stop`` as two logarithms."""
    low_top, high_top = tl.full((), float("-inf"), tl.float64), tl.full((), float("-inf"), tl.float64)
    low, high = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    for start in range(first, stop, LANES):
        at = start + tl.arange(0, LANES)
        shift = tl.load(mass_at + 3 * at, mask=at < stop, other=0.0)
        least = tl.load(mass_at + 3 * at + 1, mask=at < stop, other=0.0)
        most = tl.load(mass_at + 3 * at + 2, mask=at < stop, other=0.0)
        low_top, low = add_exp(low_top, low, log_of(shift, least))
        high_top, high = add_exp(high_top, high, log_of(shift, most))
    tl.store(part_at, log_of(low_top, low))
    tl.store(part_at + 1, log_of(high_top, high))


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
    of a row."""
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length, known = length_of(hidden + b * dim, dim, BLOCK_D)
    longest, largest, steepest, offset = tl.load(facts), tl.load(facts + 1), tl.load(facts + 2), tl.load(facts + 3)
    rounding = (dim + 4) * tl.load(facts + 5) * (longest * length + largest)
    best = b * tiles * best_count
    seeds = best_estimates(best_at + best, best_id_at + best, tiles * best_count, k, LANES, ROOM)
    n = tl.arange(0, ROOM)
    least = exact(weight, bias, hidden, b * dim, tl.maximum(seeds, 0).to(tl.int64), seeds >= 0, dim, BIAS, ROOM, BLOCK_D)
    slack = 2 * rounding
    if SAMPLE:
        least = noisy_key(least, tl.maximum(seeds, 0).to(tl.int64), b, link, heat, seed_low, seed_high, row0, class0, KIND)
        size = offset + steepest * (longest * length + largest)
        temperature = heat.to(tl.float64, bitcast=True)
        slack = (slack * steepest + 8 * LINK_ROUNDING * size) / temperature + 64 * LINK_ROUNDING
    worst = tl.min(tl.where(n < k, least, float("inf")), 0) - slack
    finite = tl.abs(worst) < float("inf")
    threshold = tl.where(finite, worst - tl.abs(worst) * 2.4e-7 - 1e-37, worst).to(tl.float32)
    found = 0
    hits = hits_at + (b * parts + part) * region
    for start in range(part * BLOCK, vocab, parts * BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(high_at + b * vocab + i, mask=i < vocab, other=float("-inf"))
        hit = ((value >= threshold) & (value > float("-inf"))).to(tl.int32)
        tl.store(hits + found + tl.cumsum(hit, 0) - 1, i, mask=hit != 0)
        found += tl.sum(hit, 0)
    tl.debug_barrier()
    for start in range(0, found, ROWS):
        c = start + tl.arange(0, ROWS)
        ids = tl.load(hits + c, mask=c < found, other=0).to(tl.int64)
        logit = exact(weight, bias, hidden, b * dim, ids, c < found, dim, BIAS, ROWS, BLOCK_D)
        place = tl.atomic_add(state + b * 4, tl.minimum(found - start, ROWS)) + tl.arange(0, ROWS)
        room = (c < found) & (place < capacity)
        tl.store(kept_at + b * capacity + place, ids.to(tl.int32), mask=room)
        tl.store(scores_at + b * capacity + place, logit, mask=room)
        if SAMPLE:
            key = noisy_key(logit, ids, b, link, heat, seed_low, seed_high, row0, class0, KIND)
            tl.store(keys_at + b * capacity + place, key, mask=room)
    if not SAMPLE:
        span = (tiles + parts - 1) // parts
        stop = tl.minimum((part + 1) * span, tiles)
        sum_tiles(mass_at + b * tiles * 3, part * span, stop, part_at + (b * parts + part) * 2, LANES)
    tl.debug_barrier()
    if tl.atomic_add(state + b * 4 + 1, 1) == parts - 1:
        filled = tl.atomic_add(state + b * 4, 0)
        over, lse = filled > capacity, tl.full((), 0.0, tl.float64)
        flag = over & known
        if not SAMPLE:
            lse, top = sum_parts(part_at + b * parts * 2, parts, LANES)
            error = top - lse + 6.103515625e-05 + 2 * tl.load(facts + 4) + tl.abs(lse) * 9.094947017729282e-13
            error = tl.where(lse > float("-inf"), tl.where(error == error, error, float("inf")), 0.0)
            flag = (over | (error > eps)) & known
            tl.store(lse_at + b, tl.where(known, lse, float("nan")))
            tl.store(error_at + b, tl.where(known, error, float("inf")))
        tl.store(proved_at + b, known.to(tl.int8))
        tl.store(flags_at + b, flag.to(tl.int32) + over.to(tl.int32))
        tl.store(rows_at + b, tl.where(flag, 2, 1).to(tl.int64) * vocab)
        read = vocab * tl.load(facts + 6)
        tl.store(bytes_at + b, tl.where(flag, read, 0.0) + read / share)
        tl.store(dense_at + b, (filled >= 0).to(tl.int8))
        nothing = tl.where(known, float("-inf"), float("nan"))
        tl.store(ids_at + b * k + n, -1, mask=n < k)
        tl.store(logits_at + b * k + n, float("-inf"), mask=n < k)
        tl.store(scored_at + b * k + n, float("-inf"), mask=n < k)
        tl.store(values_at + b * k + n, nothing, mask=n < k)
        tl.debug_barrier()
        shift = tl.where(tl.abs(lse) < float("inf"), lse, 0.0)
        order(
            kept_at + b * capacity, scores_at + b * capacity, keys_at + b * capacity, tl.minimum(filled, capacity),
            ids_at + b * k, logits_at + b * k, scored_at + b * k, values_at + b * k, link, heat, shift, k, KIND, SAMPLE, ORDER,
        )  # fmt: skip


@triton.jit
def order(
    kept, scores, keys, filled, ids_at, logits_at, scored_at, values_at, link, heat, shift, k,
    KIND: tl.constexpr, SAMPLE: tl.constexpr, ORDER: tl.constexpr,
):  # fmt: skip
    """The first k candidates by key, equal keys by id: the place of each is how many are ahead of it."""
    for start in range(0, filled, ORDER):
        c = start + tl.arange(0, ORDER)
        mine = tl.load(keys + c, mask=c < filled, other=float("-inf"))
        ids = tl.load(kept + c, mask=c < filled, other=-1).to(tl.int64)
        place = tl.zeros((ORDER,), tl.int32)
        for other in range(0, filled, ORDER):
            o = other + tl.arange(0, ORDER)
            rival = tl.load(keys + o, mask=o < filled, other=float("-inf"))
            rival_id = tl.load(kept + o, mask=o < filled, other=-1).to(tl.int64)
            tie = (rival[None, :] == mine[:, None]) & (rival_id[None, :] < ids[:, None])
            ahead = ((rival[None, :] > mine[:, None]) | tie) & (o < filled)[None, :]
            place += tl.sum(ahead.to(tl.int32), 1)
        answer = (c < filled) & (place < k) & (mine > float("-inf"))
        z = tl.load(scores + c, mask=answer, other=0.0)
        tl.store(ids_at + place, ids, mask=answer)
        tl.store(logits_at + place, z, mask=answer)
        tl.store(scored_at + place, mine, mask=answer)
        if not SAMPLE:
            tl.store(values_at + place, linked(z, link, KIND) / heat.to(tl.float64, bitcast=True) - shift, mask=answer)


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
