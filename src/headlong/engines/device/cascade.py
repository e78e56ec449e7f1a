"""A plan of codes on a device: the CPU's plan, its radii, its order of looks, in buffers of fixed capacity.

    level 0 for all classes -> the k best estimates exactly, their worst is the threshold -> level 1 for what reaches it
    -> exact rows for what still does -> the normaliser between the scored terms and the intervals of the others

The query's side (its rotation, its two int8 planes, its half of every radius) is computed in float64. Codes of fewer bits
are widened to int8. Not here: radii that hold with a probability, which are read on the CPU.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple

import numpy as np

from headlong.engines.device.memory import Tensor
from headlong.engines.device.query import round_up, split_peaks, two_planes
from headlong.engines.device.reader import EXP32, DeviceReader
from headlong.engines.device.records import Call, Finalists, Looked
from headlong.engines.device.tile_sizes import WARPS, queries_together
from headlong.links import lowering_error
from headlong.plan import Level, Plan, deinterleave, row_bytes, slack_rows, unpack

ALIGN = 16
"""Columns that a segment is padded to: 16 bytes are one load."""
SURVIVORS = 8192
"""Candidates of level 0 that level 1 has room for."""


class DeviceLevel(NamedTuple):
    """One level on the device: signed codes ``[vocab, width]`` in the order of the segments, and what scales them."""

    codes: Tensor
    scale: Tensor
    slack: Tensor
    edges: Tensor
    level: Level


class PackedCodes(NamedTuple):
    """The same codes, four to a 32-bit word, and the edges of their segments in words."""

    codes: Tensor
    edges: Tensor


class Tiles(NamedTuple):
    """Queries and classes of a program that looks, how many tiles of classes there are, and how many of the best each keeps."""

    block: int
    classes: int
    tiles: int
    best: int


class CodedQuery(NamedTuple):
    """Of one level: ``planes [batch, 2, width]`` int8, ``steps [batch, segments]``, ``halves [batch, slacks]``."""

    planes: Tensor
    steps: Tensor
    halves: Tensor


class CodesReader(DeviceReader):
    """Looks at codes where :class:`DeviceReader` looks at rows; the verbs and the way out are the same."""

    always = False

    def __init__(self, layer: Any, norms: Any, device: str, weight: Tensor | None, plan: Plan) -> None:
        super().__init__(layer, norms, device, weight)
        self.code_kernels = importlib.import_module("headlong.engines.device.kernels.codes")
        self.plan = plan
        self.mean = None if plan.mean is None else self.tensor(plan.mean).double()
        self.rotation = None if plan.rotation is None else self.tensor(plan.rotation).double()
        self.centre = None if plan.centre is None else self.tensor(plan.centre).double()
        self.base = self.tensor(plan.base)
        self.levels = [self._level(level, first) for first, level in zip((True, False), plan.levels, strict=False)]
        self.words = [PackedCodes(one.codes.view(self.torch.int32), one.edges // 4) for one in self.levels]

    def _level(self, level: Level, first: bool) -> DeviceLevel:
        """Codes of any bits as int8, each segment padded with zeros to whole :data:`ALIGN` columns."""
        rows, column, parts = deinterleave(level.codes, self.vocab) if first else level.codes, 0, []
        for start, stop, bits in level.layout:
            wide = row_bytes(stop, bits, start)
            signed = unpack(rows[:, column : column + wide], bits, stop - start).astype(np.int8)
            parts.append(np.pad(signed, ((0, 0), (0, -(stop - start) % ALIGN))))
            column += -(-wide // 4) * 4 if first else wide  # level 0 pads each segment to whole quads
        edges = np.cumsum([0, *(part.shape[1] for part in parts)]).astype(np.int32)
        codes = self.tensor(np.concatenate(parts, axis=1))
        return DeviceLevel(codes, self.tensor(level.scale), self.tensor(level.slack), self.tensor(edges), level)

    def query(self, call: Call) -> tuple[list[CodedQuery], Tensor]:
        """The queries' side of every level, and ``<centre, hidden>``."""
        centred = call.hidden if self.mean is None else call.hidden - self.mean
        x = centred if self.rotation is None else centred @ self.rotation
        length = self.torch.linalg.vector_norm(centred, dim=1)
        lost = self.torch.zeros_like(x)
        planes = []
        for codes in self.levels:
            found = [two_planes(self.torch, x[:, start:stop]) for start, stop, _ in codes.level.layout]
            for (start, stop, _), (whole, step) in zip(codes.level.layout, found, strict=True):
                gap = (x[:, start:stop] - whole * step[:, None]).abs()
                lost[:, start:stop] = self.torch.maximum(lost[:, start:stop], gap)
            pad = self.torch.nn.functional.pad
            whole = self.torch.cat([pad(part, (0, -part.shape[1] % ALIGN)) for part, _ in found], dim=1)
            coarse = ((whole + 128) / 256).floor()
            both = self.torch.stack([coarse, whole - 256 * coarse], dim=1).to(self.torch.int8)
            planes.append((both, self.torch.stack([step for _, step in found], dim=1).float()))
        sides = [
            CodedQuery(both.contiguous(), steps.contiguous(), self._halves(codes.level, x, lost, length))
            for codes, (both, steps) in zip(self.levels, planes, strict=True)
        ]
        shared = self.full((call.batch,), 0.0) if self.centre is None else call.hidden @ self.centre
        return sides, shared.float()

    def _halves(self, level: Level, x: Tensor, lost: Tensor, length: Tensor) -> Tensor:
        """``[batch, slacks]``: each row's ``sum factor * term(x)``, rounded up."""
        assert level.slack is not None
        sums = [self.torch.zeros_like(length) for _ in range(len(level.slack))]
        for term, row in zip(level.terms, slack_rows(level.terms), strict=True):
            part = x[:, term.start : term.stop]
            if term.kind == "one":
                half = self.torch.ones_like(length)
            elif term.kind == "hidden":
                half = length
            elif term.kind in ("peaks", "rest"):
                half = split_peaks(self.torch, part)[term.kind == "rest"]
            else:
                half = self.torch.linalg.vector_norm(part if term.kind == "norm" else lost[:, term.start : term.stop], dim=1)
            sums[row] = sums[row] + term.factor * half
        return round_up(self.torch.stack(sums, dim=1) * (1 + 1e-9)).contiguous()

    def look(self, call: Call, k: int, *, sample: bool = False, keep: bool = True) -> Looked:
        """Level 0 of all classes; estimates and the queries' side are kept for the levels behind it."""
        sides, shared = self.query(call)
        block = queries_together(call.batch)
        classes = self.blocks.wide if block > 1 else self.blocks.classes
        shape = Tiles(block, classes, *self.tiles(classes, k))
        looked = self._room(call.batch, shape.tiles, shape.best, keep=True)
        kinds = {"MASKED": call.mask is not None, "KIND": self.kind, "SAMPLE": sample}
        self.scan(sides[0], shared, self.masked(call), call.noise, looked, shape, kinds)
        return looked._replace(sides=sides, shared=shared)

    def scan(
        self, side: CodedQuery, shared: Tensor, masked: Any, noise: Any, looked: Looked, shape: Any, kinds: dict[str, Any]
    ) -> None:  # fmt: skip
        """Level 0 of all classes into ``looked``."""
        codes, product, batch = self.levels[0], shape.block > 1, len(side.planes)
        form = codes if product else self.words[0]
        given = (
            form.codes, codes.scale, codes.slack, self.base, form.edges,
            side.planes if product else side.planes.view(self.torch.int32), side.steps, side.halves, shared,
            *masked, self.steepest, self.link, *noise, looked.high, looked.estimate, looked.best, looked.best_ids, looked.mass,
            self.vocab, codes.codes.shape[1] // (1 if product else ALIGN), codes.scale.shape[1],
        )  # fmt: skip
        kinds = {name: kinds[name] for name in ("MASKED", "KIND", "SAMPLE")} | {"BLOCK_V": shape.classes}
        counts = shape.tiles, shape.best, codes.scale.shape[0], codes.slack.shape[0]
        if product:
            self.code_kernels.scan_codes[(-(-batch // shape.block), shape.tiles)](
                *given, batch, *counts, **kinds,
                BLOCK_D=self.blocks.columns, BLOCK_B=shape.block, num_warps=WARPS[shape.block],
            )  # fmt: skip
        else:
            self.code_kernels.scan_codes_of_one[(batch, shape.tiles)](
                *given, *counts, **kinds, DP4A=self.blocks.dp4a, BLOCK_W=self.blocks.columns // 4
            )

    def rivals(self, call: Call, looked: Looked, threshold: Tensor, k: int, *, sample: bool) -> tuple[Tensor, ...]:
        """What level 0 leaves open, less what level 1 settles; ``over``: where either had too little room."""
        if len(self.levels) == 1:
            return super().rivals(call, looked, threshold, k, sample=sample)
        room = min(max(SURVIVORS, self.capacity(k)), 1 << (self.vocab - 1).bit_length())
        count, kept = self.select(looked.high, threshold, room)
        codes, side, capacity = self.levels[1], looked.sides[1], self.capacity(k)
        form = self.words[1]
        open_count, still_open = self.full((call.batch,), 0, "int32"), self.full((call.batch, capacity), -1, "int32")
        self.code_kernels.refine[(call.batch, -(-room // self.blocks.rows))](
            form.codes, codes.scale, codes.slack, form.edges, side.planes.view(self.torch.int32), side.steps, side.halves,
            looked.shared, kept, count, threshold, looked.high, looked.estimate, open_count, still_open, self.link, *call.noise,
            self.vocab, codes.codes.shape[1] // ALIGN, codes.scale.shape[1], room, capacity,
            codes.scale.shape[0], codes.slack.shape[0], KIND=self.kind, SAMPLE=sample, DP4A=self.blocks.dp4a,
            ROWS=self.blocks.rows, BLOCK_W=self.blocks.columns // 4,
        )  # fmt: skip
        return open_count, still_open, (count > room) | (open_count > capacity), count

    def mass(self, call: Call, looked: Looked, found: Finalists) -> tuple[Tensor, Tensor]:
        """Scored terms as they are, the others between their ends."""
        torch, batch, capacity = self.torch, call.batch, found.kept.shape[1]
        self.code_kernels.leave[(batch, -(-capacity // self.blocks.noise))](
            found.kept, found.count, looked.estimate, self.vocab, capacity, BLOCK=self.blocks.noise
        )
        tiles = -(-self.vocab // self.blocks.select)
        mass = self.full((batch, tiles, 3), 0.0)
        self.code_kernels.weigh[(batch, tiles)](
            looked.estimate, looked.high, mass, self.link, call.heat, self.steepest, self.vocab, tiles,
            KIND=self.kind, BLOCK=self.blocks.select,
        )  # fmt: skip
        scored = torch.logsumexp(self.exponents(call, found.kept, found.scores)[0], dim=1)
        low, high = (torch.logsumexp(mass[:, :, 0] + mass[:, :, part].log(), dim=1) for part in (1, 2))
        lse = torch.logaddexp(scored, low)
        slack = self.steepest * self.rounding(call) + 2 * EXP32 + 2 * lowering_error(self.layer.link) + lse.abs() * 2.0**-40
        error = (torch.logaddexp(scored, high) - lse + slack).nan_to_num(nan=math.inf)
        return lse, torch.where(lse > -math.inf, error, 0.0)

    def cost(self, call: Call, count: Tensor, passed: Tensor | None) -> tuple[Tensor, Tensor]:
        first = self.levels[0]
        look = self.vocab * (first.codes.shape[1] + 4 * (first.scale.shape[0] + first.slack.shape[0] + 1))
        read = count * float(self.dim * self.layer.weight.itemsize) + look / max(1, min(call.batch, 32))
        if len(self.levels) > 1 and passed is not None:
            behind = self.levels[1]
            read = read + passed * float(behind.codes.shape[1] + 4 * (behind.scale.shape[0] + behind.slack.shape[0]))
        return count.long(), read
