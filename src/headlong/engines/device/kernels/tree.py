"""The kernels behind a tree: its nodes' normalisers, the sums along all paths, and the uniforms that a walk goes by.

::

    node_norms    L_n = log sum exp(z of the rows of node n)
    path_sums     log p(class) = sum over the branches up to the root of z_branch - L_n, or log sigmoid(+-z_n)
    uniforms      one number in (0, 1) for each (seed, row, draw, level): those of the walk on the CPU

The first two are the dense way out: programs return at once for queries that are not flagged. Imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headlong.engines.device.kernels.common import philox


@triton.jit
def node_norms(flags, z_at, starts, norms_at, first, batch, rows, nodes, BLOCK: tl.constexpr):
    """Many-way nodes: one program for each (slot, node), over ``z [slots, rows]``."""
    slot = tl.program_id(0).to(tl.int64)
    if slot + first >= batch:
        return
    if tl.load(flags + slot + first) == 0:
        return
    node = tl.program_id(1)
    start, stop = tl.load(starts + node), tl.load(starts + node + 1)
    top = tl.full((BLOCK,), float("-inf"), tl.float64)
    for at in range(start, stop, BLOCK):
        i = at + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.load(z_at + slot * rows + i, mask=i < stop, other=float("-inf")))
    shift = tl.max(top, 0)
    shift = tl.where(shift == float("-inf"), 0.0, shift)
    total = tl.zeros((BLOCK,), tl.float64)
    for at in range(start, stop, BLOCK):
        i = at + tl.arange(0, BLOCK)
        total += tl.exp(tl.load(z_at + slot * rows + i, mask=i < stop, other=float("-inf")) - shift)
    tl.store(norms_at + slot * nodes + node, shift + tl.log(tl.sum(total, 0)))


@triton.jit
def path_sums(
    flags, z_at, norms_at, leaf, owner, above, sums_at, first, batch, rows, nodes, vocab, depth,
    TWO_WAY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``sums [slots, vocab]`` of the flagged queries. ``leaf [vocab]``, ``above [nodes]``: the branch that leads there."""
    slot = tl.program_id(0).to(tl.int64)
    if slot + first >= batch:
        return
    if tl.load(flags + slot + first) == 0:
        return
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    branch = tl.load(leaf + i, mask=i < vocab, other=-1)
    total = tl.zeros((BLOCK,), tl.float64)
    for _ in range(depth):
        there = branch >= 0
        node = tl.load(owner + branch, mask=there, other=0)
        if TWO_WAY:
            z = tl.load(z_at + slot * rows + node, mask=there, other=0.0)
            z = tl.where((branch & 1) == 0, z, -z)
            tail = tl.exp(-tl.abs(z))
            # log1p(t) = log(1 + t) t / ((1 + t) - 1): the rounding of 1 + t cancels
            gap = (1.0 + tail) - 1.0
            tail = tl.where(gap == 0.0, tail, tl.log(1.0 + tail) * (tail / tl.where(gap == 0.0, 1.0, gap)))
            step = tl.minimum(z, 0.0) - tail
        else:
            z = tl.load(z_at + slot * rows + branch, mask=there, other=0.0)
            step = tl.minimum(z - tl.load(norms_at + slot * nodes + node, mask=there, other=0.0), 0.0)
        total += tl.where(there, step, 0.0)
        branch = tl.load(above + node, mask=there, other=-1)
    tl.store(sums_at + slot * vocab + i, total, mask=i < vocab)


@triton.jit
def uniforms(key, rows, out, draws, levels, BLOCK: tl.constexpr):
    """``out [batch, draws, levels]``, ``branches.py``: 53 bits and a half of the Philox words of (draw, level, row)."""
    b = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + b)
    zero = (j * 0).to(tl.uint32)
    draw, level = (j // levels).to(tl.uint32), (j % levels).to(tl.uint32)
    low_row, high_row = row.to(tl.uint32) + zero, (row >> 32).to(tl.uint32) + zero
    first, second = tl.load(key).to(tl.uint32) + zero, tl.load(key + 1).to(tl.uint32) + zero
    high, low, _, _ = philox(draw, level, low_row, high_row, first, second)
    value = (high >> 5).to(tl.float64) * 67108864.0 + (low >> 6).to(tl.float64) + 0.5
    tl.store(out + b * draws * levels + j, value * 1.1102230246251565e-16, mask=j < draws * levels)
