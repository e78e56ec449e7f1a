"""A layer on a device, and what is read there: a scan of its rows or its codes, exact rows, Gumbels, the link.

    matrix.rows(call)   ->  upper ends of all classes [batch, vocab], sums of exponentials    (matrix.codes(call): the same)
    matrix.exact(call, ids)  ->  float64 logits [batch, m]
    matrix.keys(call, logits)  ->  f(logits) / T,  and with ids=: their Gumbels

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
    """What one program takes: ``classes`` of a scan, ``columns`` of a row at a time, exact ``rows`` and
    columns (``wide``) of them, ``keys``, ``tiles`` of a row's facts, ``group`` tiles to search for candidates, ``weighed``
    classes at a time."""

    classes: int = 64
    columns: int = 64
    rows: int = 16
    wide: int = 128
    keys: int = 128
    tiles: int = 1024
    group: int = 32
    weighed: int = 256


INTERPRETED = Tiles(classes=256, rows=256, wide=64, keys=1024)
"""The interpreter pays for each operation, not for its size."""


def shape_of(batch: int, widened: bool, sample: bool) -> tuple[int, int]:
    """Queries that a program of a scan reads for, one or as many as a matrix product takes, and blocks of columns on their way
    at once: as it was fastest on an H200."""
    queries = 1 if batch <= 1 else 16 if batch <= 16 else 64 if widened and not sample else 32
    return queries, 4 if queries > 1 and not (widened or sample) else 3


def unit(dim: int, columns: int, product: bool, widened: bool = False) -> float:
    """How far float32 can carry ``s <w, x> + b``, for each ``s ‖w‖ ‖x‖ + |b|`` of it.

    The terms of one block of columns are added up in any order, four times as far off where a matrix unit truncates them;
    then block by block (for one query the other way round); then x in float32, the scale, the bias. Where float32 is multiplied
    as halves of 11 bits (``widened``), the product of two lower halves and what is cut off them is left out: 3 times 2^-20.
    """
    cut = 3 * 2.0**-20 if widened else 0.0
    return 1.01 * (columns * (2.0**-22 if product else 2.0**-24) + cut + (-(-dim // columns) + 12) * 2.0**-24)


class Read(NamedTuple):
    """What a scan leaves: ``high [batch, vocab]``, ``exponents`` likewise where asked for, ``facts [5, batch, tiles]`` of tiles
    of ``classes``; ``bytes`` a query; whether it was of ``every`` stored row, and asked for the ``mass``."""

    high: Tensor
    exponents: Tensor
    facts: Tensor
    classes: int
    bytes: float
    every: bool
    mass: bool

    @property
    def tiles(self) -> int:
        return int(self.facts.shape[2])


class Scan:
    """One matrix that is read for all classes: the rows as they are stored, or their codes."""

    def __init__(self, owner: DeviceMatrix, weight: Tensor, lengths: Tensor, scale: Any = None, error: Any = None) -> None:
        self.owner, self.weight, self.scale = owner, weight, scale
        self.bytes = weight.shape[1] * weight.element_size() + (0 if scale is None else 8)
        self.slacks, self.facts = {}, {}
        dim, link = weight.shape[1], owner.layer.link.lowered()
        narrow = owner.tiles.columns
        self.columns = 2 * narrow if scale is not None and dim % (2 * narrow) == 0 else narrow
        bent = link[1] * 2.0**-20 if link[0] == "softcap" else 0.0
        for form in ((False, False), (True, False), (True, True)):
            off = unit(dim, narrow if form[0] else self.columns, *form)
            wide = lengths.double() * off if error is None else lengths.double() * off + error.double() * (1 + off)
            self.slacks[form] = rounded_up(wide + math.sqrt(dim) * 2.0**-124)  # numbers below the smallest may count as zeros
            self.facts[form] = owner.tensor(np.array([off, owner.steepest, 1.0, bent]))

    def __call__(self, call: Any, *, sample: bool = False, mass: bool = True) -> Read:
        """``high``: upper ends of ``z``, or of ``f(z) / T + gumbel`` for a ``sample``; ``mass``, facts: see the kernel."""
        owner, torch, batch, widened = self.owner, self.owner.torch, call.batch, self.widened(call.narrow)
        (queries, stages), classes = shape_of(batch, widened, sample), owner.tiles.classes
        product = queries > 1
        tiles, form = -(-owner.vocab // classes), (product, product and widened)
        high = torch.empty((batch, owner.vocab), dtype=torch.float32, device=owner.device)
        exponents = torch.empty_like(high) if sample and mass else high
        facts = torch.empty((5, batch, tiles), dtype=torch.float32, device=owner.device)
        if batch:
            owner.kernels.scan[(-(-batch // queries), tiles)](
                self.weight, self.scale, owner.bias, self.slacks[form], call.narrow, call.length, call.mask, owner.link,
                self.facts[form], call.heat, call.numbers, high, exponents, facts, owner.vocab, owner.dim, batch,
                call.mask_stride, KIND=owner.kind, SAMPLE=sample, MASS=mass, FOURS=call.fours, WIDEN=widened,
                BLOCK_V=classes, BLOCK_D=owner.tiles.columns if product else self.columns, BLOCK_B=queries, STAGES=stages,
            )  # fmt: skip
        each = owner.vocab * self.bytes / min(max(1, batch), queries)
        return Read(high, exponents, facts, classes, each, self.scale is None, mass)

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
        self.weight = self.tensor(layer.weight) if there is None else there.to(self.device).contiguous()
        self.bias = None if layer.bias is None else self.tensor(layer.bias)
        self.cold = self.tensor(np.ones(1))
        lowered = link.lowered()
        self.kind, self.steepest = FORMS.index(lowered[0]), link.steepest * (1 + 2.0**-20)
        self.link = self.tensor(_link_numbers(lowered))
        self.more = self.tensor(np.array([2 * EXP32 + 2 * lowering_error(link)]))
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

    def merged(self, read: Read, call: Any, k: int, mass: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``lse, error [batch]`` of a scan (anything without ``mass``), the ``bar`` of the k best, and a ``count`` of zero."""
        torch, batch = self.torch, call.batch
        lse, error = torch.empty((2, batch), dtype=torch.float64, device=self.device)
        bar = torch.empty(batch, dtype=torch.float32, device=self.device)
        count = torch.empty(batch, dtype=torch.int32, device=self.device)
        if batch:
            self.kernels.merge[(batch,)](
                read.facts, call.flags, self.link, call.heat, self.more, lse, error, bar, count, batch, read.tiles, k,
                KIND=self.kind, MASS=mass, BLOCK=self.tiles.tiles,
            )  # fmt: skip
        return lse, error, bar, count

    def collected(self, read: Read, call: Any, bar: Tensor, count: Tensor, room: int) -> Tensor:
        """``ids [batch, room]`` of the classes that reach the bar, ``count`` of them in any order, then anything."""
        torch, group = self.torch, self.tiles.group if call.batch > 16 else self.tiles.group // 4  # to fill the GPU
        ids = torch.empty((call.batch, room), dtype=torch.int64, device=self.device)
        if call.batch and room:
            self.kernels.collect[(call.batch, -(-read.tiles // group))](
                read.high, read.facts, bar, count, ids, self.vocab, read.tiles, room, BLOCK_V=read.classes, GROUP=group
            )
        return ids

    def exact(self, call: Any, ids: Tensor, *, sample: bool = False, counts: Any = None) -> tuple[Tensor, Tensor]:
        """Logits ``[batch, m]`` in float64 of ``ids [batch or 1, m]`` int64, and their keys: ``f(z) / T + gumbel`` for a
        ``sample``, else the logits. -inf for -1 and for what the mask takes out. ``counts [batch]``: so many are there."""
        (rows, count), torch, block = ids.shape, self.torch, self.tiles.rows
        stride = count if rows > 1 or call.batch == 1 else 0
        logits = torch.empty((call.batch, count), dtype=torch.float64, device=self.device)
        keys = torch.empty_like(logits) if sample else logits
        if call.batch and count:
            self.kernels.exact[(call.batch, -(-count // block))](
                self.weight, self.bias, call.x, ids.contiguous(), counts, call.mask, self.link, call.heat, call.numbers,
                logits, keys, self.dim, count, stride, call.mask_stride,
                KIND=self.kind, SAMPLE=sample, ROWS=block, BLOCK_D=self.tiles.wide,
            )  # fmt: skip
        return logits, keys

    def ordered(
        self, call: Any, ids: Tensor, logits: Tensor, keys: Tensor, counts: Tensor, error: Tensor, k: int,
        *, eps: float, bytes_each: float, every: bool,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """``ids, logits, keys [batch, k]`` of the largest keys, equal ones by id, of the first ``counts`` of each row; ``rows,
        read [batch]``, what that cost beside ``bytes_each``; ``sure``: there was room for all; ``open``: there was not, or
        ``error`` is above ``eps``; ``every``."""
        torch, (batch, room), block = self.torch, ids.shape, 64
        best = torch.empty((batch, k), dtype=torch.int64, device=self.device)
        of_best = torch.empty((2, batch, k), dtype=torch.float64, device=self.device)
        rows, flags = best.new_empty(batch), torch.empty((3, batch), dtype=torch.int8, device=self.device)
        read = of_best.new_empty(batch)
        if batch:
            self.kernels.order[(batch, max(1, -(-room // block)))](
                ids, logits, keys, counts, call.flags, error, best, of_best[0], of_best[1], rows, read, flags, room, k,
                self.vocab, self.row_bytes, bytes_each, eps * (1 - 2.0**-23), EVERY=every, BLOCK=block,
            )  # fmt: skip
        return best, of_best[0], of_best[1], rows, read, *flags.view(torch.bool)

    def picked(self, call: Any, read: Read, tried: Any, top_p: float, told: Any = None) -> tuple[Tensor, ...]:
        """``ids, logits, keys [batch, 1]`` of the first of the classes ``tried`` that is in the nucleus, ``flags [2, batch]``:
        it is proved, it is open. By the ends of a scan; given what these ``told``, those that are open in float64."""
        torch, (batch, k), tiles, exact = self.torch, tried.ids.shape, self.tiles, told is not None
        new, keys = tried.ids.new_empty((batch, 1)), tried.keys.new_empty((2, batch, 1))
        kept: tuple[Tensor, ...] = told or (new, *keys, tried.sure.new_empty((2, batch)))
        rows, many, share = tiles.rows if exact else tiles.weighed, max(2, 1 << (k - 1).bit_length()), float(np.float32(top_p))
        blocks = -(-self.vocab // (4 * tiles.weighed))
        sums = torch.empty((batch, blocks, 2, many), dtype=torch.float64, device=self.device)
        if batch:
            self.kernels.weigh[(batch, blocks)](
                self.weight, self.bias, call.x, call.mask, read.exponents, read.facts[4], tried.ids, tried.logits, tried.lse,
                self.link, call.heat, kept[3][1], sums, self.vocab, self.dim, read.tiles, k, call.mask_stride, share,
                top_p - share, EXACT=exact, KIND=self.kind, CLASSES=read.classes, ROWS=rows,
                STEPS=4 * tiles.weighed // rows, TRIED=many, BLOCK_D=tiles.wide,
            )  # fmt: skip
            self.kernels.pick[(batch,)](
                sums, tried.ids, tried.logits, tried.keys, call.flags, tried.sure, *kept, tried.rows, tried.read, tried.whole,
                blocks, k, self.vocab, self.row_bytes, EXACT=exact, TRIED=many, BLOCK=32,
            )  # fmt: skip
        return kept

    def said(self, call: Any, logits: Tensor, lse: Tensor, error: Tensor, *, single: bool) -> tuple[Tensor, Tensor, Tensor]:
        """``log_probs [batch, m], lse, error [batch]``, in float32 with its rounding in the error if ``single``; NaN and
        infinity for rows that are no numbers."""
        torch, (batch, count) = self.torch, logits.shape
        kind = torch.float32 if single else torch.float64
        log_probs = torch.empty((batch, count), dtype=kind, device=self.device)
        both = torch.empty((2, batch), dtype=kind, device=self.device)
        if batch:
            self.kernels.said[(batch,)](
                logits, lse, error, call.flags, self.link, log_probs, both[0], both[1], count,
                KIND=self.kind, SINGLE=single, BLOCK=128,
            )  # fmt: skip
        return log_probs, both[0], both[1]

    def keys(self, call: Any, logits: Tensor, ids: Any = None) -> Tensor:
        """``f(z) / T [batch, m]`` of float64 logits, and with ``ids [batch or 1, m]`` their Gumbels; -inf stays."""
        (batch, count), block = logits.shape, self.tiles.keys
        out = self.torch.empty_like(logits)
        if batch and count:
            stride = 0 if ids is None or len(ids) < batch else count
            self.kernels.keys[(batch, -(-count // block))](
                call.numbers, ids if ids is None else ids.contiguous(), logits.contiguous(), self.link, call.heat, out,
                count, stride, KIND=self.kind, SAMPLE=ids is not None, BLOCK=block,
            )  # fmt: skip
        return out

    def rounding(self, call: Any) -> Tensor:
        """How far the float64 logit of any class can be from the real number, ``[batch]``."""
        return (self.dim + 4) * UNIT * (self.longest * call.length.double() + self.largest)

    def threshold(self, call: Any, worst: Tensor) -> Tensor:
        """What an upper end has to reach, as float32: ``worst``, less what float64 can have added to both."""
        low = worst - 2 * self.rounding(call)
        return self.torch.where(low.isfinite(), low - low.abs() * 2.0**-22 - 1e-37, low).float()

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
