"""A layer on a device, and what is read there: a scan of its rows, exact rows, the link and the noise.

    matrix.scan(call)  ->  upper ends of all classes [batch, vocab], sums of exponentials      matrix.best(...)  ->  the k best
    matrix.exact(call, ids)  ->  float64 logits [batch, m], keys

Every shape follows from those of the arguments, and nothing waits for the host. How far a scan's float32 may be off: see
:func:`unit`.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple

import numpy as np

from headlong.dtypes import UNIT
from headlong.engines.device.memory import INTERPRETER, Call, Tensor, place_of, rounded_up, tensor_of
from headlong.errors import NonFiniteError
from headlong.layers.matrix import Layer
from headlong.links import ROUNDING as LINK_ROUNDING
from headlong.links import lowering_error

AT_ONCE = 1 << 24
"""Weights, or logits of all classes, that are held in float64 at once."""
EXP32 = 2.0**-15
"""What float32 exponentials and their sum over one tile can take from a log-normaliser, in nats: a few times 2^-18."""


class Tiles(NamedTuple):
    """What one program takes."""

    classes: int = 64  # of a scan
    columns: int = 64  # of their rows at a time
    rows: int = 16  # in float64


INTERPRETED = Tiles(classes=256, rows=256)
"""The interpreter pays for each operation, not for its size."""


def unit(dim: int, columns: int, product: bool, widened: bool = False) -> float:
    """How far float32 can carry ``<w, x> + b``, for each ``‖w‖ ‖x‖ + |b|`` of it.

    The terms of one block of columns are added up in any order, four times as far off where a matrix unit truncates them;
    then block by block (for one query the other way round); then x in float32 and the bias. Where float32 is multiplied
    as halves of 11 bits (``widened``), the product of two lower halves and what is cut off them is left out: 3 times 2^-20.
    """
    cut = 3 * 2.0**-20 if widened else 0.0
    return 1.01 * (columns * (2.0**-22 if product else 2.0**-24) + cut + (-(-dim // columns) + 12) * 2.0**-24)


class Rows(NamedTuple):
    """What kernels see of a matrix: ``weight [vocab, dim]``, ``bias, slack [vocab]`` float32; ``facts`` float64: the
    unit of rounding, the link's steepest slope, 1, the link's rounding, what float32 exponentials and the link's table may add
    to an error; ``bytes`` of a row; and one link, float64: ``affine`` (scale, shift), ``softcap`` (cap, 0) or ``table`` (start,
    step, left, right, cells, values...)."""

    weight: Tensor
    bias: Tensor | None
    slack: Tensor
    facts: Tensor
    vocab: int
    dim: int
    bytes: int
    affine: Tensor | None = None
    softcap: Tensor | None = None
    table: Tensor | None = None


class Read(NamedTuple):
    """What a scan leaves: ``high [batch, vocab]`` float32, upper ends of ``z``, or for a sample of ``f(z) / T + gumbel``;
    ``ends [2, batch, tiles]``: of each tile the largest upper end, the largest lower end; ``masses [3, batch, tiles]``, where
    asked for: a shift, the sum over it of ``exp(f(z) / T)`` by estimates, and how far ``f(z) / T`` can be off; ``exponents
    [batch, vocab]``, where asked for: ``f(z) / T``. (The last two but for an affine map's shift.) ``bytes`` a query."""

    high: Tensor
    ends: Tensor
    masses: Tensor | None
    exponents: Tensor | None
    bytes: float


class Found(NamedTuple):
    """``ids, logits, keys [batch, k]`` in the order of their keys (``z``, or ``f(z) / T + gumbel``), -1 and -inf where there is
    none; ``lse, error [batch]``; ``rows, read``: what it cost; ``sure``: these are the best; ``open``: a row is to be read
    again; ``whole``: all rows were read."""

    ids: Tensor
    logits: Tensor
    keys: Tensor
    lse: Tensor
    error: Tensor
    rows: Tensor
    read: Tensor
    sure: Tensor
    open: Tensor
    whole: Tensor


class DeviceMatrix:
    """The layer's rows where they are, or copied to the device."""

    def __init__(self, layer: Layer, device: str) -> None:
        self.torch, self.device = place_of(device)
        self.kernels = importlib.import_module("headlong.engines.device.kernels")
        self.tiles = INTERPRETED if device == INTERPRETER else Tiles()
        self.layer, self.vocab, self.dim, link = layer, layer.vocab, layer.dim, layer.link
        there = layer.resident
        self.weight = self.tensor(layer.weight) if there is None else there.to(self.device).contiguous()
        self.bias = None if layer.bias is None else self.tensor(layer.bias)
        self.cold = self.tensor(np.ones(2))
        lowered: Any = link.lowered()
        ends = [*lowered[4:6], len(lowered[3]) - 1.0, *lowered[3]] if lowered[0] == "table" else []
        self.link = {lowered[0]: self.tensor(np.array([*lowered[1:3], *ends], np.float64))}
        parts = self.weight.split(max(1, AT_ONCE // self.dim))
        lengths = self.torch.cat([rounded_up(self.torch.linalg.vector_norm(part.double(), dim=1)) for part in parts])
        if not lengths.isfinite().all():
            row = int((~lengths.isfinite()).nonzero()[0, 0])
            raise NonFiniteError(f"weight row {row:,} holds NaN or infinity, or is too long for float32; repair or rescale it")
        self.longest, self.largest = float(lengths.max()), 0.0 if self.bias is None else float(self.bias.abs().max())
        self.stored = self._forms(lengths)
        self.rows = self.stored[False, False]

    def _forms(self, lengths: Tensor) -> dict[tuple[bool, bool], Rows]:
        """What is scanned: by whether matrices are multiplied, and whether in float32."""
        found, link, size = {}, self.layer.link, self.dim * self.weight.element_size()
        bent = float(self.link["softcap"][0]) * 2.0**-20 if "softcap" in self.link else 0.0
        for product, widened in ((False, False), (True, False), (True, True)):
            off = unit(self.dim, self.tiles.columns, product, widened)
            # Numbers below the smallest may count as zeros.
            slack = rounded_up(lengths.double() * off + math.sqrt(self.dim) * 2.0**-124)
            facts = np.array([off, link.steepest * (1 + 2.0**-20), 1.0, bent, 2 * EXP32 + 2 * lowering_error(link)])
            known = self.weight, self.bias, slack, self.tensor(facts), self.vocab, self.dim, size
            found[product, widened] = Rows(*known, **self.link)
        return found

    def tensor(self, array: Any) -> Tensor:
        return tensor_of(array, self.torch, self.device)

    def new(self, *shape: int, kind: str = "float64") -> Tensor:
        return self.torch.empty(shape, dtype=getattr(self.torch, kind), device=self.device)

    def found(self, batch: int, k: int) -> Found:
        """Room for what is found, each part by itself: a kernel is compiled again for one that is not aligned."""
        return Found(
            self.new(batch, k, kind="int64"), self.new(batch, k), self.new(batch, k), self.new(batch), self.new(batch),
            self.new(batch, kind="int64"), self.new(batch), *(self.new(batch, kind="bool") for _ in range(3)),
        )  # fmt: skip

    def launch(self, kernel: str, grid: tuple[int, ...], *given: Any, **fixed: Any) -> None:
        """Nothing, where there is nothing to do."""
        if all(grid):
            getattr(self.kernels, kernel)[grid](*given, **fixed)

    def scan(self, call: Call, *, sample: bool = False, mass: bool = True) -> Read:
        """All classes by their rows; for a ``sample`` with noise."""
        torch, batch, classes, kind = self.torch, len(call.x), self.tiles.classes, call.narrow.dtype
        # The interpreter takes bfloat16 for bits.
        native = (torch.float16,) if self.tiles is INTERPRETED else (torch.float16, torch.bfloat16)
        # Products need float32, but where x has 16 bits and so have the rows.
        widened = kind not in native or self.weight.dtype != kind
        # Queries that a program reads for, and blocks of columns on their way at once: as it was fastest on an H200.
        queries = 1 if batch <= 1 else 16 if batch <= 16 else 64 if widened and not sample else 32
        product, stages = queries > 1, 4 if queries > 1 and not (widened or sample) else 3
        rows, tiles = self.stored[product, product and widened], -(-self.vocab // classes)
        high, ends = self.new(batch, self.vocab, kind="float32"), self.new(2, batch, tiles, kind="float32")
        masses = self.new(3, batch, tiles, kind="float32") if mass else None
        exponents, each = torch.empty_like(high) if sample and mass else None, min(max(1, batch), queries)
        read = Read(high, ends, masses, exponents, self.vocab * rows.bytes / each)
        self.launch(
            "scan", (-(-batch // queries), tiles), rows, call if sample else call._replace(numbers=None), read, batch,
            WIDEN=widened, CLASSES=classes, COLUMNS=self.tiles.columns, QUERIES=queries, STAGES=stages,
        )  # fmt: skip
        return read

    def exact(
        self, call: Call, ids: Tensor = None, *, given: Tensor = None, sample: bool = False, met: Tensor = None
    ) -> tuple[Tensor, Tensor]:
        """Logits ``[batch, m]`` in float64 of ``ids [batch, m]`` (None: of all classes), -inf for -1 and for what the mask
        takes out; ``met [batch]``: so many count. Or those ``given``. And keys: for a ``sample`` ``f(z) / T + gumbel``, else
        ``f(z) / T`` of what is given, or the logits."""
        ids, fresh = ids if ids is None else ids.contiguous(), given is None
        rows = self.tiles.rows if fresh else 8 * self.tiles.rows
        logits = self.new(len(call.x), self.vocab if ids is None else ids.shape[1]) if fresh else given.contiguous()
        keys, count = None if fresh and not sample else self.torch.empty_like(logits), logits.shape[1]
        self.launch(
            "exact", (len(call.x), -(-count // rows)), self.rows, call if sample else call._replace(numbers=None), ids, met,
            logits, keys, count, ROWS=rows, COLUMNS=2 * self.tiles.columns if fresh else 0,
        )  # fmt: skip
        return logits, logits if keys is None else keys

    def best(self, read: Read, call: Call, k: int, room: int, eps: float, sample: bool) -> Found:
        """The k best of a scan with ``room`` for candidates; open where that was too little, or the error is above ``eps``."""
        batch, found = len(call.x), self.found(len(call.x), k)
        ids, met = self.new(batch, room, kind="int64"), self.new(batch, kind="int32")
        self.launch(
            "merge", (batch,), self.rows, call, read, found, ids, met, k, room, eps * (1 - 2.0**-23),
            CLASSES=self.tiles.classes, BLOCK=1024, GROUP=32, num_warps=8,
        )  # fmt: skip
        logits, keys = self.exact(call, ids, sample=sample, met=met)
        self.launch("order", (batch, -(-room // 64)), ids, logits, keys, met, found, room, k, BLOCK=64)
        return found

    def picked(self, call: Call, read: Read, tried: Found, told: Found | None = None) -> Found:
        """The first of the classes ``tried`` that is in the nucleus, ``[batch, 1]``, where that is ``sure``. By the ends of a
        scan; given what these ``told``, those that are open in float64."""
        (batch, k), tiles, exact = tried.ids.shape, self.tiles, told is not None
        if told is None:
            new = self.found(batch, 1)
            told = tried._replace(ids=new.ids, logits=new.logits, keys=new.keys, sure=new.sure, open=new.open)
        many, blocks = max(2, 1 << (k - 1).bit_length()), -(-self.vocab // 1024)
        sums = self.new(batch, blocks, 2, many)
        self.launch(
            "weigh", (batch, blocks), self.rows, call, read, tried, told, sums, k, EXACT=exact, CLASSES=tiles.classes,
            BLOCK=1024, ROWS=tiles.rows if exact else 256, TRIED=many, COLUMNS=2 * tiles.columns,
        )  # fmt: skip
        self.launch("pick", (batch,), self.rows, call, tried, told, sums, blocks, k, EXACT=exact, TRIED=many, BLOCK=32)
        return told

    def said(self, call: Call, found: Found, *, single: bool) -> tuple[Tensor, Tensor, Tensor]:
        """``log_probs [batch, m], lse, error [batch]``, in float32 with its rounding in the error if ``single``; NaN and
        infinity for rows that are no numbers."""
        (batch, count), kind = found.logits.shape, "float32" if single else "float64"
        log_probs, both = self.new(batch, count, kind=kind), self.new(2, batch, kind=kind)
        self.launch("said", (batch,), self.rows, call, found, log_probs, *both, count, BLOCK=128)
        return log_probs, both[0], both[1]

    def rounding(self, call: Call) -> Tensor:
        """How far the float64 logit of any class can be from the real number, ``[batch]``."""
        return (self.dim + 4) * UNIT * (self.longest * call.length.double() + self.largest)

    def exact_error(self, call: Call, lse: Tensor) -> Tensor:
        """What float64 can have added to a normaliser of exact rows."""
        link = self.layer.link
        size = link.steepest * (self.longest * call.length.double() + self.largest) + 2 * link.offset
        logits = link.steepest * self.rounding(call) + 2 * lowering_error(link)
        return logits + (size + lse.abs().nan_to_num(posinf=0.0)) * 4 * LINK_ROUNDING + (self.vocab + 16) * UNIT
