"""A plan of codes in five launches: the queries' side in two, the look at all classes, what it leaves, and the dense way out.

::

    rotate    x = (hidden - mean) @ rotation                                             float64, some columns a program
    prepare   x^ = step * (256 coarse + fine) by segments; halves = sum factor * term(x); and the numbers of the noise
    settle_codes    as ``short_kernels.settle``, with the next level's codes before the exact rows

One program prepares one query, with all of x in its registers. Peaks are those above some part of the largest coordinate, the
best of a few such parts (``plan.Term``): any choice of peaks gives a radius that holds. Imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headlong.engines.device.kernels.codes import closer
from headlong.engines.device.kernels.common import linked, widened
from headlong.engines.device.kernels.finish import exact
from headlong.engines.device.kernels.fused_answers import (
    SCALARS,
    add_exp,
    close,
    keep,
    length_of,
    log_of,
    noisy_end,
    reaching,
    threshold_of,
)
from headlong.plan import PLANES, TERM_KINDS

QUANTISED, REST, PEAKS, HIDDEN, ONE = (tl.constexpr(at) for at in range(1, len(TERM_KINDS)))
MOST = tl.constexpr(PLANES)
TURN = tl.constexpr(1.5 * 2.0**52)  # added and taken off again, it leaves the nearest whole number, halves to even


@triton.jit
def rotate(
    hidden, mean, rotation, x_at, dim, width,
    MEAN: tl.constexpr, ROTATED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """``x [batch, width]``; without a rotation what is left after the mean."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    if ROTATED:
        total = tl.zeros((BLOCK_D, COLUMNS), tl.float64)
        for start in range(0, dim, BLOCK_D):
            d = start + tl.arange(0, BLOCK_D)
            v = tl.load(hidden + b * dim + d, mask=d < dim, other=0.0).to(tl.float64)
            if MEAN:
                v -= tl.load(mean + d, mask=d < dim, other=0.0)
            there = (d < dim)[:, None] & (c < width)[None, :]
            rotated = tl.load(rotation + d.to(tl.int64)[:, None] * width + c[None, :], mask=there, other=0.0).to(tl.float64)
            total += v[:, None] * rotated
        x = tl.sum(total, 0)
    else:
        x = tl.load(hidden + b * dim + c, mask=c < dim, other=0.0).to(tl.float64)
        if MEAN:
            x -= tl.load(mean + c, mask=c < dim, other=0.0)
    tl.store(x_at + b * width + c, x, mask=c < width)


@triton.jit
def two_planes(x, lost, j, planes, columns, steps, segments, count):
    """Both planes of every segment ``(start, stop, place)``; returns ``lost``, the largest ``|x - x^|`` of each coordinate.

    A step is up to 4e-7 of itself above the one of ``engines/reference``: no instruction rounds a float64 up to float32 here.
    """
    for s in range(count):
        start, stop, place = tl.load(segments + 3 * s), tl.load(segments + 3 * s + 1), tl.load(segments + 3 * s + 2)
        inside = (j >= start) & (j < stop)
        most = tl.max(tl.where(inside, tl.abs(x), 0.0), 0)
        step = (most / MOST * 1.0000003 + 1e-37).to(tl.float32).to(tl.float64)
        step = tl.where(step < float("inf"), tl.where(most > 0, step, 0.0), 0.0)
        whole = tl.where(step > 0, tl.where(inside, x * (1.0 / tl.where(step > 0, step, 1.0)), 0.0), 0.0)
        whole = (tl.minimum(tl.maximum(tl.where(whole == whole, whole, 0.0), -MOST), MOST) + TURN) - TURN
        coarse = tl.floor((whole + 128.0) / 256.0)
        tl.store(planes + place + j - start, coarse.to(tl.int8), mask=inside)
        tl.store(planes + columns + place + j - start, (whole - 256.0 * coarse).to(tl.int8), mask=inside)
        tl.store(steps + s, step.to(tl.float32))
        lost = tl.where(inside, tl.maximum(lost, tl.abs(x - whole * step)), lost)
    return lost


@triton.jit
def split_peaks(x, inside, count):
    """``(sum of the peaks, norm of the rest)`` for the part of the largest coordinate at which the radius is least.

    ``plan.Term`` says how much wider that may be than with the best peaks.
    """
    size = tl.where(inside, tl.abs(x), 0.0)
    most, wide = tl.max(size, 0), tl.sqrt(count.to(tl.float64) / 3.0)
    peaks, rest = tl.full((), 0.0, tl.float64), tl.sqrt(tl.sum(size * size, 0))
    for part in tl.static_range(1, 9):
        high = size > most * (0.5 ** (0.5 * part))
        sum_high, low = tl.sum(tl.where(high, size, 0.0), 0), tl.where(high, 0.0, size)
        norm_low = tl.sqrt(tl.sum(low * low, 0))
        better = sum_high + wide * norm_low < peaks + wide * rest
        peaks, rest = tl.where(better, sum_high, peaks), tl.where(better, norm_low, rest)
    return peaks, rest


@triton.jit
def halves_of(x, lost, length, j, halves, terms, factors, count, rows, ROWS: tl.constexpr):
    """``sum factor * term(x)`` of each row of the slack, rounded up; a term is ``(kind, start, stop, row)``."""
    r = tl.arange(0, ROWS)
    sums = tl.zeros((ROWS,), tl.float64)
    for t in range(count):
        kind, start, stop = tl.load(terms + 4 * t), tl.load(terms + 4 * t + 1), tl.load(terms + 4 * t + 2)
        inside = (j >= start) & (j < stop)
        part = tl.where(inside, tl.where(kind == QUANTISED, lost, x), 0.0)
        half = tl.sqrt(tl.sum(part * part, 0))
        if (kind >= REST) & (kind <= PEAKS):  # neighbours in the list: two equalities take a register too many
            peaks, rest = split_peaks(x, inside, stop - start)
            half = tl.where(kind == PEAKS, peaks, rest)
        half = tl.where(kind == HIDDEN, length, tl.where(kind == ONE, 1.0, half))
        sums += tl.where(r == tl.load(terms + 4 * t + 3), tl.load(factors + t) * half, 0.0)
    up = (sums * 1.000000001 * 1.0000003 + 1e-37).to(tl.float32)
    tl.store(halves + r, tl.where(sums > 0, up, 0.0), mask=r < rows)


@triton.jit(do_not_specialize=SCALARS)
def prepare(
    hidden, mean, centre, x_at, planes, steps, halves, segments, terms, factors,
    deep_planes, deep_steps, deep_halves, deep_segments, deep_terms, deep_factors, shared,
    heat_at, seed_at, rows_at, draws_at, class_at, state,
    heat: tl.int64, seed_low: tl.int64, seed_high: tl.int64, row0: tl.int64, class0: tl.int64,
    dim, width, columns, deep_columns, count, deep_count, parts, deep_parts, slacks, deep_slacks,
    MEAN: tl.constexpr, CENTRE: tl.constexpr, DEEPER: tl.constexpr,
    ROOM: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """All that the looks at codes take of query b, for a first level and (``deep``) the one behind it."""
    b = tl.program_id(0).to(tl.int64)
    squares, about = tl.zeros((BLOCK_D,), tl.float64), tl.zeros((BLOCK_D,), tl.float64)
    for start in range(0, dim, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        v = tl.load(hidden + b * dim + d, mask=d < dim, other=0.0).to(tl.float64)
        if CENTRE:
            about += v * tl.load(centre + d, mask=d < dim, other=0.0)
        if MEAN:
            v -= tl.load(mean + d, mask=d < dim, other=0.0)
        squares += v * v
    tl.store(shared + b, tl.sum(about, 0).to(tl.float32))
    length = tl.sqrt(tl.sum(squares, 0))
    j = tl.arange(0, ROOM)
    x = tl.load(x_at + b * width + j, mask=j < width, other=0.0)
    lost = tl.zeros((ROOM,), tl.float64)
    lost = two_planes(x, lost, j, planes + b * 2 * columns, columns, steps + b * count, segments, count)
    if DEEPER:
        deeper = deep_planes + b * 2 * deep_columns
        lost = two_planes(x, lost, j, deeper, deep_columns, deep_steps + b * deep_count, deep_segments, deep_count)
        halves_of(x, lost, length, j, deep_halves + b * deep_slacks, deep_terms, deep_factors, deep_parts, deep_slacks, ROWS)
    halves_of(x, lost, length, j, halves + b * slacks, terms, factors, parts, slacks, ROWS)
    for n in tl.static_range(4):
        tl.store(state + b * 4 + n, 0)
    tl.store(rows_at + b, row0 + b)
    tl.store(draws_at + b, b * 0)
    if b == 0:
        tl.store(heat_at, heat.to(tl.float64, bitcast=True))
        tl.store(seed_at, seed_low.to(tl.int64))
        tl.store(seed_at + 1, seed_high.to(tl.int64))
        tl.store(class_at, class0.to(tl.int64))


@triton.jit
def join_ends(low_top, low, high_top, most, taken, z, reach, link, temperature, steepest, KIND: tl.constexpr):
    """Both sums of exponentials and the classes ``taken``: ``z`` joins the lower one, ``z + reach`` the upper."""
    value = linked(tl.where(taken, z, 0.0), link, KIND) / temperature
    above = value + tl.where(taken, reach, 0.0) * (steepest / temperature)
    low_top, low = add_exp(low_top, low, tl.where(taken, value, float("-inf")))
    high_top, most = add_exp(high_top, most, tl.where(taken, above, float("-inf")))
    return low_top, low, high_top, most


@triton.jit
def weigh_rest(
    high, estimate, threshold, vocab, part, parts, link, temperature, steepest,
    KIND: tl.constexpr, SAMPLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``log sum exp`` of this part's estimates whose upper ends do not reach the threshold, and of those ends, as two pairs.

    A draw needs no normaliser: both are empty.
    """
    low_top, high_top = tl.full((), float("-inf"), tl.float64), tl.full((), float("-inf"), tl.float64)
    low, most = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    if not SAMPLE:
        for start in range(part * BLOCK, vocab, parts * BLOCK):
            i = start + tl.arange(0, BLOCK)
            end = tl.load(high + i, mask=i < vocab, other=float("-inf"))
            z = tl.load(estimate + i, mask=i < vocab, other=float("-inf")).to(tl.float64)
            rest = (end < threshold) & (z > float("-inf"))
            low_top, low, high_top, most = join_ends(
                low_top, low, high_top, most, rest, z, end.to(tl.float64) - z, link, temperature, steepest, KIND
            )
    return low_top, low, high_top, most


@triton.jit(do_not_specialize=SCALARS)
def settle_codes(
    weight, bias, hidden, high_at, best_at, best_id_at, estimate_at, hits_at, kept_at, scores_at, keys_at, part_at, state,
    ids_at, logits_at, scored_at, values_at, lse_at, error_at, proved_at, flags_at, rows_at, bytes_at, dense_at,
    link, facts, heat: tl.int64, seed_low: tl.int64, seed_high: tl.int64, row0: tl.int64, class0: tl.int64,
    eps, k, vocab, dim, best_count, tiles, capacity, region, parts, share,
    words, scale, slack, edges, planes, steps, halves, shared, lines, padded, segments, slacks,
    BIAS: tl.constexpr, KIND: tl.constexpr, SAMPLE: tl.constexpr, DEEPER: tl.constexpr, DP4A: tl.constexpr,
    ROOM: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_W: tl.constexpr, ORDER: tl.constexpr,
):  # fmt: skip
    """What the look at codes leaves of query b: closer looks at what reaches the threshold, exact rows of what still does."""
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length, known = length_of(hidden + b * dim, dim, BLOCK_D)
    threshold = threshold_of(
        weight, bias, hidden, b, best_at, best_id_at, tiles * best_count, link, facts, heat, seed_low, seed_high, row0, class0,
        length, k, dim, BIAS, KIND, SAMPLE, ROOM, LANES, BLOCK_D,
    )  # fmt: skip
    temperature, steepest = heat.to(tl.float64, bitcast=True), tl.load(facts + 2)
    hits = hits_at + (b * parts + part) * region
    found = reaching(high_at + b * vocab, hits, threshold, vocab, part, parts, BLOCK)
    tl.atomic_add(state + b * 4 + 3, found)
    low_top, low, high_top, most = weigh_rest(
        high_at + b * vocab, estimate_at + b * vocab, threshold, vocab, part, parts,
        link, temperature, steepest, KIND, SAMPLE, BLOCK,
    )  # fmt: skip
    for start in range(0, found, ROWS):
        c = start + tl.arange(0, ROWS)
        undecided = c < found
        ids = tl.load(hits + c, mask=undecided, other=0).to(tl.int64)
        if DEEPER:
            z, radius = closer(
                tl.load(estimate_at + b * vocab + ids, mask=undecided, other=0.0), ids, undecided, b,
                words, scale, slack, edges, planes, steps, halves, shared, lines, padded, segments, slacks, DP4A, ROWS, BLOCK_W,
            )  # fmt: skip
            wide, reach = z.to(tl.float64), radius.to(tl.float64)
            top, looked = wide + reach, undecided
            if SAMPLE:
                top = noisy_end(top, ids, b, link, heat, seed_low, seed_high, row0, class0, KIND)
            undecided = looked & (widened(top, 1) >= threshold)
            if not SAMPLE:
                low_top, low, high_top, most = join_ends(
                    low_top, low, high_top, most, looked & (undecided == 0), wide, reach, link, temperature, steepest, KIND
                )
        logit = exact(weight, bias, hidden, b * dim, ids, undecided, dim, BIAS, ROWS, BLOCK_D)
        keep(
            logit, ids, undecided, b, kept_at, scores_at, keys_at, state, capacity,
            link, heat, seed_low, seed_high, row0, class0, KIND, SAMPLE,
        )  # fmt: skip
        if not SAMPLE:
            low_top, low, high_top, most = join_ends(
                low_top, low, high_top, most, logit > float("-inf"), logit, logit * 0.0, link, temperature, steepest, KIND
            )
    tl.store(part_at + (b * parts + part) * 2, log_of(low_top, low))
    tl.store(part_at + (b * parts + part) * 2 + 1, log_of(high_top, most))
    tl.debug_barrier()
    if tl.atomic_add(state + b * 4 + 1, 1) == parts - 1:
        close(
            b, known, length, kept_at, scores_at, keys_at, part_at, state,
            ids_at, logits_at, scored_at, values_at, lse_at, error_at, proved_at, flags_at, rows_at, bytes_at, dense_at,
            link, facts, heat, eps, k, vocab, dim, capacity, parts, share, KIND, SAMPLE, False, ROOM, LANES, ORDER,
        )  # fmt: skip
