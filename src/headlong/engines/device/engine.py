"""The verbs of an engine on a device: tensors in, tensors out, and nothing on the way waits for the GPU.

::

    hl.compile(layer, "full", device="cuda").topk(hidden, k)      -> TopK of CUDA tensors

The answers are those of ``engines/base.py``, with the same proofs and the same noise: an engine on the CPU and one on a GPU
draw the same samples from the same seed. Two things differ. What can be refused only by looking at a tensor's numbers is
not refused: a row that is no number is answered by ids -1, NaN and ``proved`` False, as is a given id that is out of range.
And log-probabilities are proved or finished densely, never estimated from a sample.
"""

from __future__ import annotations

import math
from typing import Any

from headlong.answers import Cost, LogProb, Lse, Sample, TopK
from headlong.engines.arguments import checked_k
from headlong.engines.device.block_launches import ShortBlocks, searched
from headlong.engines.device.calls import DeviceCalls, answered
from headlong.engines.device.cascade import CodesReader
from headlong.engines.device.cascade_launches import ShortCodes
from headlong.engines.device.full_launches import MOST, Short, ShortAnswers
from headlong.engines.device.memory import Tensor
from headlong.engines.device.query import nucleus_size
from headlong.engines.device.reader import DeviceReader
from headlong.engines.device.records import Call, Finalists, Looked
from headlong.engines.device.tile_sizes import queries_together
from headlong.engines.sampling_filters import Filters
from headlong.previews.blocks.choice import look_bytes
from headlong.promise import Promise

NUCLEUS = 1024
"""Classes among which ``top_p`` and ``min_p`` are decided first."""


class DeviceEngine(DeviceCalls):
    """Reads one layer on a GPU. Made by ``headlong.compile(layer, device="cuda")``, or of a layer that lies there."""

    may_be_shard = True

    def __init__(self, reader: DeviceReader, name: str, promise: Promise, *, plan: Any, **about: Any) -> None:
        super().__init__(reader.layer, reader, name, promise, **about)
        self.plan = plan
        self.short = ShortCodes(reader) if isinstance(reader, CodesReader) else ShortAnswers(reader)
        self.blocks = ShortBlocks(reader, plan.blocks) if searched(plan.blocks) else None
        self.look_bytes = look_bytes(plan)

    def topk(self, hidden: Any, k: int = 10, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> TopK:
        """The ``k`` likeliest classes of each row of ``hidden [batch, dim]``, likeliest first, equal logits by id."""
        k, reach = checked_k(k, self.layer.vocab), self._eps(eps)
        asked = self._asked(hidden, allowed, exclude)
        if k <= MOST:
            short = self._short_for(len(asked.hidden), k, reach)(asked.hidden, asked.mask, k, reach)
            parts = short.values, short.ids, short.logits, short.lse, short.error, short.proved
            return answered(TopK(*parts, self._short_cost(short)), asked.kind)
        call = self._call_of(asked)
        found, lse, error, cost = self._topk(call, k, reach)
        exponents, _ = self.reader.exponents(call, found.ids, found.logits)
        bad = self._bad(call)
        log_probs = (exponents - self.reader.torch.where(lse.isfinite(), lse, 0.0)[:, None]).masked_fill(bad[:, None], math.nan)
        lse, error = lse.masked_fill(bad, math.nan), error.masked_fill(bad, math.inf)
        return answered(TopK(log_probs, found.ids, found.logits, lse, error, ~bad, cost), asked.kind)

    def log_prob(self, hidden: Any, ids: Any, *, eps: float | None = None) -> LogProb:
        """The log-probabilities of ``ids [batch, m]``: their exact logits, and the normaliser of all classes."""
        reach = self._eps(eps)
        call, kind = self._call(hidden)
        chosen = self._ids(ids, call.batch)
        outside = (chosen < 0) | (chosen >= self.layer.vocab)
        logits, _ = self.reader.score(call, chosen.masked_fill(outside, -1).int().contiguous())
        lse, error, flags = self._lse(call, reach)
        exponents, _ = self.reader.exponents(call, chosen, logits)
        bad = self._bad(call)
        wrong = outside | bad[:, None]
        values = (exponents - lse[:, None]).masked_fill(wrong, math.nan)
        count = self.reader.full((call.batch,), chosen.shape[1], "int64")
        lse, error = lse.masked_fill(bad, math.nan), error.masked_fill(bad, math.inf)
        return answered(LogProb(values, logits.masked_fill(wrong, math.nan), lse, error, self._cost(call, count, flags)), kind)

    def lse(self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> Lse:
        """The log-normaliser ``log sum_i exp(link(z_i))`` of each row, over the classes that are there."""
        reach = self._eps(eps)
        asked = self._asked(hidden, allowed, exclude)
        short = self.short(asked.hidden, asked.mask, 1, reach)
        return answered(Lse(short.lse, short.error, self._short_cost(short)), asked.kind)

    def _sample(self, hidden: Any, filters: Filters, allowed: Any, exclude: Any) -> Sample:
        """Plain draws need no normaliser: the Gumbels join the look at all classes.

        With ``top_p`` or ``min_p`` the best classes are ordered first; where those are too few the host looks, and orders all
        (while a CUDA graph is captured it cannot: then ``proved`` is False for that row). With ``top_k`` those k are all there
        is to order.
        """
        asked, n = self._asked(hidden, allowed, exclude, filters), filters.n
        filtered = filters.top_k > 0 or filters.top_p < 1 or filters.min_p > 0
        if n == 1 and not filtered:
            short = self.short(asked.hidden, asked.mask, 1, math.inf, filters)
            parts = short.ids, short.logits, short.score, short.proved[:, None]
            return answered(Sample(*parts, self._short_cost(short)), asked.kind)
        call = self._call_of(asked, filters)
        if filtered:
            return answered(self._filtered(call, filters), asked.kind)
        spread = self._spread(call, n)
        looked = self.reader.look(spread, 1, sample=True)
        found = self.reader.candidates(spread, looked, 1, sample=True)
        found, _ = self.reader.finish(spread, found, found.over, sample=True)
        shape = (call.batch, n)
        ids, logits, keys = (part.view(shape) for part in (found.ids, found.logits, found.keys))
        proved = ~self._bad(call)[:, None].expand(shape)
        count, passed = (part.view(shape).sum(dim=1) for part in (found.count, found.passed))
        cost = self._cost(call, count, found.over.view(shape).any(dim=1), passed)
        return answered(Sample(ids, logits, keys, proved, cost), asked.kind)

    def __repr__(self) -> str:
        layer = self.layer
        return (
            f"DeviceEngine({self.name}: vocab={layer.vocab}, dim={layer.dim}, {layer.dtype}, {self.promise}, "
            f"kernel {self.path}, on {self.place})"
        )

    def _short_for(self, batch: int, k: int, eps: float) -> ShortAnswers:
        """A search by blocks where ids alone are asked for and it finds them for less."""
        if self.blocks is None or not math.isinf(eps):
            return self.short
        looks = -(-batch // queries_together(batch))  # each for a block of queries
        return self.blocks if self.blocks.takes(batch, k, looks * self.look_bytes) else self.short

    def _topk(self, call: Call, k: int, eps: float) -> tuple[Finalists, Tensor, Tensor, Cost]:
        if k <= MOST and self._short_for(call.batch, k, eps) is self.blocks:
            short = self.blocks(call.hidden, call.mask, k, eps)
            same = short.ids, short.logits, short.score, short.rows, short.dense, short.ids, short.logits, short.rows
            return Finalists(*same), short.lse, short.error, self._short_cost(short)
        looked = self.reader.look(call, k)
        found = self.reader.candidates(call, looked, k)
        found, lse, error, flags = self._finished(call, looked, found, eps)
        return found, lse, error, self._cost(call, found.count, flags, found.passed)

    def _finished(self, call: Call, looked: Looked, found: Finalists, eps: float) -> tuple[Finalists, Tensor, Tensor, Tensor]:
        """What is open once more, densely: ids that found no room, a normaliser that is not within ``eps``."""
        lse, error = self.reader.mass(call, looked, found)
        flags = found.over | (error > eps)
        found, dense = self.reader.finish(call, found, flags)
        where = self.reader.torch.where
        return found, where(flags, dense, lse), where(flags, self.reader.exact_error(call, dense), error), flags

    def _lse(self, call: Call, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        looked = self.reader.look(call, 1)
        found = self.reader.candidates(call, looked, 1)
        _, lse, error, flags = self._finished(call, looked, found, eps)
        return lse, error, flags

    def _filtered(self, call: Call, wish: Filters) -> Sample:
        """Draws after filters: among the best classes in their order, all of them where the first few do not decide."""
        count = wish.top_k or min(self.layer.vocab, NUCLEUS)
        ids, logits, score, closed, cost = self._nucleus(call, wish, count, math.inf)
        cuda = self.reader.torch.cuda
        capturing = self.reader.device.type == "cuda" and cuda.is_current_stream_capturing()
        bad = self._bad(call)
        if not (wish.top_k or capturing) and bool((~closed & ~bad).any()):
            rows = (~closed & ~bad).nonzero()[:, 0]
            again = self._nucleus(self._rows(call, rows), wish, wish.top_k or self.layer.vocab, 1e-9)
            ids[rows], logits[rows], score[rows] = again[:3]
            closed[rows] = True
            for total, more in zip(cost[:3], again[4][:3], strict=True):
                total[rows] += more
        proved = (closed & ~bad)[:, None].expand(ids.shape)
        return Sample(ids, logits, score, proved, cost)

    def _nucleus(self, call: Call, wish: Filters, k: int, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Cost]:
        """``ids, logits, score [batch, n]`` of draws from the k best, whether those settle the filters, the cost."""
        torch, n = self.reader.torch, wish.n
        found, lse, error, cost = self._topk(call, k, math.inf if wish.top_k or wish.top_p == 1 else eps)
        spread = self._spread(call, n)
        exponents, noise = self.reader.exponents(spread, found.ids, found.logits, n)
        first = exponents[::n]
        mass = torch.exp(first - first[:, :1])
        before = mass.cumsum(dim=1) - mass
        whole = wish.top_k > 0 or k == self.layer.vocab
        total = mass.sum(dim=1) if whole else torch.exp(lse - first[:, 0])
        doubt = torch.full_like(error, 1e-12) if whole else error + 1e-12
        goal = wish.top_p * total
        place = torch.arange(mass.shape[1], device=mass.device)[None]
        inside = place < nucleus_size(mass, wish.top_p, total)[:, None]
        inside &= first >= first[:, :1] + (math.log(wish.min_p) if wish.min_p > 0 else -math.inf)
        inside &= first > -math.inf
        near = (before - goal[:, None]).abs() <= goal[:, None] * torch.expm1(doubt)[:, None]
        closed = ~(near & (before > 0)).any(dim=1) if wish.top_p < 1 else torch.ones_like(error, dtype=torch.bool)
        closed |= self.reader.full((call.batch,), whole, "bool")  # float64 decides where all are there
        closed &= whole | ~inside[:, -1]
        key = torch.where(inside.repeat_interleave(n, dim=0), exponents + noise, -math.inf)
        score, place = key.max(dim=1)
        place = place.view(call.batch, n)
        return found.ids.gather(1, place), found.logits.gather(1, place), score.view(call.batch, n), closed, cost

    def _short_cost(self, short: Short) -> Cost:
        return Cost(short.rows, short.bytes, short.dense, f"{self.name}/{self.path}")

    def _cost(self, call: Call, count: Tensor, flags: Tensor, passed: Tensor | None = None) -> Cost:
        rows, read = self.reader.cost(call, count, passed)
        again = flags * float(self.layer.vocab)
        row_bytes = self.layer.dim * self.layer.weight.itemsize
        dense = flags | self.reader.full((call.batch,), self.reader.always, "bool")
        return Cost(rows + again.long(), read + again * row_bytes, dense, f"{self.name}/{self.path}")
