"""The kernels behind the looks: who is still a candidate, exact scores in float64, their order, and the dense way out.

::

    select        classes whose upper end reaches the threshold, into a buffer of fixed capacity; the count goes on
    score_rows    z_i = <w_i, hidden> + b_i in float64, every row added up in the same order, so that equal rows tie
    order_rows    place of each candidate = how many are better (equal scores: the smaller id), no sort
    dense_rows    every class in float64, for the queries that are flagged; the others' programs return at once
    dense_pick    the k best of those: each the best one below the one before

No launch here depends on what a kernel found: the host waits for nothing. Imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headlong.engines.device.kernels.common import gumbel_at, linked


@triton.jit
def select(high, threshold, count, kept, vocab, capacity, BLOCK: tl.constexpr):
    """``kept[b, :]`` takes the ids with ``high >= threshold``, in any order; ``count[b]`` counts them all."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(high + b * vocab + i, mask=i < vocab, other=float("-inf"))
    hit = (value >= tl.load(threshold + b)) & (value > float("-inf"))
    found = tl.sum(hit.to(tl.int32), 0)
    if found > 0:
        first = tl.atomic_add(count + b, found)
        place = first + tl.cumsum(hit.to(tl.int32), 0) - 1
        tl.store(kept + b * capacity + place, i, mask=hit & (place < capacity))


@triton.jit
def exact(weight, bias, hidden, at, row, there, dim, BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """float64 logits of the classes ``row [ROWS]`` for the query at ``hidden + at``; no number becomes -inf."""
    total = tl.zeros((ROWS, BLOCK_D), tl.float64)
    for start in range(0, dim, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        inside = there[:, None] & (d < dim)[None, :]
        w = tl.load(weight + row[:, None] * dim + d[None, :], mask=inside, other=0.0).to(tl.float64)
        total += w * tl.load(hidden + at + d, mask=d < dim, other=0.0)[None, :]
    z = tl.sum(total, 1)
    if BIAS:
        z += tl.load(bias + row, mask=there, other=0.0).to(tl.float64)
    return tl.where(there & (tl.abs(z) < float("inf")), z, float("-inf"))


@triton.jit
def noisy(z, ids, b, link, heat, seed, rows, draws, class0, KIND: tl.constexpr):
    """``f(z) / temperature + gumbel`` in float64; -inf stays."""
    noise = gumbel_at(seed, tl.load(rows + b), tl.load(draws + b).to(tl.uint32), ids + tl.load(class0))
    finite = z > float("-inf")
    return tl.where(finite, linked(tl.where(finite, z, 0.0), link, KIND) / tl.load(heat) + noise, float("-inf"))


@triton.jit
def score_rows(
    weight, bias, hidden, kept, count, logits, keys, link, heat, seed, rows, draws, class0, dim, capacity,
    BIAS: tl.constexpr, KIND: tl.constexpr, SAMPLE: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Exact logits, and the keys that decide the order: the logits, or with noise. Ids of -1 score -inf."""
    b = tl.program_id(0).to(tl.int64)
    if tl.program_id(1) * ROWS >= tl.load(count + b):
        return
    c = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    ids = tl.load(kept + b * capacity + c, mask=c < capacity, other=-1).to(tl.int64)
    there = ids >= 0
    z = exact(weight, bias, hidden, b * dim, tl.maximum(ids, 0), there, dim, BIAS, ROWS, BLOCK_D)
    tl.store(logits + b * capacity + c, z, mask=there)
    if SAMPLE:
        key = noisy(z, tl.maximum(ids, 0), b, link, heat, seed, rows, draws, class0, KIND)
        tl.store(keys + b * capacity + c, key, mask=there)


@triton.jit
def order_rows(
    kept, logits, keys, count, best_ids, best_logits, best_keys, capacity, k, BLOCK: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """The first k candidates by key, equal keys by id, written to their places."""
    b = tl.program_id(0).to(tl.int64)
    filled = tl.minimum(tl.load(count + b), capacity)
    if tl.program_id(1) * BLOCK >= filled:
        return
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mine = tl.load(keys + b * capacity + c, mask=c < filled, other=float("-inf"))
    ids = tl.load(kept + b * capacity + c, mask=c < filled, other=-1).to(tl.int64)
    place = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, filled, CHUNK):
        o = start + tl.arange(0, CHUNK)
        other = tl.load(keys + b * capacity + o, mask=o < filled, other=float("-inf"))
        rival = tl.load(kept + b * capacity + o, mask=o < filled, other=-1).to(tl.int64)
        tie = (other[None, :] == mine[:, None]) & (rival[None, :] < ids[:, None])
        ahead = ((other[None, :] > mine[:, None]) | tie) & (rival >= 0)[None, :]
        place += tl.sum(ahead.to(tl.int32), 1)
    answer = (c < filled) & (ids >= 0) & (place < k) & (mine > float("-inf"))
    tl.store(best_ids + b * k + place, ids, mask=answer)
    tl.store(best_logits + b * k + place, tl.load(logits + b * capacity + c, mask=answer), mask=answer)
    tl.store(best_keys + b * k + place, mine, mask=answer)


@triton.jit
def dense_rows(
    flags, weight, bias, hidden, mask, mask_stride, logits, keys, mass_at, link, heat, seed, rows, draws, class0,
    first, batch, vocab, dim, tiles, BIAS: tl.constexpr, MASKED: tl.constexpr, KIND: tl.constexpr, SAMPLE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Queries ``first ..`` that are flagged: every class's logit and key into ``[slots, vocab]``, and the tile's sum."""
    slot = tl.program_id(0).to(tl.int64)
    b = slot + first
    if b >= batch:
        return
    if tl.load(flags + b) == 0:
        return
    tile = tl.program_id(1)
    i = tile * ROWS + tl.arange(0, ROWS)
    there = i < vocab
    if MASKED:
        there = there & (tl.load(mask + b * mask_stride + i, mask=there, other=0) != 0)
    ids = tl.where(there, i, 0).to(tl.int64)
    z = exact(weight, bias, hidden, b * dim, ids, there, dim, BIAS, ROWS, BLOCK_D)
    tl.store(logits + slot * vocab + i, z, mask=i < vocab)
    if SAMPLE:
        key = noisy(z, ids, b, link, heat, seed, rows, draws, class0, KIND)
        tl.store(keys + slot * vocab + i, key, mask=i < vocab)
    else:
        finite = z > float("-inf")
        exponent = tl.where(finite, linked(tl.where(finite, z, 0.0), link, KIND) / tl.load(heat), float("-inf"))
        shift = tl.max(exponent, 0)
        shift = tl.where(shift == float("-inf"), 0.0, shift)
        place = (b * tiles + tile) * 2
        tl.store(mass_at + place, shift)
        tl.store(mass_at + place + 1, tl.sum(tl.exp(exponent - shift), 0))


@triton.jit
def dense_pick(
    flags, logits, keys, best_ids, best_logits, best_keys, first, batch, vocab, k, BLOCK: tl.constexpr
):  # fmt: skip
    """The k best keys of each flagged query: each the largest behind the one before in the order (key, smaller id)."""
    slot = tl.program_id(0).to(tl.int64)
    b = slot + first
    if b >= batch:
        return
    if tl.load(flags + b) == 0:
        return
    last_key = tl.full((), float("inf"), tl.float64)
    last_id = tl.full((), -1, tl.int64)
    for n in range(k):
        top = tl.full((BLOCK,), float("-inf"), tl.float64)
        top_id = tl.full((BLOCK,), 9223372036854775807, tl.int64)
        for start in range(0, vocab, BLOCK):
            i = (start + tl.arange(0, BLOCK)).to(tl.int64)
            key = tl.load(keys + slot * vocab + i, mask=i < vocab, other=float("-inf"))
            behind = (key < last_key) | ((key == last_key) & (i > last_id))
            better = behind & (key > top)
            top, top_id = tl.where(better, key, top), tl.where(better, i, top_id)
        last_key = tl.max(top, 0)
        last_id = tl.min(tl.where(top == last_key, top_id, 9223372036854775807), 0)
        there = last_key > float("-inf")
        tl.store(best_ids + b * k + n, tl.where(there, last_id, -1))
        tl.store(best_keys + b * k + n, last_key)
        z = tl.load(logits + slot * vocab + tl.where(there, last_id, 0), mask=there, other=float("-inf"))
        tl.store(best_logits + b * k + n, z)


@triton.jit
def noise_rows(
    ids, logits, exponents, noise, link, heat, seed, rows, draws, class0, n, k,
    KIND: tl.constexpr, SAMPLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``f(z) / temperature`` and, to ``SAMPLE``, Gumbels of ``ids [batch, k]`` for n draws of each row: ``[batch * n, k]``."""
    r = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = (r // n) * k + c
    chosen = tl.load(ids + at, mask=c < k, other=-1).to(tl.int64)
    z = tl.load(logits + at, mask=c < k, other=float("-inf"))
    finite = z > float("-inf")
    exponent = tl.where(finite, linked(tl.where(finite, z, 0.0), link, KIND) / tl.load(heat), float("-inf"))
    tl.store(exponents + r * k + c, exponent, mask=c < k)
    if SAMPLE:
        drawn = gumbel_at(seed, tl.load(rows + r), tl.load(draws + r).to(tl.uint32), tl.maximum(chosen, 0) + tl.load(class0))
        tl.store(noise + r * k + c, drawn, mask=c < k)
