"""Mixtures of softmaxes on a device: the contexts of all queries and components as one batch over one matrix.

::

    look at W once for a block of contexts -> L_k within r_k, upper ends of every z_kx -> upper ends of log p(x)
    the k best of those exactly -> a threshold -> whatever reaches it, exactly; pairs are tried for every L in the box
    what is open (a pair, a buffer, an error beyond eps): its contexts over all classes in float64

The proof is the CPU engine's (``mixture.py``): which class comes first depends on the normalisers, so a pair is sure only
where it stands the same way for all of them. Nothing waits for the device.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from headlong.dtypes import UNIT
from headlong.engines.device.memory import Tensor
from headlong.engines.device.reader import DeviceReader
from headlong.engines.device.records import Call
from headlong.engines.device.table import Candidates, DeviceBest, DeviceDrawn, DeviceScored, DeviceSpent, TableEngine
from headlong.engines.sampling_filters import Filters
from headlong.layers.mixture import MixtureLayer
from headlong.promise import Promise

CONTEXTS = 32
"""Contexts that are finished densely side by side: each takes 8 bytes a class of scratch memory."""


class Contexts(NamedTuple):
    """``call``: the contexts ``[batch * components, latent]`` of all queries; ``prior [batch, components]``: log pi."""

    call: Call
    prior: Tensor


class Box(NamedTuple):
    """``shift [batch, components]``: log pi - L, within ``radius``."""

    shift: Tensor
    radius: Tensor


class MixtureDevice(TableEngine):
    """Reads a :class:`MixtureLayer`; log-probabilities as logits, lse = 0, as on the CPU."""

    exact_at: ClassVar[float] = 1e-9

    def __init__(self, layer: MixtureLayer, reader: DeviceReader, promise: Promise, **about: Any) -> None:
        super().__init__(layer, reader, layer.kind, promise, **about)
        self.kernels = importlib.import_module("headlong.engines.device.kernels.mixing")
        self.project, self.offset, self.prior = (
            reader.tensor(part).double() for part in (layer.project, layer.offset, layer.prior)
        )
        self.parts = 1 if layer.pooled else layer.components
        self._stretch = float(np.abs(layer.project.astype(np.float64)).sum(axis=1).max())
        self._row_bytes = layer.latent * layer.matrix.weight.itemsize

    def _contexts(self, call: Call) -> Contexts:
        torch, layer = self.reader.torch, self.layer
        made = torch.tanh(call.hidden @ self.project.T + self.offset).view(call.batch, layer.components, layer.latent)
        prior = torch.log_softmax(call.hidden @ self.prior.T, dim=1)
        if layer.pooled:
            made = (prior.exp()[:, :, None] * made).sum(dim=1, keepdim=True)
            prior = torch.zeros_like(prior[:, :1])
        rows = made.reshape(call.batch * self.parts, layer.latent)
        return Contexts(self._over(call, rows, call.rows.repeat_interleave(self.parts, dim=0)), prior)

    def _over(self, call: Call, rows: Tensor, numbers: Tensor) -> Call:
        """The call that asks the matrix for ``rows [n, latent]``, at temperature 1 and without a mask."""
        length = self.reader.torch.linalg.vector_norm(rows, dim=1) * (1 + 1e-12)
        return call._replace(
            hidden=rows.contiguous(), narrow=rows.float().contiguous(), length=length, mask=None,
            heat=self.reader.full((1,), 1.0), rows=numbers, draws=self.reader.full((len(rows),), 0, "int64"),
        )  # fmt: skip

    def _best(self, call: Call, k: int, eps: float) -> DeviceBest:
        torch, reader, contexts = self.reader.torch, self.reader, self._contexts(call)
        looked = reader.look(contexts.call, 1)
        box = self._box(contexts, *reader.sums(looked))
        ids, count, over = self._rivals(call, contexts, box, looked.high, k)
        z = self._logits(contexts, ids, count)
        keys, order = torch.sort(self._mix(contexts, z, box.shift), dim=1, descending=True, stable=True)
        z = z.gather(2, order[:, None, :].expand(z.shape))
        error = box.radius.amax(dim=1)
        flags = over | self._doubts(contexts, z, box, k) | ~(error + self._rounding(call, keys[:, :k]) <= eps)
        best, ids = keys[:, :k].contiguous(), ids.gather(1, order)[:, :k].contiguous()
        lse, empty = reader.full(tuple(box.shift.shape), 0.0), torch.empty_like(best)
        for first, mixed in self._dense(contexts, flags, lse):
            reader.finish_kernels.dense_pick[(len(mixed),)](
                flags.int(), mixed, mixed, ids, best, empty, first, call.batch, self.layer.vocab, k, BLOCK=reader.blocks.select
            )
        if self.parts == 1:  # ordered by their logits until here
            shift = torch.where(flags[:, None], contexts.prior - lse, box.shift)
            best = reader.exponents(contexts.call, ids, best)[0] + shift
        ids, best = ids.long().where(best > -math.inf, -1), best.clamp(max=0.0)
        error = self._error(call, contexts, flags, lse, error, best)
        yes = reader.full((call.batch,), True, "bool")
        return DeviceBest(best, ids, yes, reader.full((call.batch,), 0.0), error, self._read(count, flags, call.batch))

    def _box(self, contexts: Contexts, lse: Tensor, error: Tensor) -> Box:
        shape = contexts.prior.shape
        return Box(contexts.prior - lse.view(shape), error.view(shape))

    def _rivals(self, call: Call, contexts: Contexts, box: Box, high: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """``ids [batch, capacity]`` that may be among the k best, ascending, their count, and where room ran out."""
        torch, reader, vocab = self.reader.torch, self.reader, self.layer.vocab
        ends = reader.full((call.batch, vocab), 0.0, "float32")
        self.kernels.mix_ends[(call.batch, -(-vocab // reader.blocks.select))](
            high, (box.shift + box.radius).contiguous(), ends, reader.link, vocab, self.parts,
            KIND=reader.kind, BLOCK=reader.blocks.select,
        )  # fmt: skip
        seeds = torch.topk(ends, k, dim=1).indices
        z = self._logits(contexts, seeds, reader.full((call.batch,), k, "int64"))
        least = torch.logsumexp(self._linked(contexts, z) + (box.shift - box.radius)[:, :, None], dim=1).amin(dim=1)
        least = least - 2 * self._rounding(call, least[:, None])
        threshold = torch.where(least.isfinite(), least - least.abs() * 2.0**-22 - 1e-37, -math.inf)
        capacity = reader.capacity(k)
        count, kept = reader.select(ends, threshold.float(), capacity)
        ids = kept.where(kept >= 0, vocab).sort(dim=1).values
        return ids.where(ids < vocab, -1), count.clamp(max=capacity), count > capacity

    def _logits(self, contexts: Contexts, ids: Tensor, count: Tensor) -> Tensor:
        """``[batch, components, m]``, exact."""
        every = ids.repeat_interleave(self.parts, dim=0).int().contiguous()
        counts = count.repeat_interleave(self.parts, dim=0).int()
        return self.reader.score(contexts.call, every, counts)[0].view(len(ids), self.parts, ids.shape[1])

    def _linked(self, contexts: Contexts, z: Tensor) -> Tensor:
        flat = z.reshape(len(z) * self.parts, z.shape[2]).contiguous()
        return self.reader.exponents(contexts.call, flat.long(), flat)[0].view(z.shape)  # (only noise looks at ids)

    def _mix(self, contexts: Contexts, z: Tensor, shift: Tensor) -> Tensor:
        """``log p``, ``[batch, m]``; of one component its logits, which order it."""
        if self.parts == 1:
            return z[:, 0]
        return self.reader.torch.logsumexp(self._linked(contexts, z) + shift[:, :, None], dim=1)

    def _doubts(self, contexts: Contexts, z: Tensor, box: Box, k: int) -> Tensor:
        """Where a pair of the k first, or of their last and a later one, may stand the other way round, ``[batch]``."""
        torch, width = self.reader.torch, z.shape[2]
        if self.parts == 1 or width == 1:
            return self.reader.full((len(z),), False, "bool")
        terms = self._linked(contexts, z) + box.shift[:, :, None]
        before = torch.arange(width - 1, device=self.reader.device).clamp(max=min(k, width) - 1)
        x, y = terms[:, :, before], terms[:, :, 1:]
        scale = x.amax(dim=1, keepdim=True)
        gap = torch.exp(x - scale) - torch.exp(y - scale)
        worst = gap * torch.exp(torch.where(gap > 0, -box.radius[:, :, None], box.radius[:, :, None]))
        sure = torch.where(gap == 0, 0.0, worst).sum(dim=1) >= 0
        return ~(sure | (y == -math.inf).all(dim=1)).all(dim=1)

    def _dense(self, contexts: Contexts, flags: Tensor, lse: Tensor, mix: bool = True) -> Iterator[tuple[int, Tensor]]:
        """``first, keys [slots, vocab]`` of the flagged queries in float64, some at a time, and their ``lse``, filled in."""
        torch, reader, vocab, parts = self.reader.torch, self.reader, self.layer.vocab, self.parts
        batch, call, tiles = len(flags), contexts.call, -(-vocab // self.reader.blocks.rows)
        slots = max(1, min(batch, CONTEXTS // parts))
        each = {"dtype": torch.float64, "device": reader.device}
        z, mass = torch.empty((slots * parts, vocab), **each), torch.empty((slots * parts, tiles, 2), **each)
        mixed, flags = torch.empty((slots, vocab), **each) if mix and parts > 1 else z, flags.int()
        for first in range(0, batch, slots):
            mine = slice(first * parts, (first + slots) * parts)
            reader.finish_kernels.dense_rows[(slots * parts, tiles)](
                flags[first : first + slots].repeat_interleave(parts, dim=0).contiguous(),
                reader.weight, reader.one if reader.bias is None else reader.bias, call.hidden[mine], reader.one, 0, z, z, mass,
                reader.link, *call.noise, 0, len(call.hidden[mine]), vocab, self.layer.latent, tiles,
                BIAS=reader.bias is not None, MASKED=False, KIND=reader.kind, SAMPLE=False,
                ROWS=reader.blocks.rows, BLOCK_D=reader.blocks.columns,
            )  # fmt: skip
            sums = torch.logsumexp(mass[:, :, 0] + mass[:, :, 1].log(), dim=1).view(slots, parts)
            lse[first : first + slots] = sums[: batch - first]
            if mix and parts > 1:
                self.kernels.mix_rows[(slots, -(-vocab // reader.blocks.select))](
                    flags, z, contexts.prior - lse, mixed, reader.link, first, batch, vocab, parts,
                    KIND=reader.kind, BLOCK=reader.blocks.select,
                )  # fmt: skip
            yield first, mixed

    def _score(self, call: Call, ids: Tensor, eps: float) -> DeviceScored:
        torch, contexts = self.reader.torch, self._contexts(call)
        box = self._box(contexts, *self.reader.sums(self.reader.look(contexts.call, 1)))
        z = self._logits(contexts, ids, self.reader.full((call.batch,), ids.shape[1], "int64"))
        error, nothing = box.radius.amax(dim=1), self.reader.full((call.batch,), 0.0)
        flags, lse = ~(error + self._rounding(call, nothing[:, None]) <= eps), torch.zeros_like(box.shift)
        for _ in self._dense(contexts, flags, lse, mix=False):
            pass
        shift = torch.where(flags[:, None], contexts.prior - lse, box.shift)
        values = torch.logsumexp(self._linked(contexts, z) + shift[:, :, None], dim=1)
        error = self._error(call, contexts, flags, lse, error, values)
        count = self.reader.full((call.batch,), ids.shape[1], "int64")
        return DeviceScored(values, nothing, error, self._read(count, flags, call.batch))

    def _table(self, call: Call) -> Candidates:
        reader, contexts = self.reader, self._contexts(call)
        flags, lse = reader.full((call.batch,), True, "bool"), reader.torch.zeros_like(contexts.prior)
        logits = reader.full((call.batch, self.layer.vocab), 0.0)
        for first, mixed in self._dense(contexts, flags, lse):
            logits[first : first + len(mixed)] = mixed[: call.batch - first]
        ids = self._classes(call.batch)
        if self.parts == 1:
            logits = reader.exponents(contexts.call, ids, logits)[0] + contexts.prior - lse
        error = self._error(call, contexts, flags, lse, lse[:, 0], logits[:, :1])
        none = reader.full((call.batch,), 0, "int64")
        return Candidates(ids, logits, error, flags, self._read(none, flags, call.batch))

    def _normalise(self, call: Call, eps: float) -> tuple[Tensor, Tensor, DeviceSpent]:
        """Mixtures of distributions are distributions: nothing is read."""
        nothing = self.reader.full((call.batch,), 0.0)
        return nothing, nothing, self._spent(nothing, 0.0)

    def _draw(self, call: Call, wish: Filters) -> DeviceDrawn:
        """A component by its prior, then a class of that component: an exact draw from the mixture."""
        torch, reader, contexts, shape = self.reader.torch, self.reader, self._contexts(call), (call.batch, wish.n)
        owners = self.layer.vocab + torch.arange(self.parts, device=reader.device)  # noise that no class has
        numbered = self._numbered(call, 0, wish.n)
        prior, noise = self._exponents(numbered, owners.expand(call.batch, -1), contexts.prior, wish.n)
        owner = (prior + noise).argmax(dim=1)
        row = torch.arange(call.batch, device=reader.device).repeat_interleave(wish.n) * self.parts + owner
        chosen = self._over(call, contexts.call.hidden[row], numbered.rows)._replace(draws=numbered.draws)
        looked = reader.look(chosen, 1, sample=True)
        found = reader.candidates(chosen, looked, 1, sample=True)
        found, _ = reader.finish(chosen, found, found.over, sample=True)
        ids = found.ids.view(shape)
        scored = self._score(call, ids.clamp(min=0), self.promise.eps)
        return DeviceDrawn(ids, scored.logits, found.keys.view(shape), ids >= 0, scored.spent)

    def _error(
        self, call: Call, contexts: Contexts, flags: Tensor, lse: Tensor, error: Tensor, values: Tensor
    ) -> Tensor:
        """How far a log-probability can be off: by its normalisers, and by float64 on the way."""
        exact = self.reader.exact_error(contexts.call, lse.reshape(-1)).view(lse.shape).amax(dim=1)
        return self.reader.torch.where(flags, exact, error) + self._rounding(call, values)

    def _rounding(self, call: Call, values: Tensor) -> Tensor:
        """``MixtureEngine._rounding`` for each query: contexts, logits, link, sums."""
        layer, link = self.layer, self.reader.layer.link
        context = (layer.dim + 8) * (1 + self._stretch * call.hidden.abs().amax(dim=1))
        logit = self.reader.longest * math.sqrt(layer.latent) * (layer.latent + context)
        size = link.steepest * (logit + 8 * self.reader.largest) + 8 * link.offset + 16 * layer.components
        there = values.abs().where(values.isfinite(), 0.0).amax(dim=1)
        return (size + 8 * there + context * layer.components) * UNIT

    def _read(self, count: Tensor, flags: Tensor, batch: int) -> DeviceSpent:
        """One look that a block of contexts shares, exact rows, and all rows again for those that are flagged."""
        vocab = self.layer.vocab
        look = vocab * self.parts * self._row_bytes / max(1, min(batch * self.parts, 32))
        return self._spent(count + vocab + flags * vocab, self._row_bytes, look - vocab * self._row_bytes, dense=True)
