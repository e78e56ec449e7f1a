"""A search by a plan's blocks in eight launches, whatever the batch; six where the basis is square.

::

    rotate (-> rotate back -> behind) -> box_sides -> bound_blocks -> first_threshold -> settle_blocks -> dense

On the CPU boxes of boxes are opened from the top; here one pass bounds every block, three bytes a class, since a launch costs
more than that read. What finds no room is finished densely. Not here: rays, radii that were learned, plain draws, and
normalisers, which other looks find: beside ids, the normaliser is that of the classes that were scored.
"""

from __future__ import annotations

import importlib
import itertools
from typing import Any, NamedTuple

import numpy as np

from headlong.engines.device.cascade_launches import COLUMNS
from headlong.engines.device.full_launches import SETTLING, LaunchShape, Room, Short, ShortAnswers
from headlong.engines.device.memory import Tensor
from headlong.engines.device.reader import DeviceReader
from headlong.engines.reference.blocks import MOST_X, SEEDS
from headlong.plan import NEIGHBOURS, Blocks, BoxLevel

SCANNED = 256
"""Boxes that a program which settles goes through at once: few, so that open neighbours are many programs' work."""


LINE = 64
"""Bytes that are counted together: the sum of a query has to fit 32 bits."""


class Nodes(NamedTuple):
    """Of one level, number by number: ``codes [codes, nodes]`` int8, ``sizes [lengths, nodes]`` uint8, ``numbers [3, nodes]``
    float32 (scale, unit of the lengths, base)."""

    codes: Tensor
    sizes: Tensor
    numbers: Tensor


class Closer(NamedTuple):
    """Of single classes: ``codes [places, n]`` int8, ``sizes [places, lengths]`` uint8, ``numbers [places, 2]`` float32."""

    codes: Tensor
    sizes: Tensor
    numbers: Tensor


class Sides(NamedTuple):
    """The queries' side in float32: of boxes, of classes and closer looks, their lengths, and what all bounds get."""

    box: Tensor
    own: Tensor
    lengths: Tensor
    closer: Tensor
    add: Tensor
    slack: Tensor


class BlockTables(NamedTuple):
    """What ``box_sides`` goes by: ``segments [n, 2]``, ``factors [8]`` of a record's last length, ``lost [n, 3]``."""

    segments: Tensor
    factors: Tensor
    lost: Tensor
    first: int
    """The first segment that a closer look has."""


class ShortBlocks(ShortAnswers):
    """The launches over one plan's blocks, for the rows of ``reader``."""

    def __init__(self, reader: DeviceReader, blocks: Blocks) -> None:
        self.blocks, self.width = blocks, len(blocks.head)
        records = 0 if blocks.closer is None else int(blocks.closer.shape[1])
        self.group_bytes, self.near_bytes = int(blocks.levels[-1].records.shape[1]), records
        self.near_count = self.width - blocks.look if records else 0
        self.near_sizes = records - self.near_count - 8 if records else 1
        first = SEEDS * (self.group_bytes + NEIGHBOURS * self.near_bytes)
        self.read_by_all = float(blocks.levels[-2].records.nbytes + first)  # all boxes, and the classes of the first few
        super().__init__(reader)
        self.block_kernels = importlib.import_module("headlong.engines.device.kernels.blocks_fused")
        self.rotate = importlib.import_module("headlong.engines.device.kernels.cascade_fused").rotate
        tensor = reader.tensor
        self.boxes, self.classes = (self._nodes(level) for level in blocks.levels[-2:])
        self.nodes, self.places = (int(level.codes.shape[1]) for level in (self.boxes, self.classes))
        self.order, self.near, self.tables = tensor(blocks.order), self._closer(), self._tables()
        self.mean, self.centre = (tensor(np.asarray(part, np.float64)) for part in (blocks.mean, blocks.centre))
        self.head = tensor(np.ascontiguousarray(blocks.head.T))
        self.back, self.rest, self.rest_scale = (
            None if part is None else tensor(part) for part in (blocks.back, blocks.rest, blocks.rest_scale)
        )

    def takes(self, batch: int, k: int, look_bytes: float) -> bool:
        """Whether boxes are read for less than ``look_bytes``, those of a look at all codes that a batch shares."""
        asked_for = self.blocks.most >= self.reader.vocab
        return k <= self.blocks.most and (asked_for or batch * self.read_by_all < look_bytes)

    def _read(self, row_bytes: int) -> list[float]:
        return [self.read_by_all, float(LINE)]

    def _nodes(self, level: BoxLevel) -> Nodes:
        """Neighbours of a record one after the other, number by number."""
        count, codes = len(level.records), level.codes * NEIGHBOURS
        stop = codes + level.lengths * NEIGHBOURS
        parts = (
            level.records[:, :codes].view(np.int8).reshape(count, level.codes, NEIGHBOURS),
            level.records[:, codes:stop].reshape(count, level.lengths, NEIGHBOURS),
            np.ascontiguousarray(level.records[:, stop:]).view(np.float32).reshape(count, 3, NEIGHBOURS),
        )
        flat = (np.ascontiguousarray(part.transpose(1, 0, 2)).reshape(part.shape[1], -1) for part in parts)
        return Nodes(*(self.reader.tensor(part) for part in flat))

    def _closer(self) -> Closer:
        records, one = self.blocks.closer, self.reader.one
        if records is None:
            return Closer(one, one, one)
        parts = records[:, : self.near_count], records[:, self.near_count : -8], records[:, -8:]
        kinds = (np.int8, np.uint8, np.float32)
        views = (np.ascontiguousarray(part).view(kind) for part, kind in zip(parts, kinds, strict=True))
        return Closer(*(self.reader.tensor(part) for part in views))

    def _tables(self) -> BlockTables:
        blocks, tensor = self.blocks, self.reader.tensor
        segments = np.array(list(itertools.pairwise(blocks.edges)), np.int32).reshape(-1, 2)
        lost = np.zeros((max(1, len(segments)), 3))
        if blocks.rest_lost is not None:
            lost[len(segments) - len(blocks.rest_lost) : len(segments)] = blocks.rest_lost
        factors = np.array([*blocks.shared, *blocks.closer_shared], np.float64)
        first = blocks.edges.index(self.width) if self.width in blocks.edges else len(segments)
        return BlockTables(tensor(segments), tensor(factors), tensor(lost), first)

    def _shape(self, hidden: Tensor, k: int) -> LaunchShape:
        shape, blocks = super()._shape(hidden, k), self.reader.blocks
        tiles, chunks = -(-self.nodes // blocks.select), -(-self.nodes // SCANNED)
        parts = max(1, min(chunks, blocks.programs // max(1, len(hidden))))
        return shape._replace(
            block=1, classes=blocks.select, tiles=tiles, best=max(2, -(-SEEDS // tiles)), parts=parts,
            region=-(-chunks // parts) * SCANNED,
        )  # fmt: skip

    def sides(self, hidden: Tensor, state: Tensor, capacity: int) -> Sides:
        """What all launches behind these take of the queries."""
        reader, blocks, batch, columns = self.reader, self.blocks, len(hidden), self.reader.blocks.columns
        x, y = self._empty(batch, self.width), self._empty(batch, reader.dim if self.back is not None else 1)
        count = 0 if self.rest is None else int(self.rest.shape[1])
        seen, segments = self._empty(batch, max(1, count)), len(blocks.edges) - 1
        self.rotate[(batch, -(-self.width // COLUMNS))](
            hidden, self.mean, self.head, x, reader.dim, self.width, MEAN=True, ROTATED=True, COLUMNS=COLUMNS, BLOCK_D=columns,
        )  # fmt: skip
        if self.rest is not None:
            self.rotate[(batch, -(-reader.dim // COLUMNS))](
                x, self.mean, self.back, y, self.width, reader.dim, MEAN=False, ROTATED=True, COLUMNS=COLUMNS, BLOCK_D=columns,
            )  # fmt: skip
            self.block_kernels.behind[(batch, -(-count // COLUMNS))](
                hidden, self.mean, y, self.rest, self.rest_scale, seen, reader.dim, count, COLUMNS=COLUMNS, BLOCK_D=columns,
            )  # fmt: skip
        sizes = 2 * blocks.look, self.width, segments + 1, segments - self.tables.first + 1
        shapes = (*((batch, size) for size in sizes), (batch,), (batch,))
        found = Sides(*(self._empty(*shape, kind="float32") for shape in shapes))
        self.block_kernels.box_sides[(batch,)](
            hidden, self.mean, self.centre, x, y, seen, *self.tables[:3], *found, state,
            reader.dim, self.width, blocks.look, count, segments, self.tables.first, capacity, MOST_X,
            REST=self.rest is not None, ROOM=1 << (self.width - 1).bit_length(), BLOCK_D=columns,
        )  # fmt: skip
        return found

    def _look(self, hidden: Tensor, hides: Any, shape: LaunchShape, room: Room, numbers: Any, kinds: Any) -> tuple[Any, ...]:
        """All boxes, and the threshold of the first classes."""
        batch, rows = len(hidden), SEEDS * NEIGHBOURS
        sides = self.sides(hidden, room.state, shape.capacity)
        high = room.scratch.view(self.torch.float32).flatten()
        self.block_kernels.bound_blocks[(batch, shape.tiles)](
            *self.boxes, sides.box, sides.lengths, sides.add, sides.slack, high, room.best, room.best_ids,
            self.nodes, shape.tiles, shape.best, CODES=2 * self.blocks.look, SIZES=sides.lengths.shape[1], BLOCK=shape.classes,
        )  # fmt: skip
        threshold, first = self._empty(batch, kind="float32"), self._empty(batch, rows, kind="float32")
        given = (
            self.order, *self.classes, self.places, sides.own, sides.lengths, sides.add, sides.slack, *self.near, sides.closer,
            *hides, self.width, self.blocks.look,
        )  # fmt: skip
        forms = {name: kinds[name] for name in ("MASKED", "BIAS", "KIND")}
        forms |= {"CODES": self.blocks.look, "SIZES": sides.lengths.shape[1]}
        forms |= {"NEAR": self.near_count, "NEAR_SIZES": self.near_sizes}
        return high, threshold, first, self._empty(batch, rows, kind="int32"), given, forms

    def _settle(
        self, hidden: Tensor, shape: LaunchShape, room: Room, found: Short, looked: Any, numbers: Any, kinds: Any
    ) -> None:  # fmt: skip
        reader, blocks, bits = self.reader, self.reader.blocks, self.torch.int8
        (high, threshold, first, ids, given, forms), k = looked, numbers[-1]
        tiles = {"ROOM": kinds["ROOM"], "LANES": blocks.select, "BLOCK_D": kinds["BLOCK_D"], "BLOCK_W": blocks.columns}
        self.block_kernels.first_threshold[(len(hidden),)](
            reader.weight, self.bias, hidden, room.best, room.best_ids, shape.tiles * shape.best, first, ids, threshold,
            reader.link, self.facts, *given, k, reader.dim, **forms, **tiles, ROWS=SEEDS * NEIGHBOURS, num_warps=SETTLING,
        )  # fmt: skip
        self.block_kernels.settle_blocks[(len(hidden), shape.parts)](
            reader.weight, self.bias, hidden, high, threshold,
            room.hits, room.kept, room.scores, room.keys, room.sums, room.state,
            found.ids, found.logits, found.score, found.values, found.lse, found.error, found.proved.view(bits), room.flags,
            found.rows, found.bytes, found.dense.view(bits), reader.link, self.facts, *numbers,
            reader.vocab, reader.dim, self.nodes, shape.capacity, shape.region, shape.parts, *given,
            self.group_bytes, self.near_bytes, **forms, **tiles, ROWS=kinds["ROWS"], BLOCK=SCANNED, ORDER=blocks.order,
            LINE=LINE, num_warps=SETTLING,
        )  # fmt: skip


def searched(blocks: Blocks | None) -> bool:
    """Whether a device searches by these: boxes of bounds that hold for every query, in two levels or more."""
    if blocks is None or blocks.rays is not None or blocks.answers:
        return False
    return blocks.factor == 1.0 and len(blocks.levels) > 1
