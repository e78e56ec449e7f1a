"""A layer and its plan in a GPU's memory, and the passes over them.

    look         all classes: upper ends, the best few of each tile, the sum of exponentials
    candidates   the k best estimates exactly -> a threshold -> whatever reaches it, exactly, in order
    finish       the queries that this leaves open (a buffer that is full, an error beyond eps), densely in float64

Every shape follows from (batch, k) alone and nothing waits for the host, so a call can be captured in a CUDA graph.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from headlong.dtypes import UNIT
from headlong.engines.device.memory import INTERPRETER, Tensor, place_of, tensor_of
from headlong.engines.device.query import round_up
from headlong.engines.device.records import Call, Finalists, Looked
from headlong.engines.device.tile_sizes import INTERPRETED, TILE_SIZES, WARPS, queries_together
from headlong.layers.matrix import Layer
from headlong.links import ROUNDING as LINK_ROUNDING
from headlong.links import lowering_error
from headlong.links.base import FORMS

EXP32 = 2.0**-15
"""What float32 exponentials and their sum over one tile can take from a log-normaliser, in nats: a few times 2^-18."""
CAPACITY = 1024
"""Candidates kept for each query; more, and the query is finished densely."""
SLOTS = 8
"""Queries that are finished densely side by side: each takes 16 bytes a class of scratch memory."""


class DeviceReader:
    """One matrix on a device: looks at all classes, keeps the candidates, finishes what is open."""

    def __init__(self, layer: Layer, norms: Any, device: str, weight: Tensor | None = None) -> None:
        self.torch, self.device = place_of(device)
        self.finish_kernels = importlib.import_module("headlong.engines.device.kernels.finish")
        self.scan_kernels = importlib.import_module("headlong.engines.device.kernels.scan")
        self.blocks = INTERPRETED if device == INTERPRETER else TILE_SIZES
        self.layer, self.vocab, self.dim = layer, layer.vocab, layer.dim
        self.weight = self.tensor(layer.weight) if weight is None else weight.contiguous()
        self.bias = None if layer.bias is None else self.tensor(layer.bias)
        self.norms = self.tensor(norms)
        lowered = layer.link.lowered()
        self.kind = FORMS.index(lowered[0])
        self.link, self.identity = self.tensor(_link_numbers(lowered)), self.tensor(np.array([1.0, 0.0]))
        self.longest = min(float(norms.max()), math.sqrt(self.dim) * float(np.finfo(np.float32).max))
        self.largest = 0.0 if layer.bias is None else float(np.abs(layer.bias).max())
        self.one = self.tensor(np.ones(1, np.float32))

    always = True
    """Whether every row is read for every query."""

    def cost(self, call: Call, count: Tensor, passed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rows scored and bytes read, ``[batch]``; a block of queries shares what it reads."""
        rows = self.full((call.batch,), self.vocab, "int64")
        return rows, rows * (self.dim * self.layer.weight.itemsize / max(1, min(call.batch, 32)))

    def tensor(self, array: Any) -> Tensor:
        return tensor_of(array, self.torch, self.device)

    def full(self, shape: tuple[int, ...], value: float, kind: str = "float64") -> Tensor:
        return self.torch.full(shape, value, dtype=getattr(self.torch, kind), device=self.device)

    def rounding(self, call: Call) -> Tensor:
        """How far the float64 logit of any class can be from the real number, ``[batch]``."""
        return (self.dim + 4) * UNIT * (self.longest * call.length + self.largest)

    def look(self, call: Call, k: int, *, sample: bool = False, keep: bool = False) -> Looked:
        """Every stored row once for each block of queries, in float32 arithmetic whose rounding is the radius.

        ``keep``: the estimates stay, too, ``[batch, vocab]``.
        """
        batch = call.batch
        block = queries_together(batch)
        product = block > 1
        classes = self.classes(block, call.narrow)
        tiles, best = self.tiles(classes, k)
        looked = self._room(batch, tiles, best, keep=keep)
        self.scan_kernels.scan_rows[(-(-batch // block), tiles)](
            self.weight, self.one if self.bias is None else self.bias, self.norms, call.narrow, round_up(call.length), self.one,
            *self.masked(call), self.steepest, self.link, *call.noise,
            looked.high, looked.estimate, looked.best, looked.best_ids, looked.mass,
            self.vocab, self.dim, batch, tiles, best, unit(self.dim, self.blocks.columns, product),
            BIAS=self.bias is not None, MASKED=call.mask is not None, KIND=self.kind, SAMPLE=sample, KEEP=keep,
            PRODUCT=product, NATIVE=self.native(call.narrow), BLOCK_V=classes, BLOCK_D=self.blocks.columns, BLOCK_B=block,
            num_warps=WARPS[block],
        )  # fmt: skip
        return looked

    def native(self, hidden: Tensor) -> bool:
        """Whether queries and rows have one type of 16 bits, and so the products (the interpreter's take bfloat16 for bits)."""
        types = (self.torch.float16,) if self.blocks is INTERPRETED else (self.torch.float16, self.torch.bfloat16)
        return hidden.dtype == self.weight.dtype and self.weight.dtype in types

    def classes(self, block: int, hidden: Tensor) -> int:
        """Classes of a program that looks at ``block`` queries; half where float32 products take twice the registers."""
        if block == 1:
            return self.blocks.classes
        return self.blocks.wide if self.native(hidden) else self.blocks.wide // 2

    def tiles(self, classes: int, k: int) -> tuple[int, int]:
        """How many tiles there are, and how many of each one's best make k in all."""
        tiles = -(-self.vocab // classes)
        return tiles, max(2, -(-k // tiles))

    def _room(self, batch: int, tiles: int, best: int, *, keep: bool = False) -> Looked:
        shape = (batch, tiles * best)
        high = self.full((batch, self.vocab), 0.0, "float32")
        estimate = self.full((batch, self.vocab), 0.0, "float32") if keep else high
        best, ids = self.full(shape, 0.0, "float32"), self.full(shape, 0, "int32")
        return Looked(high, best, ids, self.full((batch, tiles, 3), 0.0), estimate)

    @property
    def steepest(self) -> float:
        """The link's largest slope, as float32 may round it."""
        return self.layer.link.steepest * (1 + 2.0**-20)

    def masked(self, call: Call) -> tuple[Tensor, int]:
        """The mask of the call, or anything in its place, and the classes from one query's mask to the next."""
        return self.one if call.mask is None else call.mask, _stride(call.mask)

    def exponents(self, call: Call, ids: Tensor, logits: Tensor, n: int = 0, *, plain: bool = False) -> tuple[Tensor, Tensor]:
        """``f(z) / temperature`` of ``ids [batch, k]``, and n draws of Gumbels for each row (0: none). ``plain``: f(z) = z."""
        (batch, k), times = ids.shape, max(1, n)
        exponents = self.full((batch * times, k), 0.0)
        noise = self.full((batch * times, k), 0.0) if n else exponents
        self.finish_kernels.noise_rows[(batch * times, -(-k // self.blocks.noise))](
            ids, logits, exponents, noise, self.identity if plain else self.link, *call.noise, times, k,
            KIND=FORMS.index("affine") if plain else self.kind, SAMPLE=n > 0, BLOCK=self.blocks.noise,
        )  # fmt: skip
        return exponents, noise

    def capacity(self, k: int) -> int:
        """Room for the candidates of k classes: never more than a power of two above all classes, where none overflows."""
        return min(max(CAPACITY, 1 << (2 * k - 1).bit_length()), 1 << (self.vocab - 1).bit_length())

    def candidates(self, call: Call, looked: Looked, k: int, *, sample: bool = False) -> Finalists:
        """The k best estimates exactly; their worst is a threshold that the k best classes reach: those are scored."""
        best, place = self.torch.topk(looked.best, k, dim=1)
        seeds = self.torch.where(best > -math.inf, looked.best_ids.gather(1, place), -1)
        _, keys = self.score(call, seeds.contiguous(), sample=sample)
        threshold = self.threshold(call, keys.amin(dim=1), sample=sample)
        count, kept, over, passed = self.rivals(call, looked, threshold, k, sample=sample)
        logits, keys = self.score(call, kept, count, sample=sample)
        return self.order(kept, logits, keys, count, k)._replace(over=over, passed=passed)

    def rivals(self, call: Call, looked: Looked, threshold: Tensor, k: int, *, sample: bool) -> tuple[Tensor, ...]:
        """``count, ids [batch, capacity]`` of what reaches the threshold, where room ran out, and what the first look left."""
        capacity = self.capacity(k)
        count, kept = self.select(looked.high, threshold, capacity)
        return count, kept, count > capacity, count

    def threshold(self, call: Call, worst: Tensor, *, sample: bool) -> Tensor:
        """At or below the float32 that an upper end has to reach: less what float64 can have added to both."""
        slack = 2 * self.rounding(call)
        if sample:
            link = self.layer.link
            size = link.offset + link.steepest * (self.longest * call.length + self.largest)
            slack = (slack * link.steepest + 8 * LINK_ROUNDING * size) / call.heat + 64 * LINK_ROUNDING
        low = worst - slack
        return self.torch.where(low.isfinite(), low - low.abs() * 2.0**-22 - 1e-37, low).float()

    def select(self, high: Tensor, threshold: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
        batch = high.shape[0]
        count, kept = self.full((batch,), 0, "int32"), self.full((batch, capacity), -1, "int32")
        self.finish_kernels.select[(batch, -(-self.vocab // self.blocks.select))](
            high, threshold, count, kept, self.vocab, capacity, BLOCK=self.blocks.select
        )
        return count, kept

    def score(self, call: Call, ids: Tensor, count: Tensor | None = None, *, sample: bool = False) -> tuple[Tensor, Tensor]:
        """Exact logits of the first ``count`` of ``ids [batch, m]`` (-1: -inf) and the keys of their order."""
        count = self.full((call.batch,), ids.shape[1], "int32") if count is None else count
        logits = self.full(tuple(ids.shape), -math.inf)
        keys = self.full(tuple(ids.shape), -math.inf) if sample else logits
        self.finish_kernels.score_rows[(call.batch, -(-ids.shape[1] // self.blocks.rows))](
            self.weight, self.one if self.bias is None else self.bias, call.hidden, ids, count, logits, keys,
            self.link, *call.noise, self.dim, ids.shape[1],
            BIAS=self.bias is not None, KIND=self.kind, SAMPLE=sample, ROWS=self.blocks.rows, BLOCK_D=self.blocks.columns,
        )  # fmt: skip
        return logits, keys

    def order(self, kept: Tensor, logits: Tensor, keys: Tensor, count: Tensor, k: int) -> Finalists:
        batch, capacity = kept.shape
        best_ids, best = self.full((batch, k), -1, "int64"), self.full((batch, k), -math.inf)
        best_keys = self.full((batch, k), -math.inf)
        self.finish_kernels.order_rows[(batch, -(-capacity // self.blocks.order))](
            kept, logits, keys, count, best_ids, best, best_keys, capacity, k, BLOCK=self.blocks.order, CHUNK=self.blocks.order
        )
        return Finalists(best_ids, best, best_keys, count, count > capacity, kept, logits, count)

    def mass(self, call: Call, looked: Looked, found: Finalists) -> tuple[Tensor, Tensor]:
        """``(lse, error)`` of each query."""
        return self.sums(looked)

    def sums(self, looked: Looked) -> tuple[Tensor, Tensor]:
        """``(lse, error)`` from the sums of all tiles; the upper sum bounds both sides (Jensen)."""
        shift = looked.mass[:, :, 0]
        lse = self.torch.logsumexp(shift + looked.mass[:, :, 1].log(), dim=1)
        top = self.torch.logsumexp(shift + looked.mass[:, :, 2].log(), dim=1)
        error = top - lse + 2 * EXP32 + 2 * lowering_error(self.layer.link) + lse.abs() * 2.0**-40
        return lse, self.torch.where(lse > -math.inf, error.nan_to_num(nan=math.inf), 0.0)

    def finish(self, call: Call, found: Finalists, flags: Tensor, *, sample: bool = False) -> tuple[Finalists, Tensor]:
        """Queries in ``flags`` once more, in float64 and over every class: their normalisers, and ids where room ran out."""
        batch, tiles, k = call.batch, -(-self.vocab // self.blocks.rows), found.ids.shape[1]
        slots = max(1, min(batch, SLOTS))
        logits = self.full((slots, self.vocab), -math.inf)
        keys = self.full((slots, self.vocab), -math.inf) if sample else logits
        mass = self.full((batch, tiles, 2), 0.0)
        flags, over = flags.int(), found.over.int()
        for first in range(0, batch, slots):
            self.finish_kernels.dense_rows[(slots, tiles)](
                flags, self.weight, self.one if self.bias is None else self.bias, call.hidden,
                *self.masked(call), logits, keys, mass,
                self.link, *call.noise, first, batch, self.vocab, self.dim, tiles,
                BIAS=self.bias is not None, MASKED=call.mask is not None, KIND=self.kind, SAMPLE=sample,
                ROWS=self.blocks.rows, BLOCK_D=self.blocks.columns,
            )  # fmt: skip
            self.finish_kernels.dense_pick[(slots,)](
                over, logits, keys, found.ids, found.logits, found.keys, first, batch, self.vocab, k, BLOCK=self.blocks.select
            )
        return found, self.torch.logsumexp(mass[:, :, 0] + mass[:, :, 1].log(), dim=1)

    def exact_error(self, call: Call, lse: Tensor) -> Tensor:
        """What float64 can have added to a normaliser of all classes."""
        link = self.layer.link
        size = link.steepest * (self.longest * call.length + self.largest) + 2 * link.offset + lse.abs().nan_to_num(posinf=0.0)
        logits = link.steepest * self.rounding(call) + 2 * lowering_error(link)
        return logits + size * 4 * LINK_ROUNDING + (self.vocab + 16) * UNIT


def unit(dim: int, columns: int, product: bool) -> float:
    """How far float32 can carry a logit of the look, for each ``|w| |x| + |b|`` of it.

    The terms of one block of columns are added up in any order, four times as far off where a matrix unit truncates them;
    then block by block; then x in float32, the bias, the radius itself.
    """
    return 1.01 * (columns * (2.0**-22 if product else 2.0**-24) + (-(-dim // columns) + 12) * 2.0**-24)


def _stride(mask: Tensor | None) -> int:
    """Classes from one query's mask to the next: 0 where all share one."""
    return 0 if mask is None or mask.shape[0] == 1 else int(mask.shape[1])


def _link_numbers(lowered: Any) -> Any:
    if lowered[0] != "table":
        return np.array(lowered[1:3], np.float64)
    _, start, step, values, left, right, _ = lowered
    return np.concatenate([np.array([start, step, left, right, len(values) - 1.0]), values])
