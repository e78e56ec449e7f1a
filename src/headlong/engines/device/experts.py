"""Doubly sparse layers on a device: the gate for all queries at once, then each query's expert, row by row in float64.

    k, g = argmax and maximum of softmax(gate x)        z_c = weight_c . (g x) for the rows starts[k] .. starts[k + 1]

An expert has few rows, so they are scored exactly at once and nothing is left open. Launches are as wide as the largest
expert; programs behind the end of a smaller one return at once. Which expert a query goes to is never known to the host.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from headlong.dtypes import UNIT
from headlong.engines.device.memory import Tensor
from headlong.engines.device.reader import DeviceReader
from headlong.engines.device.records import Call
from headlong.engines.device.table import Candidates, DeviceScored, TableEngine
from headlong.layers.experts import ExpertsLayer
from headlong.promise import Promise


class Routed(NamedTuple):
    """Of each query: its ``expert``, the ``first`` of its rows and their ``count``; ``call`` holds ``g x``."""

    call: Call
    expert: Tensor
    first: Tensor
    count: Tensor
    error: Tensor
    sure: Tensor


class ExpertsDevice(TableEngine):
    """Reads an :class:`ExpertsLayer`; proves everything but where rounding could change the route."""

    draws_tempered: ClassVar[bool] = True

    def __init__(self, layer: ExpertsLayer, reader: DeviceReader, norms: Any, promise: Promise, **about: Any) -> None:
        super().__init__(layer, reader, layer.kind, promise, **about)
        owner = np.repeat(np.arange(layer.experts), layer.sizes)
        self.gate = reader.tensor(layer.gate).double()
        self.ids, self.starts = reader.tensor(layer.ids), reader.tensor(layer.starts)
        self.keys = reader.tensor(owner * layer.vocab + layer.ids)
        """One ascending number for each row: its expert, then its class."""
        longest = np.maximum.reduceat(norms.astype(np.float64), layer.starts[:-1])
        self.longest = reader.tensor(longest * (1 + 2.0**-20))
        self.gate_longest = float(np.linalg.norm(layer.gate.astype(np.float64), axis=1).max())
        self.widest = int(layer.sizes.max())

    def route(self, hidden: Any) -> Tensor:
        """The expert that reads each row, ``[batch]``."""
        return self._route(self._call(hidden)[0]).expert

    def _route(self, call: Call) -> Routed:
        torch, layer, x = self.reader.torch, self.layer, call.hidden
        if layer.constant:
            x = torch.cat([x, self.reader.full((call.batch, 1), 1.0)], dim=1)
        scores = x @ self.gate.T
        best, expert = scores.max(dim=1)
        off = (layer.width + 4) * UNIT * self.gate_longest * torch.linalg.vector_norm(x, dim=1)
        others = scores.scatter(1, expert[:, None], -math.inf).amax(dim=1)
        wrong = 2 * UNIT
        if layer.scaled:
            x = x / torch.exp(scores - best[:, None]).sum(dim=1, keepdim=True)
            wrong = 2 * off + (layer.experts + 10) * UNIT
        size = self.longest[expert] * torch.linalg.vector_norm(x, dim=1) * (1 + 2.0**-20)
        first = self.starts[expert]
        return Routed(
            call._replace(hidden=x.contiguous()), expert, first, self.starts[expert + 1] - first,
            (wrong + (layer.width + 4) * UNIT) * size, best - others > 2 * off,
        )  # fmt: skip

    def _table(self, call: Call) -> Candidates:
        return self._read(self._route(call))

    def _read(self, routed: Routed) -> Candidates:
        local = self.reader.torch.arange(self.widest, device=self.reader.device)[None]
        there = local < routed.count[:, None]
        rows = (routed.first[:, None] + local).where(there, -1)
        logits = self.reader.score(routed.call, rows.int().contiguous(), routed.count.int())[0]
        ids = self.ids[rows.clamp(min=0)].where(there, -1)
        row_bytes = self.layer.width * self.layer.weight.itemsize
        spent = self._spent(routed.count, row_bytes, float(self.layer.gate.nbytes))
        return Candidates(ids, logits, routed.error, routed.sure, spent)

    def _score(self, call: Call, ids: Tensor, eps: float) -> DeviceScored:
        torch, routed = self.reader.torch, self._route(call)
        best = self._best_of(self._read(routed), call, 1)
        wanted = routed.expert[:, None] * self.layer.vocab + ids
        row = torch.searchsorted(self.keys, wanted).clamp(max=len(self.keys) - 1)
        row = row.where(self.keys[row] == wanted, -1)
        return DeviceScored(self.reader.score(routed.call, row.int().contiguous())[0], best.lse, best.error, best.spent)
