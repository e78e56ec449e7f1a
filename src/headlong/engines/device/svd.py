"""SVD-softmax as published on a device: a float32 look at ``width`` columns of all classes, the N best exactly, one softmax.

    preview z~ = P (T^-1 hidden)[:width] + b        the N largest z~ -> z = W hidden + b        softmax over all of them

The look is the kernel that ``full`` reads rows with, over a matrix of few columns. Nothing is proved, as on the CPU: no
radius stands behind the preview, so ids are those of the N rows and ``error`` is infinite.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from headlong.engines.device.memory import Tensor
from headlong.engines.device.reader import DeviceReader
from headlong.engines.device.records import Call
from headlong.engines.device.table import Candidates, DeviceBest, DeviceScored, DeviceSpent, TableEngine
from headlong.layers.matrix import Layer
from headlong.plan import Plan


class Previewed(NamedTuple):
    """``estimates [batch, vocab]`` float32 of all classes; ``ids, logits [batch, N]`` of those scored, ascending."""

    estimates: Tensor
    ids: Tensor
    logits: Tensor


class SvdDevice(TableEngine):
    """Reads one matrix by a preview and a budget of rows."""

    linked: ClassVar[bool] = True
    masks: ClassVar[bool] = True
    draws_tempered: ClassVar[bool] = True

    def __init__(self, reader: DeviceReader, plan: Plan, promise: Any, **about: Any) -> None:
        super().__init__(reader.layer, reader, "svd", promise, **about)
        assert plan.budget is not None
        assert plan.rotation is not None
        assert plan.base is not None
        level, layer = plan.levels[0], reader.layer
        columns = Layer(level.codes, plan.base[: layer.vocab], layer.link)
        self.preview = DeviceReader(columns, np.zeros(layer.vocab, np.float32), about["place"])
        self.code_kernels = importlib.import_module("headlong.engines.device.kernels.codes")
        self.rotation = reader.tensor(plan.rotation).double()
        self.plan, self.budget = plan, plan.budget

    def _look(self, call: Call, k: int) -> Previewed:
        """The preview, and the best of it exactly: N classes, or k where that is more."""
        torch, count = self.reader.torch, min(self.layer.vocab, max(self.budget, k))
        x = call.hidden @ self.rotation
        inner = call._replace(hidden=x, narrow=x.float().contiguous(), length=self.reader.full((call.batch,), 0.0))
        estimates = self.preview.look(inner, 1, keep=True).estimate
        top, ids = torch.topk(estimates, count, dim=1)
        ids = ids.where(top > -math.inf, self.layer.vocab).sort(dim=1).values  # masked classes behind all others
        ids = ids.where(ids < self.layer.vocab, -1)
        return Previewed(estimates, ids, self.reader.score(call, ids.int())[0])

    def _best(self, call: Call, k: int, eps: float) -> DeviceBest:
        looked = self._look(call, k)
        logits, order = self.reader.torch.sort(looked.logits, dim=1, descending=True, stable=True)
        ids = looked.ids.gather(1, order)[:, :k]
        never = self.reader.full((call.batch,), False, "bool")
        error = self.reader.full((call.batch,), math.inf)
        return DeviceBest(logits[:, :k], ids, never, self._sum(call, looked), error, self._read(call, looked))

    def _sum(self, call: Call, looked: Previewed) -> Tensor:
        """The normaliser of exact logits and, elsewhere, of estimates."""
        torch, reader = self.reader.torch, self.reader
        rest = self._with(looked, looked.estimates, -math.inf)
        tiles = -(-self.layer.vocab // reader.blocks.select)
        mass = reader.full((call.batch, tiles, 3), 0.0)
        self.code_kernels.weigh[(call.batch, tiles)](
            rest, rest, mass, reader.link, call.heat, reader.steepest, self.layer.vocab, tiles,
            KIND=reader.kind, BLOCK=reader.blocks.select,
        )  # fmt: skip
        exact = self._exponents(call, looked.ids, looked.logits)[0]
        unseen = torch.logsumexp(mass[:, :, 0] + mass[:, :, 1].log(), dim=1)
        return torch.logaddexp(torch.logsumexp(exact, dim=1), unseen)

    def _with(self, looked: Previewed, values: Tensor, scored: Any) -> Tensor:
        """``values [batch, vocab]`` with ``scored`` at the classes that were; a column of its own takes what is missing."""
        room = self.reader.torch.cat([values, values[:, :1]], dim=1)
        place = looked.ids.where(looked.ids >= 0, self.layer.vocab)
        return room.scatter(1, place, scored)[:, :-1].contiguous()

    def _table(self, call: Call) -> Candidates:
        looked = self._look(call, 1)
        logits = self._with(looked, looked.estimates.double(), looked.logits)
        ids = self._classes(call.batch)
        error = self.reader.full((call.batch,), math.inf)
        return Candidates(ids, logits, error, self.reader.full((call.batch,), False, "bool"), self._read(call, looked))

    def _score(self, call: Call, ids: Tensor, eps: float) -> DeviceScored:
        best = self._best(call, 1, eps)
        logits = self.reader.score(call, ids.int().contiguous())[0]
        return DeviceScored(logits, best.lse, best.error, best.spent)

    def _read(self, call: Call, looked: Previewed) -> DeviceSpent:
        """Rows that were scored; a block of queries shares the preview."""
        preview = self.layer.vocab * 4.0 * (self.rotation.shape[1] + 1) / max(1, min(call.batch, 32))
        row_bytes = self.layer.dim * self.layer.weight.itemsize
        return self._spent((looked.ids >= 0).sum(dim=1), row_bytes, preview)
