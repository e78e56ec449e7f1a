"""A plan of codes in five launches, whatever the batch: as :mod:`headlong.engines.device.full_launches`, behind codes.

::

    rotate -> prepare (the queries' planes and radii) -> look (codes of all classes) -> settle_codes -> dense

The looks are those of :mod:`headlong.engines.device.cascade`; the numbers of the noise, which they read from memory, are
written there by ``prepare``.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np

from headlong.engines.device.cascade import ALIGN, CodedQuery, CodesReader
from headlong.engines.device.full_launches import SETTLING, LaunchShape, Room, Short, ShortAnswers
from headlong.engines.device.memory import Tensor
from headlong.engines.device.records import Looked
from headlong.plan import TERM_KINDS, Level, slack_rows

COLUMNS = 32
"""Columns of the rotation that one program multiplies by."""
MOST_ROWS = 16
"""Rows of the slack that a query's halves are summed for."""


class Tables(NamedTuple):
    """Of one level: ``segments [n, 3]`` (start, stop, place in the planes), ``terms [n, 4]`` (kind, start, stop, row) and their
    factors."""

    segments: Tensor
    terms: Tensor
    factors: Tensor


class Prepared(NamedTuple):
    """The queries' side of the levels, ``<centre, hidden>``, and the noise numbers as :class:`records.Call` has them."""

    sides: list[CodedQuery]
    shared: Tensor
    noise: tuple[Tensor, ...]


class ShortCodes(ShortAnswers):
    """The five launches over one reader of codes."""

    def __init__(self, reader: CodesReader) -> None:
        self.codes = reader
        super().__init__(reader)
        self.code_kernels = importlib.import_module("headlong.engines.device.kernels.cascade_fused")
        self.tables = [self._tables(codes.level, codes.edges) for codes in reader.levels]
        plan = reader.plan
        self.rotation = None if plan.rotation is None else reader.tensor(plan.rotation)
        self.width = reader.dim if plan.rotation is None else int(plan.rotation.shape[1])

    def _read(self, row_bytes: int) -> list[float]:
        first, behind = self.codes.levels[0], self.codes.levels[-1]
        look = self.codes.vocab * (first.codes.shape[1] + 4 * (first.scale.shape[0] + first.slack.shape[0] + 1))
        closer = behind.codes.shape[1] + 4 * (behind.scale.shape[0] + behind.slack.shape[0])
        return [float(look), float(closer) if len(self.codes.levels) > 1 else 0.0]

    def _classes(self, block: int, hidden: Tensor) -> int:
        return self.codes.blocks.wide if block > 1 else self.codes.blocks.classes  # codes are int8, whatever hidden is

    def _tables(self, level: Level, edges: Tensor) -> Tables:
        places = edges.cpu().numpy()[:-1]
        segments = [(start, stop, place) for (start, stop, _), place in zip(level.layout, places, strict=True)]
        rows = zip(level.terms, slack_rows(level.terms), strict=True)
        terms = [(TERM_KINDS.index(term.kind), term.start, term.stop, row) for term, row in rows]
        factors = np.array([term.factor for term in level.terms], np.float64)
        tensor = self.reader.tensor
        return Tables(tensor(np.array(segments, np.int32)), tensor(np.array(terms, np.int32)), tensor(factors))

    def _look(self, hidden: Tensor, hides: Any, shape: LaunchShape, room: Room, numbers: Any, kinds: Any) -> Prepared:
        reader, batch = self.codes, len(hidden)
        prepared = self._prepare(hidden, numbers, room.state)
        high = room.scratch.view(self.torch.float32).flatten()
        size = batch * reader.vocab
        looked = Looked(high[:size].view(batch, -1), room.best, room.best_ids, room.mass, high[size:].view(batch, -1))
        reader.scan(prepared.sides[0], prepared.shared, hides, prepared.noise, looked, shape, kinds)
        return prepared

    def _prepare(self, hidden: Tensor, numbers: Any, state: Tensor) -> Prepared:
        reader, batch, levels = self.codes, len(hidden), self.codes.levels
        sides, x, shared = (
            [self._side(batch, n) for n in range(len(levels))],
            self._empty(batch, self.width),
            self._empty(batch, kind="float32"),
        )
        noise = (self._empty(1), *(self._empty(n, kind="int64") for n in (2, batch, batch, 1)))
        mean, rotation = (self.reader.one if part is None else part for part in (reader.mean, self.rotation))
        block = reader.blocks.columns
        self.code_kernels.rotate[(batch, -(-self.width // COLUMNS))](
            hidden, mean, rotation, x, reader.dim, self.width,
            MEAN=reader.mean is not None, ROTATED=self.rotation is not None, COLUMNS=COLUMNS, BLOCK_D=block,
        )  # fmt: skip
        first, last = 0, len(levels) - 1
        of = [(*sides[n], *self.tables[n]) for n in (first, last)]
        count = [[part[n] for n in (first, last)] for part in (
            [one.codes.shape[1] for one in levels], [len(one.segments) for one in self.tables],
            [len(one.terms) for one in self.tables], [one.slack.shape[0] for one in levels],
        )]  # fmt: skip
        self.code_kernels.prepare[(batch,)](
            hidden, mean, self.reader.one if reader.centre is None else reader.centre, x, *of[0], *of[1], shared, *noise, state,
            *numbers, reader.dim, self.width, *(number for pair in count for number in pair),
            MEAN=reader.mean is not None, CENTRE=reader.centre is not None, DEEPER=len(levels) > 1,
            ROOM=1 << (self.width - 1).bit_length(), ROWS=MOST_ROWS, BLOCK_D=block, num_warps=SETTLING,
        )  # fmt: skip
        return Prepared(sides, shared, noise)

    def _side(self, batch: int, level: int) -> CodedQuery:
        codes = self.codes.levels[level]
        planes = self._empty(batch, 2, codes.codes.shape[1], kind="int8")
        steps, halves = (self._empty(batch, part.shape[0], kind="float32") for part in (codes.scale, codes.slack))
        return CodedQuery(planes, steps, halves)

    def _settle(
        self, hidden: Tensor, shape: LaunchShape, room: Room, found: Short, prepared: Prepared, numbers: Any, kinds: Any
    ) -> None:  # fmt: skip
        reader, blocks, bits = self.codes, self.codes.blocks, self.torch.int8
        codes, words, side = reader.levels[-1], reader.words[-1], prepared.sides[-1]
        high, size = room.scratch.view(self.torch.float32).flatten(), len(hidden) * reader.vocab
        self.code_kernels.settle_codes[(len(hidden), shape.parts)](
            reader.weight, self.bias, hidden, high, room.best, room.best_ids, high[size:],
            room.hits, room.kept, room.scores, room.keys, room.sums, room.state,
            found.ids, found.logits, found.score, found.values, found.lse, found.error, found.proved.view(bits), room.flags,
            found.rows, found.bytes, found.dense.view(bits), reader.link, self.facts, *numbers,
            reader.vocab, reader.dim, shape.best, shape.tiles, shape.capacity, shape.region, shape.parts,
            max(1, min(len(hidden), 32)), words.codes, codes.scale, codes.slack, words.edges,
            side.planes.view(self.torch.int32), side.steps, side.halves, prepared.shared,
            codes.codes.shape[1] // ALIGN, codes.scale.shape[1], codes.scale.shape[0], codes.slack.shape[0],
            **kinds, DEEPER=len(reader.levels) > 1, DP4A=blocks.dp4a, BLOCK_W=blocks.columns // 4,
            LANES=blocks.select, BLOCK=blocks.select, ORDER=blocks.order,
        )  # fmt: skip
