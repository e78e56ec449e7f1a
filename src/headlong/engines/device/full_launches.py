"""Answers from all rows in three launches: what ``full`` does for ``topk``, ``lse`` and plain draws of few classes.

::

    look (every row once) -> settle (candidates, order, normaliser) -> dense (whatever is left open)

Everything else that an answer holds is written by those three as well: no number is copied or filled in on the way. More than
:data:`MOST` classes, several draws of a query and filters go the longer way of :mod:`headlong.engines.device.reader`.
"""

from __future__ import annotations

import importlib
import struct
from typing import Any, NamedTuple

import numpy as np

from headlong.dtypes import UNIT
from headlong.engines.device.memory import Tensor
from headlong.engines.device.reader import DeviceReader, unit
from headlong.engines.device.tile_sizes import WARPS, queries_together
from headlong.engines.sampling_filters import Filters
from headlong.links import lowering_error

MOST = 64
"""Classes that are answered this way: each program orders the estimates of so many anew."""
WORD = 0xFFFFFFFF
SETTLING = 8
"""Warps of a program that settles."""


class Short(NamedTuple):
    """``ids, logits, score, values [batch, k]`` (values: log-probabilities), and of each query what an answer says."""

    ids: Tensor
    logits: Tensor
    score: Tensor
    values: Tensor
    lse: Tensor
    error: Tensor
    proved: Tensor
    rows: Tensor
    bytes: Tensor
    dense: Tensor


class LaunchShape(NamedTuple):
    """What follows from the batch and k: queries and classes of a program that looks, tiles and the best of each, programs that
    settle a query and that read it densely, classes of one that settles, and room for candidates."""

    block: int
    classes: int
    tiles: int
    best: int
    parts: int
    last: int
    region: int
    capacity: int


class Room(NamedTuple):
    """What the launches leave each other; ``scratch [batch, vocab]`` float64 holds upper ends first, then all keys."""

    scratch: Tensor
    best: Tensor
    best_ids: Tensor
    mass: Tensor
    hits: Tensor
    kept: Tensor
    scores: Tensor
    keys: Tensor
    sums: Tensor
    state: Tensor
    flags: Tensor


class ShortAnswers:
    """The three launches over one reader of rows."""

    def __init__(self, reader: DeviceReader) -> None:
        self.reader, self.torch = reader, reader.torch
        self.kernels = importlib.import_module("headlong.engines.device.kernels.full_fused")
        link, layer = reader.layer.link, reader.layer
        row_bytes = layer.dim * layer.weight.itemsize
        facts = [reader.longest, reader.largest, reader.steepest, link.offset, lowering_error(link), UNIT, row_bytes]
        facts += self._read(row_bytes)
        self.facts = reader.tensor(np.array(facts, np.float64))
        self.bias = reader.one if reader.bias is None else reader.bias

    def __call__(self, hidden: Tensor, mask: Tensor | None, k: int, eps: float, wish: Filters | None = None) -> Short:
        """``hidden [batch, dim]`` in any type; with a ``wish`` one draw of each query at its temperature, k = 1."""
        reader, batch, sample = self.reader, len(hidden), wish is not None
        shape = self._shape(hidden, k)
        room, found = self._room(batch, shape, sample=sample), self._answer(batch, k)
        if not batch:
            return found
        hides = reader.one if mask is None else mask, 0 if mask is None or len(mask) == 1 else int(mask.shape[1])
        kinds = {"BIAS": reader.bias is not None, "KIND": reader.kind, "SAMPLE": sample}
        looked = self._look(hidden, hides, shape, room, _numbers(wish), kinds | {"MASKED": mask is not None})
        blocks = reader.blocks
        kinds |= {
            "ROOM": max(16, 1 << (k - 1).bit_length()),
            "ROWS": blocks.rows,
            "BLOCK_D": blocks.exact,
            "num_warps": SETTLING,
        }
        self._settle(hidden, shape, room, found, looked, (*_numbers(wish), _down(eps), k), kinds)
        self._dense(hidden, hides, shape, room, found, (*_numbers(wish), k), kinds | {"MASKED": mask is not None})
        return found

    def _look(self, hidden: Tensor, hides: Any, shape: LaunchShape, room: Room, numbers: Any, kinds: Any) -> Any:
        """All classes once; what comes back is handed on to :meth:`_settle`."""
        reader, product = self.reader, shape.block > 1
        self.kernels.look[(-(-len(hidden) // shape.block), shape.tiles)](
            reader.weight, self.bias, reader.norms, hidden, reader.one, *hides, reader.steepest, reader.link, *numbers,
            room.scratch.view(self.torch.float32), room.best, room.best_ids, room.mass, room.state,
            reader.vocab, reader.dim, len(hidden), shape.tiles, shape.best, unit(reader.dim, reader.blocks.columns, product),
            **kinds, PRODUCT=product, NATIVE=reader.native(hidden),
            BLOCK_V=shape.classes, BLOCK_D=reader.blocks.columns, BLOCK_B=shape.block, num_warps=WARPS[shape.block],
        )  # fmt: skip

    def _settle(
        self, hidden: Tensor, shape: LaunchShape, room: Room, found: Short, looked: Any, numbers: Any, kinds: Any
    ) -> None:  # fmt: skip
        reader, blocks, bits = self.reader, self.reader.blocks, self.torch.int8
        self.kernels.settle[(len(hidden), shape.parts)](
            reader.weight, self.bias, hidden, room.scratch.view(self.torch.float32), room.best, room.best_ids, room.mass,
            room.hits, room.kept, room.scores, room.keys, room.sums, room.state,
            found.ids, found.logits, found.score, found.values, found.lse, found.error, found.proved.view(bits), room.flags,
            found.rows, found.bytes, found.dense.view(bits), reader.link, self.facts, *numbers,
            reader.vocab, reader.dim, shape.best, shape.tiles, shape.capacity, shape.region, shape.parts,
            max(1, min(len(hidden), 32)), **kinds, LANES=blocks.select, BLOCK=blocks.select, ORDER=blocks.order,
        )  # fmt: skip

    def _dense(
        self, hidden: Tensor, hides: Any, shape: LaunchShape, room: Room, found: Short, numbers: Any, kinds: Any
    ) -> None:
        reader, blocks = self.reader, self.reader.blocks
        self.kernels.dense[(len(hidden), shape.last)](
            reader.weight, self.bias, hidden, *hides, room.scratch, room.sums, room.state,
            found.ids, found.logits, found.score, found.values, found.lse, found.error, room.flags, reader.link, self.facts,
            *numbers, reader.vocab, reader.dim, shape.last, **kinds, LANES=blocks.order, BLOCK=blocks.select,
        )  # fmt: skip

    def _read(self, row_bytes: int) -> list[float]:
        """Bytes of the look at all classes, and of a closer look at one."""
        return [float(self.reader.vocab * row_bytes), 0.0]

    def _shape(self, hidden: Tensor, k: int) -> LaunchShape:
        reader, blocks, batch, queries = self.reader, self.reader.blocks, len(hidden), max(1, len(hidden))
        block = queries_together(batch)
        chunks, rows = -(-reader.vocab // blocks.select), -(-reader.vocab // blocks.rows)
        parts = max(1, min(chunks, blocks.programs // queries))
        last = min(rows, blocks.programs, max(16, 8 * blocks.programs // queries))
        classes = self._classes(block, hidden)
        return LaunchShape(
            block, classes, *reader.tiles(classes, k), parts, last, -(-chunks // parts) * blocks.select, reader.capacity(k)
        )  # fmt: skip

    def _classes(self, block: int, hidden: Tensor) -> int:
        return self.reader.classes(block, hidden)

    def _room(self, batch: int, shape: LaunchShape, *, sample: bool) -> Room:
        best, capacity = shape.tiles * shape.best, shape.capacity
        scores = self._empty(batch, capacity)
        return Room(
            self._empty(batch, self.reader.vocab), self._empty(batch, best, kind="float32"),
            self._empty(batch, best, kind="int32"), self._empty(batch, shape.tiles, 3),
            self._empty(batch, shape.parts * shape.region, kind="int32"), self._empty(batch, capacity, kind="int32"),
            scores, self._empty(batch, capacity) if sample else scores, self._empty(batch, max(shape.parts, shape.last), 2),
            self._empty(batch, 4, kind="int32"), self._empty(batch, kind="int32"),
        )  # fmt: skip

    def _answer(self, batch: int, k: int) -> Short:
        logits, score, values = (self._empty(batch, k) for _ in range(3))
        lse, error, read = (self._empty(batch) for _ in range(3))
        proved, dense = (self._empty(batch, kind="bool") for _ in range(2))
        ids, rows = self._empty(batch, k, kind="int64"), self._empty(batch, kind="int64")
        return Short(ids, logits, score, values, lse, error, proved, rows, read, dense)

    def _empty(self, *shape: int, kind: str = "float64") -> Tensor:
        return self.torch.empty(shape, dtype=getattr(self.torch, kind), device=self.reader.device)


def _numbers(wish: Filters | None) -> tuple[int, ...]:
    """What noise is drawn by, as whole numbers: the bits of the temperature, the seed's halves, the first row and class."""
    heat, seed, row, class0 = (1.0, 0, 0, 0) if wish is None else (wish.temperature, wish.seed, wish.row0, wish.class0)
    (bits,) = struct.unpack("<q", struct.pack("<d", heat))
    return bits, seed & WORD, seed >> 32, row - 2**64 if row >= 2**63 else row, class0


def _down(eps: float) -> float:
    """The float32 at or below ``eps``."""
    near = np.float32(eps)
    return float(near if near <= eps else np.nextafter(near, np.float32(0)))
