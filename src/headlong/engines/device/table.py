"""Engines on a device that hold the logits of some classes in float64: every verb from such a table, sorted, summed, drawn.

::

    Candidates: ids [batch, m] ascending, logits [batch, m]      top-k: a stable sort      lse: log sum exp      draws: Gumbels

The engines of structured layers and of SVD-softmax are of this form; each says which classes are in its table and has a
shorter way to its best classes where there is one. The answers are those of the engines on the CPU, from the same noise.
Nothing here waits for the device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

from headlong.answers import Cost, LogProb, Lse, Sample, TopK
from headlong.dtypes import UNIT
from headlong.engines.arguments import checked_k
from headlong.engines.device.calls import DeviceCalls, answered
from headlong.engines.device.memory import Tensor
from headlong.engines.device.query import nucleus_size
from headlong.engines.device.records import Call
from headlong.engines.sampling_filters import Filters

AT_ONCE = 1 << 24
"""Noise numbers that are held at once."""


class DeviceSpent(NamedTuple):
    """``rows`` scored, ``bytes`` read, and whether everything was: ``[batch]`` each."""

    rows: Tensor
    bytes: Tensor
    dense: Tensor


class Candidates(NamedTuple):
    """``ids, logits [batch, m]``, ascending ids (-1 and -inf: no class); each logit within ``error [batch]``; ``sure
    [batch]``: these are the classes that the layer's own decisions lead to.
    """

    ids: Tensor
    logits: Tensor
    error: Tensor
    sure: Tensor
    spent: DeviceSpent


class DeviceBest(NamedTuple):
    """``logits, ids [batch, k]`` in their order; a log-probability is within ``error [batch]``."""

    logits: Tensor
    ids: Tensor
    proved: Tensor
    lse: Tensor
    error: Tensor
    spent: DeviceSpent


class DeviceScored(NamedTuple):
    """``logits [batch, m]`` of given classes and the normaliser; a log-probability is within ``error``."""

    logits: Tensor
    lse: Tensor
    error: Tensor
    spent: DeviceSpent


class DeviceDrawn(NamedTuple):
    """``ids, logits, score, proved [batch, n]``."""

    ids: Tensor
    logits: Tensor
    score: Tensor
    proved: Tensor
    spent: DeviceSpent


class TableEngine(DeviceCalls, ABC):
    """The verbs of :class:`headlong.engines.device.engine.DeviceEngine` over a layer that is no single scan of one matrix."""

    linked: ClassVar[bool] = False
    """Whether the layer's link is between a table's logits and their exponents."""
    masks: ClassVar[bool] = False
    """Whether :meth:`_best` knows masks."""
    draws_tempered: ClassVar[bool] = False
    """Whether :meth:`_draw` knows temperatures other than 1."""

    @abstractmethod
    def _table(self, call: Call) -> Candidates:
        """Every class that can have a probability."""

    @abstractmethod
    def _score(self, call: Call, ids: Tensor, eps: float) -> DeviceScored:
        """``ids [batch, m]``, each in range."""

    def _best(self, call: Call, k: int, eps: float) -> DeviceBest:
        return self._best_of(self._table(call), call, k)

    def _draw(self, call: Call, wish: Filters) -> DeviceDrawn:
        """Plain draws: no filter is on, and the temperature is 1 unless ``draws_tempered``."""
        return self._draws(self._table(call), call, wish)

    def _normalise(self, call: Call, eps: float) -> tuple[Tensor, Tensor, DeviceSpent]:
        best = self._best(call, 1, eps)
        return best.lse, best.error, best.spent

    def topk(self, hidden: Any, k: int = 10, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> TopK:
        """The ``k`` likeliest classes of each row of ``hidden [batch, dim]``, likeliest first, equal logits by id."""
        k, reach = checked_k(k, self.layer.vocab), self._eps(eps)
        call, kind = self._call(hidden, allowed, exclude)
        plain = call.mask is None or self.masks
        best = self._best(call, k, reach) if plain else self._best_of(self._masked(call), call, k)
        bad = self._bad(call)
        exponents = self._exponents(call, best.ids, best.logits)[0]
        shift = best.lse.where(best.lse.isfinite(), 0.0)[:, None]
        log_probs = (exponents - shift).masked_fill(bad[:, None], math.nan)
        ids, logits = best.ids.masked_fill(bad[:, None], -1), best.logits.masked_fill(bad[:, None], -math.inf)
        lse, error = best.lse.masked_fill(bad, math.nan), best.error.masked_fill(bad, math.inf)
        return answered(TopK(log_probs, ids, logits, lse, error, best.proved & ~bad, self._cost(best.spent)), kind)

    def log_prob(self, hidden: Any, ids: Any, *, eps: float | None = None) -> LogProb:
        """The log-probabilities of ``ids [batch, m]``; -inf for a class that the layer gives no probability."""
        reach = self._eps(eps)
        call, kind = self._call(hidden)
        chosen = self._ids(ids, call.batch)
        outside = (chosen < 0) | (chosen >= self.layer.vocab)
        scored = self._score(call, chosen.masked_fill(outside, 0), reach)
        bad = self._bad(call)
        wrong = outside | bad[:, None]
        values = self._exponents(call, chosen, scored.logits)[0] - scored.lse[:, None]
        values, logits = values.masked_fill(wrong, math.nan), scored.logits.masked_fill(wrong, math.nan)
        lse, error = scored.lse.masked_fill(bad, math.nan), scored.error.masked_fill(bad, math.inf)
        return answered(LogProb(values, logits, lse, error, self._cost(scored.spent)), kind)

    def lse(self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> Lse:
        """The log-normaliser of each row, over the classes that are there."""
        reach = self._eps(eps)
        call, kind = self._call(hidden, allowed, exclude)
        if call.mask is None or self.masks:
            lse, error, spent = self._normalise(call, reach)
        else:
            best = self._best_of(self._masked(call), call, 1)
            lse, error, spent = best.lse, best.error, best.spent
        bad = self._bad(call)
        return answered(Lse(lse.masked_fill(bad, math.nan), error.masked_fill(bad, math.inf), self._cost(spent)), kind)

    def _sample(self, hidden: Any, filters: Filters, allowed: Any, exclude: Any) -> Sample:
        """A row in which no class of positive probability is left gets id -1 and ``proved`` False."""
        call, kind = self._call(hidden, allowed, exclude, filters)
        free = call.mask is None or self.masks
        if free and not _filtered(filters) and (filters.temperature == 1 or self.draws_tempered):
            drawn = self._draw(call, filters)
        elif free and 0 < filters.top_k <= self.layer.vocab // (1 if self.masks else 4):
            drawn = self._draws(self._table_of(self._best(call, filters.top_k, self.exact_at)), call, filters)
        else:
            drawn = self._draws(self._table(call) if free else self._masked(call), call, filters)
        lost = self._bad(call)[:, None] | (drawn.score == -math.inf)
        ids, logits = drawn.ids.masked_fill(lost, -1), drawn.logits.masked_fill(lost, -math.inf)
        score = drawn.score.masked_fill(lost, -math.inf)
        return answered(Sample(ids, logits, score, drawn.proved & ~lost, self._cost(drawn.spent)), kind)

    def __repr__(self) -> str:
        layer = self.layer
        return (
            f"DeviceEngine({self.name}: vocab={layer.vocab}, dim={layer.dim}, {self.reader.layer.dtype}, {self.promise}, "
            f"kernel {self.path}, on {self.place})"
        )

    def _exponents(self, call: Call, ids: Tensor, logits: Tensor, n: int = 0) -> tuple[Tensor, Tensor]:
        return self.reader.exponents(call, ids.contiguous(), logits.contiguous(), n, plain=not self.linked)

    def _masked(self, call: Call) -> Candidates:
        """The table without the classes that the call's mask takes out."""
        table = self._table(call)
        assert call.mask is not None
        there = call.mask.expand(call.batch, -1).gather(1, table.ids.clamp(min=0)) != 0
        return table._replace(ids=table.ids.where(there, -1), logits=table.logits.where(there, -math.inf))

    def _best_of(self, table: Candidates, call: Call, k: int) -> DeviceBest:
        """The ranking of a table and its normaliser; rows that end early are filled with -1 and -inf."""
        torch, (batch, width) = self.reader.torch, table.ids.shape
        logits, order = torch.sort(table.logits, dim=1, descending=True, stable=True)
        ids, logits = table.ids.gather(1, order)[:, :k], logits[:, :k]
        ids = ids.where(logits > -math.inf, -1)
        if width < k:
            ids = torch.cat([ids, self.reader.full((batch, k - width), -1, "int64")], dim=1)
            logits = torch.cat([logits, self.reader.full((batch, k - width), -math.inf)], dim=1)
        lse = torch.logsumexp(self._exponents(call, table.ids, table.logits)[0], dim=1)
        error = 2 * table.error + (width + 16 + 8 * lse.abs().nan_to_num(posinf=0.0)) * UNIT
        return DeviceBest(logits, ids, table.sure, lse, error, table.spent)

    def _table_of(self, best: DeviceBest) -> Candidates:
        """A ranking in the order of its ids; those that are missing come first."""
        ids, order = self.reader.torch.sort(best.ids, dim=1)
        return Candidates(ids, best.logits.gather(1, order), best.error, best.proved, best.spent)

    def _draws(self, table: Candidates, call: Call, wish: Filters) -> DeviceDrawn:
        """``argmax f(z) / T + gumbel`` over the classes of a table that the filters keep."""
        torch, (batch, width) = self.reader.torch, table.ids.shape
        ids, logits, kept = table.ids, table.logits, table.logits > -math.inf
        if _filtered(wish):
            logits, order = torch.sort(logits, dim=1, descending=True, stable=True)
            ids = ids.gather(1, order)
            kept = self._kept(self._exponents(call, ids, logits)[0], wish)
        step, found = max(1, AT_ONCE // max(1, batch * width)), []
        for first in range(0, wish.n, step):
            count = min(step, wish.n - first)
            exponents, noise = self._exponents(self._numbered(call, first, count), ids, logits, count)
            keys = (exponents + noise).view(batch, count, width).where(kept[:, None, :], -math.inf)
            found.append(keys.max(dim=2))
        score, place = (torch.cat(part, dim=1) for part in zip(*found, strict=True))
        proved = table.sure[:, None].expand(batch, wish.n)
        return DeviceDrawn(ids.gather(1, place), logits.gather(1, place), score, proved, table.spent)

    def _kept(self, exponents: Tensor, wish: Filters) -> Tensor:
        """Which of ``exponents [batch, m]``, in descending order, pass top_k, then top_p among those, then min_p."""
        torch = self.reader.torch
        place = torch.arange(exponents.shape[1], device=self.reader.device)[None]
        kept = (exponents > -math.inf) & (place < (wish.top_k or self.layer.vocab))
        mass = torch.exp(exponents - exponents[:, :1]).where(kept, 0.0)
        if wish.top_p < 1:
            kept = kept & (place < nucleus_size(mass, wish.top_p)[:, None])
        if wish.min_p > 0:
            kept = kept & (exponents >= exponents[:, :1] + math.log(wish.min_p))
        return kept

    def _numbered(self, call: Call, first: int, count: int) -> Call:
        """The noise numbers of draws ``first ..`` for each row."""
        draws = self.reader.torch.arange(first, first + count, device=self.reader.device).repeat(call.batch)
        return call._replace(rows=call.rows.repeat_interleave(count, dim=0), draws=draws)

    def _classes(self, batch: int) -> Tensor:
        """``[batch, vocab]``: all of them, for every query."""
        return self.reader.torch.arange(self.layer.vocab, device=self.reader.device).expand(batch, -1).contiguous()

    def _spent(self, rows: Tensor, row_bytes: float, more: float = 0.0, dense: Any = False) -> DeviceSpent:
        flags = self.reader.full(tuple(rows.shape), dense, "bool") if isinstance(dense, bool) else dense
        return DeviceSpent(rows.long(), rows.double() * row_bytes + more, flags)

    def _cost(self, spent: DeviceSpent) -> Cost:
        return Cost(spent.rows, spent.bytes, spent.dense, f"{self.name}/{self.path}")


def _filtered(wish: Filters) -> bool:
    return wish.top_k > 0 or wish.top_p < 1 or wish.min_p > 0
