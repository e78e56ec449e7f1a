"""A search by blocks in a few launches: the queries' side, all boxes, a first threshold, what reaches it. Imports Triton.

::

    behind           seen = (hidden - mean - y) @ rest, for the lengths of the coordinates that x does not have
    box_sides        x in float32, the lengths of its segments, what all bounds of a query get
    bound_blocks     base + scale <codes, x> + unit <lengths, sizes of x> + slack        no less than any logit of the block
    first_threshold  the classes of the best blocks; the worst of the k best of them, exactly
    settle_blocks    the classes of every block that reaches it, closer where they do, exact rows where they still do

The rules are those of ``engines/reference/blocks.py``. Bounds are float32, as in native code: what that loses is in the last
length of every record. A number that left float32 bounds nothing: its upper end is infinite. The numbers of nodes lie
coordinate by coordinate, so that neighbouring threads read neighbouring bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headlong.engines.device.kernels.common import linked, widened
from headlong.engines.device.kernels.finish import exact
from headlong.engines.device.kernels.fused_answers import (
    SCALARS,
    add_exp,
    best_estimates,
    close,
    keep,
    length_of,
    log_of,
    reaching,
    threshold_of,
)
from headlong.plan import NEIGHBOURS

MOST = tl.constexpr(3.0e38)
"""Beyond it float32 may have overflowed on the way."""
EACH = tl.constexpr(NEIGHBOURS)
GROWN = tl.constexpr(1 + 2.0**-18)


@triton.jit
def behind(hidden, mean, y_at, rest, scale, seen_at, dim, count, COLUMNS: tl.constexpr, BLOCK_D: tl.constexpr):
    """``seen [batch, count]``: what is left of hidden beside its first coordinates, by the rotation's other ones in 8 bits."""
    b = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((BLOCK_D, COLUMNS), tl.float64)
    for start in range(0, dim, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        v = tl.load(hidden + b * dim + d, mask=d < dim, other=0.0).to(tl.float64)
        v -= tl.load(mean + d, mask=d < dim, other=0.0) + tl.load(y_at + b * dim + d, mask=d < dim, other=0.0)
        there = (d < dim)[:, None] & (c < count)[None, :]
        code = tl.load(rest + d.to(tl.int64)[:, None] * count + c[None, :], mask=there, other=0).to(tl.float64)
        total += v[:, None] * code
    seen = tl.sum(total, 0) * tl.load(scale + c, mask=c < count, other=0.0)
    tl.store(seen_at + b * count + c, seen, mask=c < count)


@triton.jit
def box_sides(
    hidden, mean, centre, x_at, y_at, seen_at, segments, factors, lost, box_at, own_at, lengths_at, closer_at, adds_at,
    slacks_at, state, dim, width, look, count, segment_count, first, capacity, most_x,
    REST: tl.constexpr, ROOM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One query: ``box [2 * look]``, ``own [width]``, ``lengths [segments + 1]``, ``closer [segments - first + 1]``.

    ``factors [8]``: those of the lengths of ``x[:look], x[look:], 1, hidden - mean`` in the last length of a record, and of a
    closer look; ``lost [segments, 3]`` those of the parts that 8 bits lose.
    """
    b = tl.program_id(0).to(tl.int64)
    squares, left = tl.zeros((BLOCK_D,), tl.float64), tl.zeros((BLOCK_D,), tl.float64)
    about = tl.zeros((BLOCK_D,), tl.float64)
    for start in range(0, dim, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        v = tl.load(hidden + b * dim + d, mask=d < dim, other=0.0).to(tl.float64)
        about += v * tl.load(centre + d, mask=d < dim, other=0.0)
        v -= tl.load(mean + d, mask=d < dim, other=0.0)
        squares += v * v
        v -= tl.load(y_at + b * dim + d, mask=(d < dim) & REST, other=0.0)
        left += v * v
    length, far, add = tl.sqrt(tl.sum(squares, 0)), tl.sqrt(tl.sum(left, 0)), tl.sum(about, 0)
    j = tl.arange(0, ROOM)
    x = tl.load(x_at + b * width + j, mask=j < width, other=0.0)
    head = tl.sqrt(tl.sum(tl.where(j < look, x * x, 0.0), 0))
    tail = tl.sqrt(tl.sum(tl.where(j < look, 0.0, x * x), 0))
    whole = tl.sqrt(tl.sum(x * x, 0))
    most = tl.maximum(tl.max(tl.abs(x), 0), tl.abs(add))
    closer_count = segment_count - first + 1
    for s in range(segment_count):
        start, stop = tl.load(segments + 2 * s), tl.load(segments + 2 * s + 1)
        inside = (j >= start) & (j < stop)
        size = tl.sqrt(tl.sum(tl.where(inside, x * x, 0.0), 0))
        if REST:  # no turn of the loop where the segment is one of x
            sums = tl.zeros((BLOCK_D,), tl.float64)
            for place in range(tl.maximum(start - width, 0), tl.maximum(stop - width, 0), BLOCK_D):
                d = place + tl.arange(0, BLOCK_D)
                seen = tl.load(seen_at + b * count + d, mask=d < stop - width, other=0.0)
                sums += seen * seen
            missed = tl.load(lost + 3 * s) * far + tl.load(lost + 3 * s + 1) * length + tl.load(lost + 3 * s + 2) * whole
            size = tl.where(start >= width, tl.sqrt(tl.sum(sums, 0)) * (1 + 2.0**-20) + missed, size)
        most = tl.maximum(most, size)
        tl.store(lengths_at + b * (segment_count + 1) + s, widened(size * GROWN, 1))
        if s >= first:
            tl.store(closer_at + b * closer_count + s - first, widened(size * GROWN, 1))
    shared = tl.load(factors) * head + tl.load(factors + 1) * tail + tl.load(factors + 2) + tl.load(factors + 3) * length
    own = tl.load(factors + 4) * head + tl.load(factors + 5) * tail + tl.load(factors + 6) + tl.load(factors + 7) * length
    tl.store(lengths_at + b * (segment_count + 1) + segment_count, widened(shared * GROWN, 1))
    tl.store(closer_at + b * closer_count + closer_count - 1, widened(own * GROWN, 1))
    most = tl.maximum(most, tl.maximum(shared, own))
    tl.store(own_at + b * width + j, x.to(tl.float32), mask=j < width)
    tl.store(box_at + b * 2 * look + j, tl.maximum(x, 0.0).to(tl.float32), mask=j < look)
    tl.store(box_at + b * 2 * look + look + j, tl.minimum(x, 0.0).to(tl.float32), mask=j < look)
    tl.store(adds_at + b, add.to(tl.float32))
    tl.store(slacks_at + b, widened(tl.abs(add) * 2.0**-20 + 2.0**-100, 1))
    for n in tl.static_range(4):
        tl.store(state + b * 4 + n, 0)
    if most > most_x:  # as if there were too many candidates: that query is read densely
        tl.store(state + b * 4, capacity + 1)


@triton.jit
def bounded(est, upper, base):
    """An upper end, infinite where it says nothing; -inf where there is no node."""
    known = (tl.abs(est) < MOST) & (tl.abs(upper) < MOST)
    return tl.where(base == float("-inf"), float("-inf"), tl.where(known, upper, float("inf")))


@triton.jit
def bounds(at, there, codes, sizes, numbers, nodes, x, lengths, add, slack, CODES: tl.constexpr, SIZES: tl.constexpr):
    """``estimate, upper end`` of the nodes ``at``; ``codes [CODES, nodes]``, ``sizes [SIZES, nodes]``, ``numbers [3, nodes]``
    are scale, unit and base; ``x, lengths`` point at one query's coordinates and lengths."""
    product, length = at.to(tl.float32) * 0.0, at.to(tl.float32) * 0.0
    for c in range(CODES):
        product += tl.load(codes + c * nodes + at, mask=there, other=0).to(tl.float32) * tl.load(x + c)
    for s in range(SIZES):
        length += tl.load(sizes + s * nodes + at, mask=there, other=0).to(tl.float32) * tl.load(lengths + s)
    base = tl.load(numbers + 2 * nodes + at, mask=there, other=float("-inf"))
    est = base + tl.load(numbers + at, mask=there, other=0.0) * product + add
    upper = est + tl.load(numbers + nodes + at, mask=there, other=0.0) * length + slack
    return est, bounded(est, upper, base)


@triton.jit
def bound_blocks(
    codes, sizes, numbers, box, lengths, adds, slacks, high_at, best_at, best_id_at, nodes, tiles, best_count,
    CODES: tl.constexpr, SIZES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Upper ends ``[batch, nodes]`` of all blocks, and the best few of each tile."""
    b, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tile * BLOCK + tl.arange(0, BLOCK)
    there = at < nodes
    _, upper = bounds(
        at.to(tl.int64), there, codes, sizes, numbers, nodes, box + b * CODES, lengths + b * SIZES,
        tl.load(adds + b), tl.load(slacks + b), CODES, SIZES,
    )  # fmt: skip
    tl.store(high_at + b * nodes + at, upper, mask=there)
    upper = tl.where(there, upper, float("-inf"))
    place = (b * tiles + tile) * best_count
    for n in range(best_count):
        best = tl.max(upper, 0)
        first = tl.min(tl.where((upper == best) & there, at, 2147483647), 0)
        tl.store(best_at + place + n, best)
        tl.store(best_id_at + place + n, first)
        upper = tl.where(at == first, float("-inf"), upper)


@triton.jit
def class_bounds(
    group, c, threshold, b, order, codes, sizes, numbers, places, own, lengths, add, slack,
    near_codes, near_sizes, near_numbers, closer, mask, mask_stride, look,
    CODES: tl.constexpr, SIZES: tl.constexpr, NEAR: tl.constexpr, NEAR_SIZES: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """``ids, there, estimate, upper end`` of the classes at places ``c % 16`` of some blocks (-1: none), closer where they
    reach the threshold, and how many of those looks there were."""
    at = tl.maximum(group, 0).to(tl.int64) * EACH + c % EACH
    ids = tl.load(order + at, mask=group >= 0, other=-1)
    there = (group >= 0) & (ids >= 0)
    if MASKED:
        there = there & (tl.load(mask + b * mask_stride + ids, mask=there, other=0) != 0)
    est, upper = bounds(at, there, codes, sizes, numbers, places, own, lengths, add, slack, CODES, SIZES)
    there = there & (upper >= threshold) & (upper > float("-inf"))
    looks = tl.sum(there.to(tl.int32), 0)
    if NEAR > 0:
        product, length = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
        for start in range(0, NEAR, BLOCK_W):
            d = start + tl.arange(0, BLOCK_W)
            inside = there[:, None] & (d < NEAR)[None, :]
            code = tl.load(near_codes + at[:, None] * NEAR + d[None, :], mask=inside, other=0).to(tl.float32)
            product += tl.sum(code * tl.load(own + look + d, mask=d < NEAR, other=0.0)[None, :], 1)
        for s in range(NEAR_SIZES):
            size = tl.load(near_sizes + at * NEAR_SIZES + s, mask=there, other=0).to(tl.float32)
            length += size * tl.load(closer + s)
        near = est + tl.load(near_numbers + 2 * at, mask=there, other=0.0) * product
        top = near + tl.load(near_numbers + 2 * at + 1, mask=there, other=0.0) * length + slack
        upper = tl.where(upper == float("inf"), upper, bounded(near, top, est))
        est = near
        there = there & (upper >= threshold)
    return ids, there, est, looks


@triton.jit
def first_threshold(
    weight, bias, hidden, best_at, best_id_at, count, seed_at, seed_id_at, threshold_at, link, facts,
    order, codes, sizes, numbers, places, own, lengths, adds, slacks, near_codes, near_sizes, near_numbers, closer,
    mask, mask_stride, width, look, k, dim,
    CODES: tl.constexpr, SIZES: tl.constexpr, NEAR: tl.constexpr, NEAR_SIZES: tl.constexpr, MASKED: tl.constexpr,
    BIAS: tl.constexpr, KIND: tl.constexpr, ROOM: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, BLOCK_W: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """What the k best of the classes in the best blocks reach; ``seed, seed_id [batch, ROWS]``, sixteen classes a block."""
    b = tl.program_id(0).to(tl.int64)
    groups = best_estimates(best_at + b * count, best_id_at + b * count, count, ROWS // EACH, LANES, ROWS // EACH)
    tl.store(seed_id_at + b * ROWS + tl.arange(0, ROWS // EACH), groups)
    tl.debug_barrier()
    c = tl.arange(0, ROWS)
    group = tl.load(seed_id_at + b * ROWS + c // EACH)
    tl.debug_barrier()
    ids, there, est, _ = class_bounds(
        group, c, float("-inf"), b, order, codes, sizes, numbers, places, own + b * width, lengths + b * SIZES,
        tl.load(adds + b), tl.load(slacks + b), near_codes, near_sizes, near_numbers, closer + b * NEAR_SIZES,
        mask, mask_stride, look, CODES, SIZES, NEAR, NEAR_SIZES, MASKED, ROWS, BLOCK_W,
    )  # fmt: skip
    known = there & (tl.abs(est) < MOST)
    tl.store(seed_at + b * ROWS + c, tl.where(known, est, float("-inf")))
    tl.store(seed_id_at + b * ROWS + c, tl.where(known, ids, 0))
    tl.debug_barrier()
    length, _ = length_of(hidden + b * dim, dim, BLOCK_D)
    threshold = threshold_of(
        weight, bias, hidden, b, seed_at, seed_id_at, ROWS, link, facts, 0, 0, 0, 0, 0, length, k, dim, BIAS, KIND, False,
        ROOM, LANES, BLOCK_D,
    )  # fmt: skip
    tl.store(threshold_at + b, threshold)


@triton.jit(do_not_specialize=SCALARS)
def settle_blocks(
    weight, bias, hidden, high_at, threshold_at, hits_at, kept_at, scores_at, keys_at, part_at, state,
    ids_at, logits_at, scored_at, values_at, lse_at, error_at, proved_at, flags_at, rows_at, bytes_at, dense_at,
    link, facts, heat: tl.int64, seed_low: tl.int64, seed_high: tl.int64, row0: tl.int64, class0: tl.int64,
    eps, k, vocab, dim, nodes, capacity, region, parts,
    order, codes, sizes, numbers, places, own, lengths, adds, slacks, near_codes, near_sizes, near_numbers, closer,
    mask, mask_stride, width, look, group_bytes, near_bytes,
    CODES: tl.constexpr, SIZES: tl.constexpr, NEAR: tl.constexpr, NEAR_SIZES: tl.constexpr, MASKED: tl.constexpr,
    BIAS: tl.constexpr, KIND: tl.constexpr, ROOM: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr, ORDER: tl.constexpr, LINE: tl.constexpr,
):  # fmt: skip
    """The blocks of query b that reach its threshold: their classes, closer looks, exact rows of what may be an answer."""
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length, known = length_of(hidden + b * dim, dim, BLOCK_D)
    threshold, add, slack = tl.load(threshold_at + b), tl.load(adds + b), tl.load(slacks + b)
    hits = hits_at + (b * parts + part) * region
    found = reaching(high_at + b * nodes, hits, threshold, nodes, part, parts, BLOCK)
    read = found * group_bytes
    top, total = tl.full((), float("-inf"), tl.float64), tl.full((), 0.0, tl.float64)
    for start in range(0, found * EACH, ROWS):
        c = start + tl.arange(0, ROWS)
        group = tl.load(hits + c // EACH, mask=c < found * EACH, other=-1)
        ids, undecided, _, looks = class_bounds(
            group, c, threshold, b, order, codes, sizes, numbers, places, own + b * width, lengths + b * SIZES, add, slack,
            near_codes, near_sizes, near_numbers, closer + b * NEAR_SIZES, mask, mask_stride, look,
            CODES, SIZES, NEAR, NEAR_SIZES, MASKED, ROWS, BLOCK_W,
        )  # fmt: skip
        read += looks * near_bytes
        row = tl.maximum(ids, 0).to(tl.int64)
        logit = exact(weight, bias, hidden, b * dim, row, undecided, dim, BIAS, ROWS, BLOCK_D)
        keep(
            logit, row, undecided, b, kept_at, scores_at, keys_at, state, capacity,
            link, heat, seed_low, seed_high, row0, class0, KIND, False,
        )  # fmt: skip
        scored = logit > float("-inf")
        value = linked(tl.where(scored, logit, 0.0), link, KIND) / heat.to(tl.float64, bitcast=True)
        top, total = add_exp(top, total, tl.where(scored, value, float("-inf")))
    tl.atomic_add(state + b * 4 + 3, (read + LINE - 1) // LINE)
    tl.store(part_at + (b * parts + part) * 2, log_of(top, total))
    tl.store(part_at + (b * parts + part) * 2 + 1, float("inf"))  # whatever is not open may weigh anything
    tl.debug_barrier()
    if tl.atomic_add(state + b * 4 + 1, 1) == parts - 1:
        close(
            b, known, length, kept_at, scores_at, keys_at, part_at, state,
            ids_at, logits_at, scored_at, values_at, lse_at, error_at, proved_at, flags_at, rows_at, bytes_at, dense_at,
            link, facts, heat, eps, k, vocab, dim, capacity, parts, 1, KIND, False, False, ROOM, LANES, ORDER,
        )  # fmt: skip
