"""A layer on a device, and what is read there: a scan of its rows or its codes, exact rows, Gumbels, the link.

    matrix.rows(call)   ->  upper ends of all classes [batch, vocab], sums of exponentials    (matrix.codes(call): the same)
    matrix.exact(call, ids)  ->  float64 logits [batch, m]
    matrix.noise(call, ids)  ->  Gumbels [batch, m]
    matrix.linked(logits)    ->  f(logits)

Every shape follows from those of the arguments, and nothing waits for the host.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple

import numpy as np

from headlong.dtypes import UNIT
from headlong.engines.device.codes import AT_ONCE, coded
from headlong.engines.device.memory import INTERPRETER, Tensor, place_of, rounded_up, tensor_of
from headlong.errors import NonFiniteError
from headlong.layers.matrix import Layer
from headlong.links import ROUNDING as LINK_ROUNDING
from headlong.links import lowering_error
from headlong.links.base import FORMS

EXP32 = 2.0**-15
"""What float32 exponentials and their sum over one tile can take from a log-normaliser, in nats: a few times 2^-18."""


class Tiles(NamedTuple):
    """What one program takes: ``classes`` of a scan for one query and (``wide``) for several, ``columns`` of a row at a time,
    exact ``rows``, ``noise`` numbers."""

    classes: int = 64
    wide: int = 128
    columns: int = 64
    rows: int = 16
    noise: int = 128


INTERPRETED = Tiles(classes=256, wide=256, rows=256, noise=1024)
"""The interpreter pays for each operation, not for its size."""
WARPS = {1: 4, 16: 8, 32: 8}
"""Warps of a program that reads for so many queries."""


def queries_together(batch: int) -> int:
    """Queries that one program reads for: one, or as many as a matrix product takes."""
    return 1 if batch <= 1 else 16 if batch <= 16 else 32


def unit(dim: int, columns: int, product: bool) -> float:
    """How far float32 can carry ``s <w, x> + b``, for each ``s ‖w‖ ‖x‖ + |b|`` of it.

    The terms of one block of columns are added up in any order, four times as far off where a matrix unit truncates them;
    then block by block; then x in float32, the scale, the bias.
    """
    return 1.01 * (columns * (2.0**-22 if product else 2.0**-24) + (-(-dim // columns) + 12) * 2.0**-24)


class Scan:
    """One matrix that is read for all classes: the rows as they are stored, or their codes."""

    def __init__(self, owner: DeviceMatrix, weight: Tensor, lengths: Tensor, scale: Any = None, error: Any = None) -> None:
        self.owner, self.weight, self.scale = owner, weight, scale
        self.bytes = weight.shape[1] * weight.element_size() + (0 if scale is None else 8)
        self.slacks, self.facts = {}, {}
        for product in (False, True):
            off = unit(weight.shape[1], owner.tiles.columns, product)
            wide = lengths.double() * off if error is None else lengths.double() * off + error.double() * (1 + off)
            self.slacks[product] = rounded_up(wide)
            self.facts[product] = owner.tensor(np.array([off, owner.steepest, 1.0]))

    def __call__(self, call: Any, *, sample: bool = False) -> tuple[Tensor, Tensor]:
        """``high [batch, vocab]`` float32: upper ends of ``z``, or of ``f(z) / T + gumbel`` for a ``sample``; ``sums [batch,
        tiles, 3]`` float64: a shift, and the sums of ``exp(f(z) / T)`` over it by estimates and by upper ends."""
        owner, torch, batch = self.owner, self.owner.torch, call.batch
        block = queries_together(batch)
        product = block > 1
        classes = owner.tiles.wide if product and not self.widened(call.x) else owner.tiles.classes
        tiles = -(-owner.vocab // classes)
        high = torch.empty((batch, owner.vocab), dtype=torch.float32, device=owner.device)
        sums = torch.empty((batch, tiles, 3), dtype=torch.float64, device=owner.device)
        if batch:
            owner.kernels.scan[(-(-batch // block), tiles)](
                self.weight, owner.one if self.scale is None else self.scale, owner.offset, self.slacks[product],
                call.x, call.length, owner.one if call.mask is None else call.mask, owner.link, self.facts[product], call.heat,
                call.numbers, high, sums, owner.vocab, owner.dim, batch, tiles,
                0 if call.mask is None or len(call.mask) == 1 else owner.vocab,
                SCALED=self.scale is not None, BIAS=owner.bias is not None, MASKED=call.mask is not None, KIND=owner.kind,
                SAMPLE=sample, PRODUCT=product, WIDEN=self.widened(call.x),
                BLOCK_V=classes, BLOCK_D=owner.tiles.columns, BLOCK_B=block, num_warps=WARPS[block],
            )  # fmt: skip
        return high, sums

    def widened(self, x: Tensor) -> bool:
        """Whether products need float32: not where x has 16 bits and so have the rows, or codes, which both types hold. (The
        interpreter takes bfloat16 for bits.)"""
        torch = self.owner.torch
        native = (torch.float16,) if self.owner.tiles is INTERPRETED else (torch.float16, torch.bfloat16)
        return x.dtype not in native or self.weight.dtype not in (x.dtype, torch.int8)


class DeviceMatrix:
    """The layer's rows where they are, or copied to the device; ``with_codes``: and their int8 codes."""

    def __init__(self, layer: Layer, device: str, *, with_codes: bool = False) -> None:
        self.torch, self.device = place_of(device)
        self.kernels = importlib.import_module("headlong.engines.device.kernels")
        self.tiles = INTERPRETED if device == INTERPRETER else Tiles()
        self.layer, self.vocab, self.dim, link = layer, layer.vocab, layer.dim, layer.link
        there = layer.resident
        self.weight = self.tensor(np.asarray(layer.weight)) if there is None else there.to(self.device).contiguous()
        self.bias = None if layer.bias is None else self.tensor(layer.bias)
        self.one = self.tensor(np.ones(1, np.float32))
        self.offset = self.one if self.bias is None else self.bias
        lowered = link.lowered()
        self.kind, self.steepest = FORMS.index(lowered[0]), link.steepest * (1 + 2.0**-20)
        self.link = self.tensor(_link_numbers(lowered))
        lengths = self._lengths()
        self.longest, self.largest = float(lengths.max()), 0.0 if self.bias is None else float(self.bias.abs().max())
        self.rows = Scan(self, self.weight, lengths)
        self.row_bytes = self.rows.bytes
        found = coded(self.torch, self.weight) if with_codes else None
        self.codes = None if found is None else Scan(self, found.codes, lengths, found.scale, found.error)

    def tensor(self, array: Any) -> Tensor:
        return tensor_of(array, self.torch, self.device)

    def _lengths(self) -> Tensor:
        torch, parts = self.torch, self.weight.split(max(1, AT_ONCE // self.dim))
        found = torch.cat([rounded_up(torch.linalg.vector_norm(part.double(), dim=1)) for part in parts])
        if not found.isfinite().all():
            row = int((~found.isfinite()).nonzero()[0, 0])
            raise NonFiniteError(f"weight row {row} holds NaN or infinity, or is too long for float32; repair or rescale it")
        return found

    def exact(self, call: Any, ids: Tensor) -> Tensor:
        """Logits ``[batch, m]`` in float64 of ``ids [batch or 1, m]`` int64; -1: -inf."""
        return self._each(self.kernels.exact, self.tiles.rows, call, ids)

    def noise(self, call: Any, ids: Tensor) -> Tensor:
        """Gumbels ``[batch, m]`` of ``ids [batch or 1, m]``."""
        return self._each(self.kernels.noise, self.tiles.noise, call, ids)

    def _each(self, kernel: Any, block: int, call: Any, ids: Tensor) -> Tensor:
        (rows, count), torch = ids.shape, self.torch
        out = torch.empty((call.batch, count), dtype=torch.float64, device=self.device)
        if not (call.batch and count):
            return out
        ids, stride = ids.contiguous(), count if rows > 1 or call.batch == 1 else 0
        if kernel is self.kernels.noise:
            kernel[(call.batch, -(-count // block))](call.numbers, ids, out, count, stride, BLOCK=block)
        else:
            kernel[(call.batch, -(-count // block))](
                self.weight, self.offset, call.wide, ids, out, self.dim, count, stride,
                BIAS=self.bias is not None, ROWS=block, BLOCK_D=self.tiles.columns,
            )  # fmt: skip
        return out

    def linked(self, logits: Tensor) -> Tensor:
        """f of float64 logits; -inf, a class that is not there, stays."""
        torch, link = self.torch, self.link
        z = torch.where(logits > -math.inf, logits, 0.0)
        if FORMS[self.kind] == "affine":
            f = z * link[0] + link[1]
        elif FORMS[self.kind] == "softcap":
            f = link[0] * torch.tanh(z / link[0])
        else:
            start, step, left, right, cells = link[:5]
            cell = ((z - start) / step).nan_to_num().floor().clamp(min=0.0).minimum(cells - 1)
            low, high = (link[5 + more + cell.long()] for more in (0, 1))
            f = low + (z - (start + step * cell)) * ((high - low) / step)
            f = torch.where(z < start, low + (z - start) * left, f)
            end = start + step * cells
            f = torch.where(z > end, high + (z - end) * right, f)
        return torch.where(logits == -math.inf, logits, f)

    def rounding(self, call: Any) -> Tensor:
        """How far the float64 logit of any class can be from the real number, ``[batch]``."""
        return (self.dim + 4) * UNIT * (self.longest * call.length.double() + self.largest)

    def threshold(self, call: Any, worst: Tensor, *, sample: bool) -> Tensor:
        """What an upper end has to reach, as float32: ``worst``, less what float64 can have added to both."""
        slack = 2 * self.rounding(call)
        if sample:
            link = self.layer.link
            size = link.offset + link.steepest * (self.longest * call.length.double() + self.largest)
            slack = (slack * link.steepest + 8 * LINK_ROUNDING * size) / call.heat + 64 * LINK_ROUNDING
        low = worst - slack
        return self.torch.where(low.isfinite(), low - low.abs() * 2.0**-22 - 1e-37, low).float()

    def normaliser(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """``(lse, error) [batch]`` of a scan. With radii r the true sum is at most the one by upper ends; and it is at least
        ``Σ p exp(-r)`` of the one by estimates, which by Jensen is as near: ``-log Σ p exp(-r) <= Σ p r <= log Σ p exp(r)``."""
        torch = self.torch
        lse, top = (torch.logsumexp(sums[:, :, 0] + sums[:, :, end].log(), dim=1) for end in (1, 2))
        error = top - lse + 2 * EXP32 + 2 * lowering_error(self.layer.link) + lse.abs() * 2.0**-40
        return lse, torch.where(lse > -math.inf, error.nan_to_num(nan=math.inf), 0.0)

    def exact_error(self, call: Any, lse: Tensor) -> Tensor:
        """What float64 can have added to a normaliser of exact rows."""
        link = self.layer.link
        size = link.steepest * (self.longest * call.length.double() + self.largest) + 2 * link.offset
        logits = link.steepest * self.rounding(call) + 2 * lowering_error(link)
        return logits + (size + lse.abs().nan_to_num(posinf=0.0)) * 4 * LINK_ROUNDING + (self.vocab + 16) * UNIT


def _link_numbers(lowered: Any) -> Any:
    if lowered[0] != "table":
        return np.array(lowered[1:3], np.float64)
    _, start, step, values, left, right, _ = lowered
    return np.concatenate([np.array([start, step, left, right, len(values) - 1.0]), values])
