"""What the short ways to an answer have in common: thresholds, candidates, normalisers, and the answer itself. Imports Triton.

::

    threshold_of    the best estimates exactly; the worst of k is what an upper end has to reach
    reaching, keep  who reaches it; exact scores among the candidates of a query
    close           order, normaliser and all that an answer says, by the last of the programs that settle a query
"""

from __future__ import annotations

import triton
import triton.language as tl

from headlong.engines.device.kernels.common import gumbel, linked
from headlong.engines.device.kernels.finish import exact

SCALARS = ["heat", "seed_low", "seed_high", "row0", "class0"]
"""Numbers of a call: no kernel is compiled anew for one of them."""
LINK_ROUNDING = tl.constexpr(2.0**-50)
NOTHING = tl.constexpr(-9223372036854775808)


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
def noisy_end(top, ids, b, link, heat, seed_low, seed_high, row0, class0, KIND: tl.constexpr):
    """The key of an upper end; infinity stays."""
    finite = top < float("inf")
    key = noisy_key(tl.where(finite, top, 0.0), ids, b, link, heat, seed_low, seed_high, row0, class0, KIND)
    return tl.where(finite, key, float("inf"))


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


@triton.jit
def threshold_of(
    weight, bias, hidden, b, best_at, best_id_at, count, link, facts, heat, seed_low, seed_high, row0, class0, length, k, dim,
    BIAS: tl.constexpr, KIND: tl.constexpr, SAMPLE: tl.constexpr,
    ROOM: tl.constexpr, LANES: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """At or below the float32 that an upper end has to reach: the worst of k exact scores, less what float64 can have added."""
    seeds = best_estimates(best_at + b * count, best_id_at + b * count, count, k, LANES, ROOM)
    n, ids = tl.arange(0, ROOM), tl.maximum(seeds, 0).to(tl.int64)
    key = exact(weight, bias, hidden, b * dim, ids, seeds >= 0, dim, BIAS, ROOM, BLOCK_D)
    slack = 2 * rounding_of(facts, length, dim)
    if SAMPLE:
        key = noisy_key(key, ids, b, link, heat, seed_low, seed_high, row0, class0, KIND)
        size = tl.load(facts + 3) + tl.load(facts + 2) * (tl.load(facts) * length + tl.load(facts + 1))
        temperature = heat.to(tl.float64, bitcast=True)
        slack = (slack * tl.load(facts + 2) + 8 * LINK_ROUNDING * size) / temperature + 64 * LINK_ROUNDING
    worst = tl.min(tl.where(n < k, key, float("inf")), 0) - slack
    finite = tl.abs(worst) < float("inf")
    return tl.where(finite, worst - tl.abs(worst) * 2.4e-7 - 1e-37, worst).to(tl.float32)


@triton.jit
def rounding_of(facts, length, dim):
    """How far a float64 logit can be from the real number."""
    return (dim + 4) * tl.load(facts + 5) * (tl.load(facts) * length + tl.load(facts + 1))


@triton.jit
def reaching(high, hits, threshold, vocab, part, parts, BLOCK: tl.constexpr):
    """Writes the classes of this part whose upper end reaches, in any order; how many."""
    found = 0
    for start in range(part * BLOCK, vocab, parts * BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(high + i, mask=i < vocab, other=float("-inf"))
        hit = ((value >= threshold) & (value > float("-inf"))).to(tl.int32)
        tl.store(hits + found + tl.cumsum(hit, 0) - 1, i, mask=hit != 0)
        found += tl.sum(hit, 0)
    tl.debug_barrier()
    return found


@triton.jit
def keep(
    z, ids, there, b, kept_at, scores_at, keys_at, state, capacity,
    link, heat, seed_low, seed_high, row0, class0, KIND: tl.constexpr, SAMPLE: tl.constexpr,
):  # fmt: skip
    """Appends exact scores to the candidates of query b, as far as there is room; all are counted."""
    here = there.to(tl.int32)
    place = tl.atomic_add(state + b * 4, tl.sum(here, 0)) + tl.cumsum(here, 0) - 1
    room = there & (place < capacity)
    tl.store(kept_at + b * capacity + place, ids.to(tl.int32), mask=room)
    tl.store(scores_at + b * capacity + place, z, mask=room)
    if SAMPLE:
        key = noisy_key(z, ids, b, link, heat, seed_low, seed_high, row0, class0, KIND)
        tl.store(keys_at + b * capacity + place, key, mask=room)


@triton.jit
def close(
    b, known, length, kept_at, scores_at, keys_at, part_at, state,
    ids_at, logits_at, scored_at, values_at, lse_at, error_at, proved_at, flags_at, rows_at, bytes_at, dense_at,
    link, facts, heat, eps, k, vocab, dim, capacity, parts, share,
    KIND: tl.constexpr, SAMPLE: tl.constexpr, ALL: tl.constexpr, ROOM: tl.constexpr, LANES: tl.constexpr, ORDER: tl.constexpr,
):  # fmt: skip
    """The answer of query b, by the program that ended last. ``ALL``: every row was read."""
    filled, n = tl.atomic_add(state + b * 4, 0), tl.arange(0, ROOM)
    over, lse = filled > capacity, tl.full((), 0.0, tl.float64)
    flag = over & known
    if not SAMPLE:
        lse, top = sum_parts(part_at + b * parts * 2, parts, LANES)
        error = top - lse + tl.load(facts + 2) * rounding_of(facts, length, dim)
        error += 6.103515625e-05 + 2 * tl.load(facts + 4) + tl.abs(lse) * 9.094947017729282e-13
        error = tl.where(lse > float("-inf"), tl.where(error == error, error, float("inf")), 0.0)
        flag = (over | (error > eps)) & known
        tl.store(lse_at + b, tl.where(known, lse, float("nan")))
        tl.store(error_at + b, tl.where(known, error, float("inf")))
    again = tl.where(flag, vocab, 0).to(tl.int64)
    tl.store(proved_at + b, known.to(tl.int8))
    tl.store(flags_at + b, tl.where(flag, 1 + over.to(tl.int32), 0))
    row_bytes, every = tl.load(facts + 6), tl.load(facts + 7) / share
    if ALL:
        tl.store(rows_at + b, again + vocab)
        tl.store(bytes_at + b, every + again * row_bytes)
        tl.store(dense_at + b, (filled >= 0).to(tl.int8))
    else:
        tl.store(rows_at + b, again + filled)
        read = (again + filled) * row_bytes + tl.atomic_add(state + b * 4 + 3, 0) * tl.load(facts + 8)
        tl.store(bytes_at + b, every + read)
        tl.store(dense_at + b, flag.to(tl.int8))
    tl.store(ids_at + b * k + n, -1, mask=n < k)
    tl.store(logits_at + b * k + n, float("-inf"), mask=n < k)
    tl.store(scored_at + b * k + n, float("-inf"), mask=n < k)
    tl.store(values_at + b * k + n, tl.where(known, float("-inf"), float("nan")), mask=n < k)
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
