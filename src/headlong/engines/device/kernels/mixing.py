"""The kernels of a mixture: upper ends of its probabilities from the components' own, and its exact log-probabilities.

::

    mix_ends     log sum_k exp(shift_k + f(high_kx)) of every class, rounded up      high: upper ends of one look at W
    mix_rows     log sum_k exp(shift_k + f(z_kx)) in float64, for flagged queries     shift_k = log pi_k - L_k

One program takes a tile of classes of one query and goes through its components. Imports Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headlong.engines.device.kernels.common import linked, widened


@triton.jit
def mix_ends(high_at, shifts, ends, link, vocab, components, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """``high [batch * components, vocab]`` float32 -> ``ends [batch, vocab]`` float32, each at or above the real number."""
    b = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), tl.float64)
    total = tl.zeros((BLOCK,), tl.float32)
    lost = tl.zeros((BLOCK,), tl.int1)
    for c in range(components):
        row = b * components + c
        high = tl.load(high_at + row * vocab + i, mask=i < vocab, other=float("-inf")).to(tl.float64)
        known = tl.abs(high) < 3.0e38
        lost = lost | (high >= 3.0e38)
        value = tl.where(known, linked(tl.where(known, high, 0.0), link, KIND), float("-inf")) + tl.load(shifts + row)
        most = tl.maximum(top, value)
        safe = tl.where(most == float("-inf"), 0.0, most)
        total = total * tl.exp((top - safe).to(tl.float32)) + tl.exp((value - safe).to(tl.float32))
        top = most
    # exponentials and sums of float32: a few times 2^-22 for each component
    value = top + tl.log(tl.maximum(total, 1e-30)).to(tl.float64) + (components + 8) * 4.8e-7
    tl.store(ends + b * vocab + i, tl.where(lost, float("inf"), widened(value, 1)), mask=i < vocab)


@triton.jit
def mix_rows(
    flags, z_at, shifts, mixed, link, first, batch, vocab, components, KIND: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """``z [slots * components, vocab]`` float64 -> ``mixed [slots, vocab]``; of one component its logits, which order it."""
    slot = tl.program_id(0).to(tl.int64)
    b = slot + first
    if b >= batch:
        return
    if tl.load(flags + b) == 0:
        return
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), tl.float64)
    total = tl.zeros((BLOCK,), tl.float64)
    for c in range(components):
        z = tl.load(z_at + (slot * components + c) * vocab + i, mask=i < vocab, other=float("-inf"))
        known = z > float("-inf")
        value = tl.where(known, linked(tl.where(known, z, 0.0), link, KIND), float("-inf"))
        value += tl.load(shifts + b * components + c)
        most = tl.maximum(top, value)
        safe = tl.where(most == float("-inf"), 0.0, most)
        total = total * tl.exp(top - safe) + tl.exp(value - safe)
        top = most
    tl.store(mixed + slot * vocab + i, top + tl.log(tl.where(total > 0.0, total, 1.0)), mask=i < vocab)
