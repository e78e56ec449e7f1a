"""Tree layers on a device: all queries go down together, a level at a time, with room for the most probable nodes.

::

    frontier = {root} ; for each level: open its nodes (exact rows), keep the BEAM best inner branches and the k best leaves
    log p(branch) <= log p(its node), so what was dropped matters only where it reached the k-th best leaf

A query for which it did (or a tie) is read once more, over all rows, by programs that return at once for every other query:
nothing is guessed and nothing waits for the host. Rows are read by the kernel that scores candidates, in float64.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from typing import Any

import numpy as np

from headlong.engines.device.memory import Tensor
from headlong.engines.device.reader import SLOTS, DeviceReader
from headlong.engines.device.records import Call
from headlong.engines.device.table import Candidates, DeviceBest, DeviceDrawn, DeviceScored, DeviceSpent, TableEngine
from headlong.engines.reference.descent import Rounding, Steps, TreeReference
from headlong.engines.sampling_filters import Filters
from headlong.layers.tree import TreeLayer
from headlong.links.base import FORMS
from headlong.promise import Promise

BEAM = 128
"""Nodes of one level that there is room for."""
OPENED = 16384
"""Rows of one level that there is room for, where nodes have many."""


class TreeDevice(TableEngine):
    """Reads a :class:`TreeLayer`; log-probabilities as logits, lse = 0, as on the CPU."""

    def __init__(
        self, layer: TreeLayer, reader: DeviceReader, steps: Steps, rounding: Rounding, promise: Promise, **about: Any
    ) -> None:
        super().__init__(layer, reader, layer.kind, promise, **about)
        self.kernels = importlib.import_module("headlong.engines.device.kernels.tree")
        tables, counts = TreeReference(steps), np.diff(steps.starts)
        numbers = (steps.children, steps.starts, tables.owner, tables.above, tables.leaf, counts)
        self.children, self.starts, self.owner, self.above, self.leaf, self.counts = map(reader.tensor, numbers)
        self.two_way, self.depth, self.rounding = layer.two_way, steps.depth, rounding
        self.fan, self._row_bytes = int(counts.max()), layer.dim * layer.weight.itemsize
        self.nodes_at = np.bincount(layer.depths, minlength=steps.depth)

    def _open(self, call: Call, nodes: Tensor) -> Tensor:
        """The log-probabilities of each node's branches, ``[batch, width, fan]``; -inf where there is no branch."""
        torch, (batch, width) = self.reader.torch, nodes.shape
        if self.two_way:
            z = self.reader.score(call, nodes.int().contiguous())[0][:, :, None]
            zero = torch.zeros_like(z)
            both = torch.cat([-torch.logaddexp(zero, -z), -torch.logaddexp(zero, z)], dim=2)
            return both.where((nodes >= 0)[:, :, None], -math.inf)
        some, local = nodes.clamp(min=0), torch.arange(self.fan, device=self.reader.device)
        there = (local < self.counts[some][:, :, None]) & (nodes >= 0)[:, :, None]
        rows = (self.starts[some][:, :, None] + local).where(there, -1).view(batch, width * self.fan)
        z = self.reader.score(call, rows.int().contiguous())[0].view(batch, width, self.fan)
        shifted = z - z.amax(dim=2, keepdim=True)
        return (shifted - torch.log(torch.exp(shifted).sum(dim=2, keepdim=True))).clamp(max=0.0).where(there, -math.inf)

    def _best(self, call: Call, k: int, eps: float) -> DeviceBest:
        """The descent, and the dense way out for those that it leaves open."""
        torch, batch = self.reader.torch, call.batch
        nodes, above = self.reader.full((batch, 1), 0, "int64"), self.reader.full((batch, 1), 0.0)
        best, ids = self.reader.full((batch, k), -math.inf), self.reader.full((batch, k), -1, "int64")
        lost, rows = self.reader.full((batch,), -math.inf), self.reader.full((batch,), 0, "int64")
        for level in range(self.depth):
            rows = rows + (self.counts[nodes.clamp(min=0)] * (nodes >= 0)).sum(dim=1)
            values = (self._open(call, nodes) + above[:, :, None]).flatten(1)
            child = self._children(nodes).flatten(1)
            leaf = child < 0
            best, place, dropped = self._keep(torch.cat([best, values.where(leaf, -math.inf)], dim=1), k)
            ids = torch.cat([ids, ~child], dim=1).gather(1, place)
            lost = torch.maximum(lost, dropped)
            if level + 1 == self.depth:
                break
            above, place, dropped = self._keep(values.where(~leaf, -math.inf), self._room(level + 1, k))
            lost = torch.maximum(lost, dropped)
            nodes = child.gather(1, place)
            nodes = nodes.where((above > -math.inf) & (above >= best[:, -1:]), -1)
        ids = ids.where(best > -math.inf, -1)
        ids, order = ids.sort(dim=1)
        best, order = torch.sort(best.gather(1, order), dim=1, descending=True, stable=True)
        flags = (lost > -math.inf) & (lost >= best[:, -1])
        best, ids = self._finish(call, best, ids.gather(1, order), flags)
        return self._answer(call, best, ids, rows // (2 if self.two_way else 1), flags)

    def _answer(self, call: Call, best: Tensor, ids: Tensor, rows: Tensor, flags: Tensor) -> DeviceBest:
        nothing = self.reader.full((call.batch,), 0.0)
        spent = self._spent(rows + flags * len(self.reader.weight), self._row_bytes, dense=flags)
        return DeviceBest(best, ids, self.reader.full((call.batch,), True, "bool"), nothing, self._error(call), spent)

    def _children(self, nodes: Tensor) -> Tensor:
        """Where each branch leads, ``[batch, width, fan]``."""
        local = self.reader.torch.arange(self.fan, device=self.reader.device)
        branch = self.starts[nodes.clamp(min=0)][:, :, None] + local
        return self.children[branch.clamp(max=len(self.children) - 1)]

    def _keep(self, values: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The ``count`` largest, their places, and the largest of the others."""
        width = values.shape[1]
        top, place = self.reader.torch.topk(values, min(count + 1, width), dim=1)
        dropped = top[:, count] if width > count else self.reader.full((len(values),), -math.inf)
        return top[:, :count], place[:, :count], dropped

    def _room(self, level: int, k: int) -> int:
        """Nodes of a level that are kept: all, or as many as there is room for."""
        most = max(BEAM, 1 << (2 * k - 1).bit_length())
        most = most if self.two_way else max(1, min(most, OPENED // self.fan))
        return min(most, int(self.nodes_at[level]))

    def _dense(self, call: Call, flags: Tensor, first: int, scratch: tuple[Tensor, ...], sums: Tensor) -> None:
        """``sums [slots, vocab]``: log-probabilities of the flagged ones among the queries from ``first`` on."""
        reader, (z, norms, mass), slots = self.reader, scratch, len(sums)
        rows, nodes, tiles = z.shape[1], norms.shape[1], mass.shape[1]
        reader.finish_kernels.dense_rows[(slots, tiles)](
            flags, reader.weight, reader.one if reader.bias is None else reader.bias, call.hidden, reader.one, 0, z, z, mass,
            reader.identity, *call.noise, first, call.batch, rows, self.layer.dim, tiles,
            BIAS=reader.bias is not None, MASKED=False, KIND=FORMS.index("affine"), SAMPLE=False,
            ROWS=reader.blocks.rows, BLOCK_D=reader.blocks.columns,
        )  # fmt: skip
        if not self.two_way:
            self.kernels.node_norms[(slots, nodes)](
                flags, z, self.starts, norms, first, call.batch, rows, nodes, BLOCK=reader.blocks.noise
            )
        self.kernels.path_sums[(slots, -(-self.layer.vocab // reader.blocks.select))](
            flags, z, norms, self.leaf, self.owner, self.above, sums, first, call.batch, rows, nodes, self.layer.vocab,
            self.depth, TWO_WAY=self.two_way, BLOCK=reader.blocks.select,
        )  # fmt: skip

    def _scratch(self, batch: int) -> tuple[Tensor, ...]:
        """``z [slots, rows], norms [slots, nodes], mass [batch, tiles, 2]``: what a flagged query writes before it reads."""
        slots, rows = max(1, min(batch, SLOTS)), len(self.reader.weight)
        tiles = -(-rows // self.reader.blocks.rows)
        shapes = (slots, rows), (slots, len(self.above)), (batch, tiles, 2)
        torch, device = self.reader.torch, self.reader.device
        return tuple(torch.empty(shape, dtype=torch.float64, device=device) for shape in shapes)

    def _finish(self, call: Call, best: Tensor, ids: Tensor, flags: Tensor) -> tuple[Tensor, Tensor]:
        """The ``k`` best of the flagged queries among all classes."""
        (batch, k), scratch = best.shape, self._scratch(call.batch)
        best, ids, flags = best.contiguous(), ids.contiguous(), flags.int()
        sums = self.reader.torch.empty((len(scratch[0]), self.layer.vocab), dtype=best.dtype, device=self.reader.device)
        for first in range(0, batch, len(sums)):
            self._dense(call, flags, first, scratch, sums)
            self.reader.finish_kernels.dense_pick[(len(sums),)](
                flags, sums, sums, ids, best, self.reader.torch.empty_like(best), first, batch, self.layer.vocab, k,
                BLOCK=self.reader.blocks.select,
            )  # fmt: skip
        return best, ids

    def _table(self, call: Call) -> Candidates:
        """Every row, for every query."""
        batch, scratch = call.batch, self._scratch(call.batch)
        flags, logits = self.reader.full((batch,), 1, "int32"), self.reader.full((batch, self.layer.vocab), 0.0)
        for first in range(0, batch, len(scratch[0])):
            self._dense(call, flags, first, scratch, logits[first : first + len(scratch[0])])
        rows = self.reader.full((batch,), len(self.reader.weight), "int64")
        spent = self._spent(rows, self._row_bytes, dense=True)
        return Candidates(self._classes(batch), logits, self._error(call), flags > 0, spent)

    def _score(self, call: Call, ids: Tensor, eps: float) -> DeviceScored:
        """The nodes on the paths of ``ids``, from the leaves up."""
        branch, values = self.leaf[ids], self.reader.full(tuple(ids.shape), 0.0)
        rows = self.reader.full((call.batch,), 0, "int64")
        for _ in range(self.depth):
            there, some = branch >= 0, branch.clamp(min=0)
            node = self.owner[some]
            opened = self._open(call, node.where(there, -1))
            step = opened.gather(2, (some - self.starts[node])[:, :, None])[:, :, 0]
            values = values + step.where(there, 0.0)
            rows = rows + (self.counts[node] * there).sum(dim=1)
            branch = self.above[node].where(there, -1)
        spent = self._spent(rows // (2 if self.two_way else 1), self._row_bytes)
        return DeviceScored(values, self.reader.full((call.batch,), 0.0), self._error(call), spent)

    def _normalise(self, call: Call, eps: float) -> tuple[Tensor, Tensor, DeviceSpent]:
        """A tree is a distribution: nothing is read."""
        nothing = self.reader.full((call.batch,), 0.0)
        return nothing, nothing, self._spent(nothing, 0.0)

    def _draw(self, call: Call, wish: Filters) -> DeviceDrawn:
        """All draws walk down from the root together; at each node one uniform picks a branch."""
        torch, shape, levels = self.reader.torch, (call.batch, wish.n), self.depth + 1
        key = self._words(int.from_bytes(hashlib.sha256(f"walk {wish.seed}".encode()).digest()[:8], "little"))
        uniform = self.reader.full((*shape, levels), 0.0)
        block = self.reader.blocks.noise
        self.kernels.uniforms[(call.batch, -(-wish.n * levels // block))](
            key, call.rows, uniform, wish.n, levels, BLOCK=block
        )
        at, log_probs = self.reader.full(shape, 0, "int64"), self.reader.full(shape, 0.0)
        rows = self.reader.full((call.batch,), 0, "int64")
        for level in range(1, levels):
            going, some = at >= 0, at.clamp(min=0)
            values = self._open(call, at.where(going, -1))
            reach = torch.exp(values).cumsum(dim=2)
            branch = (reach <= uniform[:, :, level, None] * reach[:, :, -1:]).sum(dim=2)
            branch = torch.minimum(branch, self.counts[some] - 1)
            log_probs = log_probs + values.gather(2, branch[:, :, None])[:, :, 0].where(going, 0.0)
            rows = rows + (self.counts[some] * going).sum(dim=1)
            at = self.children[self.starts[some] + branch].where(going, at)
        score = -torch.log(-torch.log(uniform[:, :, 0]))
        spent = self._spent(rows // (2 if self.two_way else 1), self._row_bytes)
        return DeviceDrawn(~at, log_probs, score, at < 0, spent)

    def _error(self, call: Call) -> Tensor:
        return self.rounding.slope * call.length + self.rounding.shift
