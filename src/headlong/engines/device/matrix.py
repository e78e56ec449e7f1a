"""A layer on a device, and what is read there: a scan of its rows or its codes, exact rows, the link and the noise.

    matrix.rows(call)   ->  upper ends of all classes [batch, vocab], sums of exponentials    (matrix.codes(call): the same)
    matrix.exact(call, ids)  ->  float64 logits [batch, m]          matrix.keys(call, logits)  ->  f(logits) / T

Every shape follows from those of the arguments, and nothing waits for the host. A row's int8 codes depend on that row alone::

    s_i = max_j |w_ij| / 127 (float32)      c_i = round(w_i / s_i)      e_i = ‖w_i - s_i c_i‖, rounded up

    |<w_i, x> - s_i <c_i, x>|  =  |<w_i - s_i c_i, x>|  <=  e_i ‖x‖                          (Cauchy-Schwarz)

The query is not coded. What is added for the arithmetic of ``s_i <c_i, x>`` in float32 is that of any row, of length
``‖s_i c_i‖ <= ‖w_i‖ + e_i``: see :func:`unit`.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple

import numpy as np

from headlong.dtypes import UNIT
from headlong.engines.device.memory import INTERPRETER, Tensor, place_of, rounded_up, tensor_of
from headlong.errors import NonFiniteError
from headlong.layers.matrix import Layer
from headlong.links import ROUNDING as LINK_ROUNDING
from headlong.links import lowering_error
from headlong.links.base import FORMS

AT_ONCE = 1 << 24
"""Weights, or logits of all classes, that are held in float64 at once."""
EXP32 = 2.0**-15
"""What float32 exponentials and their sum over one tile can take from a log-normaliser, in nats: a few times 2^-18."""


class Tiles(NamedTuple):
    """What one program takes."""

    classes: int = 64  # of a scan
    columns: int = 64  # of their rows at a time
    rows: int = 16  # in float64
    wide: int = 128  # columns of those
    keys: int = 128
    tiles: int = 1024  # whose facts are merged
    group: int = 32  # tiles that are searched for candidates
    weighed: int = 256  # classes


INTERPRETED = Tiles(classes=256, rows=256, wide=64, keys=1024)
"""The interpreter pays for each operation, not for its size."""


def unit(dim: int, columns: int, product: bool, widened: bool = False) -> float:
    """How far float32 can carry ``s <w, x> + b``, for each ``s ‖w‖ ‖x‖ + |b|`` of it.

    The terms of one block of columns are added up in any order, four times as far off where a matrix unit truncates them;
    then block by block (for one query the other way round); then x in float32, the scale, the bias. Where float32 is multiplied
    as halves of 11 bits (``widened``), the product of two lower halves and what is cut off them is left out: 3 times 2^-20.
    """
    cut = 3 * 2.0**-20 if widened else 0.0
    return 1.01 * (columns * (2.0**-22 if product else 2.0**-24) + cut + (-(-dim // columns) + 12) * 2.0**-24)


class Codes(NamedTuple):
    """``codes [vocab, dim]`` int8, ``scale, error [vocab]`` float32: a row is within ``error`` of ``scale * codes``."""

    codes: Tensor
    scale: Tensor
    error: Tensor


def coded(torch: Tensor, weight: Tensor) -> Codes:
    """The codes of ``weight [vocab, dim]``, where it lies. A row of zeros, or one too small for a scale, is all error."""
    parts = []
    for rows in weight.split(max(1, AT_ONCE // weight.shape[1])):
        wide = rows.double()
        scale = (wide.abs().amax(dim=1) / 127).float()
        step = scale.double()[:, None]
        whole = torch.where(step > 0, wide / step, 0.0).clamp(-127, 127).round()
        # float64's own rounding: of each product, relative to the row
        error = torch.linalg.vector_norm(wide - step * whole, dim=1) + 1e-14 * torch.linalg.vector_norm(wide, dim=1)
        parts.append(Codes(whole.to(torch.int8), scale, rounded_up(error)))
    return Codes(*(torch.cat(part) for part in zip(*parts, strict=True)))


class Read(NamedTuple):
    """What a scan leaves: ``high [batch, vocab]``, ``exponents`` likewise where asked for, ``facts [5, batch, tiles]``;
    ``bytes`` a query; whether it was of ``every`` stored row, and asked for the ``mass``."""

    high: Tensor
    exponents: Tensor | None
    facts: Tensor
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
        owner, batch, classes, x = self.owner, call.batch, self.owner.tiles.classes, call.narrow
        # The interpreter takes bfloat16 for bits.
        native = (owner.torch.float16,) if owner.tiles is INTERPRETED else (owner.torch.float16, owner.torch.bfloat16)
        # Products need float32, but where x has 16 bits and so have the rows, or codes, which both types hold.
        widened = x.dtype not in native or self.weight.dtype not in (x.dtype, owner.torch.int8)
        # Queries that a program reads for, and blocks of columns on their way at once: as it was fastest on an H200.
        queries = 1 if batch <= 1 else 16 if batch <= 16 else 64 if widened and not sample else 32
        product, stages = queries > 1, 4 if queries > 1 and not (widened or sample) else 3
        tiles, form = -(-owner.vocab // classes), (product, product and widened)
        high, facts = owner.new(batch, owner.vocab, kind="float32"), owner.new(5, batch, tiles, kind="float32")
        exponents = owner.torch.empty_like(high) if sample and mass else None
        owner.launch(
            "scan", (-(-batch // queries), tiles), self.weight, self.scale, owner.bias, self.slacks[form], x, call.length,
            call.mask, owner.link, self.facts[form], call.heat, call.numbers if sample else None, high, exponents,
            facts, owner.vocab, owner.dim, batch, call.mask_stride, KIND=owner.kind, MASS=mass, FOURS=call.fours, WIDEN=widened,
            BLOCK_V=classes, BLOCK_D=owner.tiles.columns if product else self.columns, BLOCK_B=queries, STAGES=stages,
        )  # fmt: skip
        each = owner.vocab * self.bytes / min(max(1, batch), queries)
        return Read(high, exponents, facts, each, self.scale is None, mass)


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
        lowered: Any = link.lowered()
        self.kind, self.steepest = FORMS.index(lowered[0]), link.steepest * (1 + 2.0**-20)
        ends = [*lowered[4:6], len(lowered[3]) - 1.0, *lowered[3]] if lowered[0] == "table" else []
        self.link = self.tensor(np.array([*lowered[1:3], *ends], np.float64))
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

    def new(self, *shape: int, kind: str = "float64") -> Tensor:
        return self.torch.empty(shape, dtype=getattr(self.torch, kind), device=self.device)

    def launch(self, kernel: str, grid: tuple[int, ...], *given: Any, **fixed: Any) -> None:
        """Nothing, where there is nothing to do."""
        if all(grid):
            getattr(self.kernels, kernel)[grid](*given, **fixed)

    def merged(self, read: Read, call: Any, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``lse, error [batch]`` of a scan (anything without the mass), the ``bar`` of the k best, and a ``count`` of zero."""
        batch, (lse, error) = call.batch, self.new(2, call.batch)
        bar, count = self.new(batch, kind="float32"), self.new(batch, kind="int32")
        self.launch(
            "merge", (batch,), read.facts, call.flags, self.link, call.heat, self.more, lse, error, bar, count, batch,
            read.tiles, k, KIND=self.kind, MASS=read.mass, BLOCK=self.tiles.tiles,
        )  # fmt: skip
        return lse, error, bar, count

    def exact(self, call: Any, ids: Any = None, *, sample: bool = False, counts: Any = None) -> tuple[Tensor, Tensor]:
        """Logits ``[batch, m]`` in float64 of ``ids [batch, m]`` (None: of all classes), and their keys: ``f(z) / T + gumbel``
        for a ``sample``, else the logits. -inf for -1 and for what the mask takes out. ``counts [batch]``: so many count."""
        count, block = self.vocab if ids is None else ids.shape[1], self.tiles.rows
        logits = self.new(call.batch, count)
        keys = self.torch.empty_like(logits) if sample else None
        self.launch(
            "exact", (call.batch, -(-count // block)), self.weight, self.bias, call.x,
            ids if ids is None else ids.contiguous(), counts, call.mask, self.link, call.heat,
            call.numbers if sample else None, logits, keys, self.dim, count, call.mask_stride,
            KIND=self.kind, ROWS=block, BLOCK_D=self.tiles.wide,
        )  # fmt: skip
        return logits, logits if keys is None else keys

    def keys(self, call: Any, logits: Tensor, ids: Any = None, *, sample: bool = False) -> Tensor:
        """``f(z) / T [batch, m]`` of float64 logits, for a ``sample`` with the Gumbels of ``ids`` (None: of all classes)."""
        (batch, count), block, out = logits.shape, self.tiles.keys, self.torch.empty_like(logits)
        self.launch(
            "exact", (batch, -(-count // block)), None, None, None, ids if ids is None else ids.contiguous(), None, None,
            self.link, call.heat, call.numbers if sample else None, logits.contiguous(), out, 0, count, 0,
            KIND=self.kind, ROWS=block, BLOCK_D=1,
        )  # fmt: skip
        return out

    def best(self, read: Read, call: Any, k: int, room: int, eps: float, sample: bool) -> tuple[Tensor, ...]:
        """What ``Found`` has: the k best of a scan with ``room`` for candidates; open where that was too little, or
        where the error is above ``eps``."""
        lse, error, bar, counts = self.merged(read, call, k)
        batch, group = call.batch, self.tiles.group if call.batch > 16 else self.tiles.group // 4  # to fill the GPU
        found, best = self.new(batch, room, kind="int64"), self.new(batch, k, kind="int64")
        self.launch(
            "collect", (batch if room else 0, -(-read.tiles // group)), read.high, read.facts, bar, counts, found, self.vocab,
            read.tiles, room, BLOCK_V=self.tiles.classes, GROUP=group,
        )  # fmt: skip
        rows, cost, flags = self.new(batch, kind="int64"), self.new(batch), self.new(3, batch, kind="int8")
        logits, keys = self.new(2, batch, k)
        self.launch(
            "order", (batch, max(1, -(-room // 64))), found, *self.exact(call, found, sample=sample, counts=counts), counts,
            call.flags, error, best, logits, keys, rows, cost, flags, room, k, self.vocab, self.row_bytes, read.bytes,
            eps * (1 - 2.0**-23), EVERY=read.every, BLOCK=64,
        )  # fmt: skip
        return best, logits, keys, lse, error, rows, cost, *flags.view(self.torch.bool)

    def picked(self, call: Any, read: Read, tried: Any, top_p: float, told: Any = None) -> tuple[Tensor, ...]:
        """``ids, logits, keys [batch, 1]`` of the first of the classes ``tried`` that is in the nucleus, ``flags [2, batch]``:
        it is proved, it is open. By the ends of a scan; given what these ``told``, those that are open in float64."""
        (batch, k), tiles, exact = tried.ids.shape, self.tiles, told is not None
        if told is None:
            told = self.new(batch, 1, kind="int64"), *self.new(2, batch, 1), self.new(2, batch, kind="bool")
        rows, many, share = tiles.rows if exact else tiles.weighed, max(2, 1 << (k - 1).bit_length()), float(np.float32(top_p))
        blocks = -(-self.vocab // (4 * tiles.weighed))
        sums = self.new(batch, blocks, 2, many)
        self.launch(
            "weigh", (batch, blocks), self.weight, self.bias, call.x, call.mask, read.exponents, read.facts[4], tried.ids,
            tried.logits, tried.lse, self.link, call.heat, told[3][1], sums, self.vocab, self.dim, read.tiles, k,
            call.mask_stride, share, top_p - share, EXACT=exact, KIND=self.kind, CLASSES=tiles.classes, ROWS=rows,
            STEPS=4 * tiles.weighed // rows, TRIED=many, BLOCK_D=tiles.wide,
        )  # fmt: skip
        self.launch(
            "pick", (batch,), sums, tried.ids, tried.logits, tried.keys, call.flags, tried.sure, *told, tried.rows, tried.read,
            tried.whole, blocks, k, self.vocab, self.row_bytes, EXACT=exact, TRIED=many, BLOCK=32,
        )  # fmt: skip
        return tuple(told)

    def said(self, call: Any, logits: Tensor, lse: Tensor, error: Tensor, *, single: bool) -> tuple[Tensor, Tensor, Tensor]:
        """``log_probs [batch, m], lse, error [batch]``, in float32 with its rounding in the error if ``single``; NaN and
        infinity for rows that are no numbers."""
        (batch, count), kind = logits.shape, "float32" if single else "float64"
        log_probs, both = self.new(batch, count, kind=kind), self.new(2, batch, kind=kind)
        self.launch(
            "said", (batch,), logits, lse, error, call.flags, self.link, log_probs, *both, count,
            KIND=self.kind, SINGLE=single, BLOCK=128,
        )  # fmt: skip
        return log_probs, both[0], both[1]

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
