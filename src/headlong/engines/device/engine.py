"""The verbs of an engine on a device.

::

    hl.compile(layer, device="cuda").topk(hidden, k)      -> TopK of CUDA tensors

    a scan of rows:              upper ends of all classes, and of each tile the largest lower end
    k lower ends reach a bar:    the classes that reach it, exactly, in order: the answer
    they are more than there is room for, or the normaliser is not within eps:  that query again, over rows; at last in float64

The answers are those of ``engines/base.py``, with the same proofs and the same noise: engines on the CPU and on a GPU draw
the same samples from the same seed. Two things differ. What can be refused only by looking at a tensor's numbers is not
refused: a row that is no number is answered by ids -1, NaN and ``proved`` False, as is a given id that is out of range. And
log-probabilities are always proved, never estimated from a sample.

The host is asked once, whether a row is still open. While a CUDA graph is captured it cannot be: such a row then has ``proved``
False, or the ``error`` that was reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from headlong.answers import Answer, Cost, LogProb, Lse, Sample, Shown, TopK, View, named_fields
from headlong.dtypes import Doubles
from headlong.engines.arguments import checked_eps, checked_k, told, untold
from headlong.engines.contract import Verbs
from headlong.engines.device.calls import answered, call_of, ids_of
from headlong.engines.device.matrix import AT_ONCE, DeviceMatrix, Found, Read
from headlong.engines.device.memory import Call, Tensor
from headlong.layers.matrix import Layer
from headlong.promise import Promise
from headlong.question import Filters, Question

BEYOND = 256
"""Candidates that there is room for beyond the k best: a row's radius is rounding."""
SPREAD = 4
"""So many tiles for each of the k best, and the k-th largest lower end of tiles is near that of classes."""
NUCLEUS = 1024
"""Classes among which ``min_p`` is decided first, and a ``top_p`` of less than :data:`NARROW`."""
NARROW, MISSED = 0.1, 1e-5
"""For a larger ``top_p`` so many draws are tried that all of them are outside the nucleus with this probability at most."""


class DeviceEngine(Verbs):
    """Reads one layer on a GPU. Made by ``headlong.compile(layer, device="cuda")``, or of a layer that lies there."""

    layer: Layer
    draws_say_log_probs: ClassVar[bool] = False
    may_be_shard = True
    options: ClassVar[dict[str, Any]] = {}  # it has none

    def __init__(self, matrix: DeviceMatrix, name: str, promise: Promise, *, place: str, seed: int, reason: str) -> None:
        self.matrix, self.name, self.promise, self.place = matrix, name, promise, place
        self.layer, self.seed, self.reason = matrix.layer, seed, reason

    def _shown(
        self, view: type[Shown], hidden: Any, question: Question, allowed: Any = None, exclude: Any = None
    ) -> Shown | None:
        """The verbs but for draws and functionals, in one call on the device."""
        if question.verb in ("draw", "functional"):
            return None
        matrix, vocab, told_ = self.matrix, self.layer.vocab, told(question.eps, self.promise)
        k = checked_k(question.k, vocab) if question.verb == "best" else 0
        call, form = call_of(matrix, hidden, allowed, exclude)
        if question.verb == "given":
            chosen = ids_of(matrix, question.ids, len(call.x))
            wrong = (chosen < 0) | (chosen >= vocab) | call.bad[:, None]
            logits, _ = matrix.exact(call._replace(mask=None, stride=0), chosen.masked_fill(wrong, -1))
        found = self._best(call, k, self.promise.eps if question.eps is None else checked_eps(question.eps))
        if question.verb == "given":
            rows, read = found.rows + chosen.shape[1], found.read + chosen.shape[1] * matrix.rows.bytes
            found = found._replace(logits=logits, rows=rows, read=read)
        log_probs, lse, error = matrix.said(call, found, single=form.single)
        whole: View = Lse(lse, error, self._cost(found))
        if question.verb == "best":
            whole = TopK(log_probs, found.ids, found.logits, lse, error, found.sure, self._cost(found))
        elif question.verb == "given":
            if call.mask is not None:
                left = call.mask.expand(len(chosen), vocab).gather(1, chosen.masked_fill(wrong, 0))
                log_probs = log_probs.masked_fill(left == 0, -math.inf)
            log_probs, logits = log_probs.masked_fill(wrong, math.nan), logits.masked_fill(wrong, math.nan)
            whole = LogProb(log_probs, logits, lse, error, self._cost(found))
        shown = answered(whole if told_ else untold(whole), form)
        assert isinstance(shown, view)
        return shown

    def _drawn(self, hidden: Any, filters: Filters, allowed: Any, exclude: Any) -> Sample:
        call, form = call_of(self.matrix, hidden, allowed, exclude, filters)
        ranked = filters.top_k > 0 or filters.min_p > 0 or filters.top_p < NARROW or self.layer.vocab <= NUCLEUS
        if ranked and (filters.top_k, filters.top_p, filters.min_p) != (0, 1.0, 0.0):
            found, each = self._filtered(call, filters), 1
        else:
            found, each = self._winners(call.drawn(filters.n), filters._replace(n=1)), filters.n
        ids, logits, keys = (part.view(len(call.x), filters.n) for part in (found.ids, found.logits, found.keys))
        sure = found.sure.view(-1, each) & (ids >= 0)
        if each > 1:
            rows, read, whole = (part.view(-1, each).sum(dim=1) for part in (found.rows, found.read, found.whole))
            found = found._replace(rows=rows, read=read, whole=whole > 0)
        return answered(Sample(ids, logits, keys, sure, self._cost(found)), form)

    def ask(self, hidden: Doubles, question: Question) -> Answer:
        """About vectors in the CPU's memory, answered there: for what is made of questions."""
        limits = {} if question.mask is None else {"allowed": question.mask.view(bool)}
        found: View
        if question.verb == "best":
            found = self.topk(hidden, question.k, eps=question.eps, **limits)
        elif question.ids is not None:
            found = self.log_prob(hidden, question.ids, eps=question.eps)
        elif question.filters is not None:
            found = self._drawn(hidden, question.filters, limits.get("allowed"), None)
        elif question.temperature != 1:
            return self.normaliser_of_every_class(hidden, question)
        else:
            found = self.lse(hidden, eps=question.eps, **limits)
        named = {name: value for name, value in named_fields(found).items() if value is not None}
        cost = named.pop("cost")
        return Answer(**named).at(cost)

    def _winners(self, call: Call, wish: Filters) -> Found:
        """The classes of the largest ``f(z) / T + gumbel``, of all or of those in a nucleus: ``[batch, 1]``."""
        if wish.top_p >= 1:
            return self._best(call, 1, math.inf, sample=True)
        matrix, k = self.matrix, math.ceil(math.log(MISSED) / math.log(1 - wish.top_p))
        read = matrix.scan(call, sample=True)
        found = self._resolved(read, call, min(k, read.ends.shape[2]), math.inf, sample=True)
        best = matrix.picked(call, read, found)
        if self._capturing() or best.open.any():
            best = self._settled(call, wish, matrix.picked(call, read, found, best))
        return best

    def _best(self, call: Call, k: int, eps: float, *, sample: bool = False) -> Found:
        """The k best by their keys and (but for a ``sample``) the normaliser, each row as far down as it needs."""
        found = self._resolved(self.matrix.scan(call, sample=sample, mass=not sample), call, k, eps, sample)
        return self._again(call, found, lambda part: self._whole(part, k, sample))

    def _again(self, call: Call, found: Found, answer: Callable[[Call], Found]) -> Found:
        """``answer`` in the place of the rows that are open; what these cost before stays counted."""
        if self._capturing() or not found.open.any():
            return found
        for rows in found.open.nonzero()[:, 0].split(max(1, AT_ONCE // self.layer.vocab)):
            again = answer(call.of(rows))
            again = again._replace(rows=again.rows + found.rows[rows], read=again.read + found.read[rows])
            for mine, theirs in zip(found, again, strict=True):
                mine[rows] = theirs
        return found

    def _resolved(self, read: Read, call: Call, k: int, eps: float, sample: bool) -> Found:
        """The exact rows of what a scan leaves."""
        matrix, torch, vocab = self.matrix, self.matrix.torch, self.layer.vocab
        room = min(vocab, max(2 * k, k + BEYOND)) if k else 0
        if sample or k <= max(1, read.ends.shape[2] // SPREAD):
            return matrix.best(read, call, k, room, eps, sample)
        found = matrix.best(read, call, 0, 0, eps, sample)
        top, ids = torch.topk(read.high, room, dim=1)
        ids = ids.masked_fill((top == -math.inf) | call.bad[:, None], -1)
        worst = matrix.exact(call, ids[:, :k])[0].amin(dim=1)
        reached = (ids >= 0) & ~(top < (worst - 2 * matrix.rounding(call))[:, None])  # in float64
        ids, scored = ids.masked_fill(~reached, -1), reached.sum(dim=1)
        sure = ~call.bad if room == vocab else ~call.bad & ~reached[:, -1]
        cost = found.read + scored * matrix.rows.bytes
        best, still = self._ordered(ids, *matrix.exact(call, ids), k), found.open | ~sure & ~call.bad
        return Found(*best, found.lse, found.error, found.rows, cost, sure, still, found.whole)

    def _whole(self, call: Call, k: int, sample: bool = False) -> Found:
        """All classes of each row in float64."""
        matrix, torch = self.matrix, self.matrix.torch
        (logits, keys), yes = matrix.exact(call, sample=sample), torch.ones_like(call.bad)
        lse = torch.logsumexp(matrix.exact(call, given=logits)[1], dim=1)
        best, rows = self._ordered(None, logits, keys, k), torch.full_like(call.bad, self.layer.vocab, dtype=torch.int64)
        return Found(*best, lse, matrix.exact_error(call, lse), rows, rows.double() * matrix.rows.bytes, yes, ~yes, yes)

    def _ordered(self, ids: Tensor | None, logits: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """The k largest keys, equal ones by id; without ids they are of all classes."""
        torch = self.matrix.torch
        by_id = keys if ids is None else keys.gather(1, places := torch.sort(ids, dim=1).indices)
        order = torch.sort(by_id, dim=1, descending=True, stable=True).indices[:, :k]
        order = order if ids is None else places.gather(1, order)
        keys, named = keys.gather(1, order), order if ids is None else ids.gather(1, order)
        return named.masked_fill(keys == -math.inf, -1), logits.gather(1, order), keys

    def _filtered(self, call: Call, wish: Filters) -> Found:
        """Draws ``[batch, n]`` from what top_k, then top_p among those, then min_p leave."""
        return self._settled(call, wish, self._sieved(call, wish, *self._ranked(call, wish)))

    def _settled(self, call: Call, wish: Filters, found: Found) -> Found:
        """Draws again, from all classes in float64, where they are open."""
        return self._again(call, found, lambda part: self._sieved(part, wish, self._whole(part, self.layer.vocab), whole=True))

    def _ranked(self, call: Call, wish: Filters) -> tuple[Found, bool]:
        """The best classes in their order, and whether no other can pass the filters."""
        count = wish.top_k or min(self.layer.vocab, NUCLEUS)
        eps = math.inf if wish.top_k or wish.top_p >= 1 else 1.0
        return self._best(call, count, eps), wish.top_k > 0 or count == self.layer.vocab

    def _sieved(self, call: Call, wish: Filters, ranked: Found, whole: bool) -> Found:
        """Draws ``[batch, n]`` among ranked classes; they are open where these do not settle the filters."""
        torch, matrix, shape = self.matrix.torch, self.matrix, (len(call.x), wish.n, ranked.ids.shape[1])
        exponents = matrix.exact(call, given=ranked.logits)[1]
        inside, near = exponents > -math.inf, torch.zeros_like(exponents, dtype=torch.bool)
        if wish.top_p < 1:
            mass = torch.exp(exponents - exponents[:, :1]).nan_to_num(nan=0.0)
            before = mass.cumsum(dim=1) - mass
            total = mass.sum(dim=1) if whole else torch.exp(ranked.lse - exponents[:, 0])
            edge = (wish.top_p * total)[:, None]
            if not whole:  # float64 decides where all are there
                near = ((before - edge).abs() <= edge * torch.expm1(ranked.error + 1e-12)[:, None]) & (before > 0)
            inside &= (before < edge) | near
        if wish.min_p > 0:
            inside &= exponents >= exponents[:, :1] + math.log(wish.min_p)
        ids, logits = (part[:, None].expand(shape).reshape(-1, shape[2]) for part in (ranked.ids, ranked.logits))
        keys = matrix.exact(call.drawn(wish.n), ids, given=logits, sample=True)[1].view(shape)
        score, place = keys.where(inside[:, None], -math.inf).max(dim=2)
        closed = ~near.gather(1, place).any(dim=1) & ~inside[:, -1] | torch.full_like(call.bad, whole)
        lost = call.bad[:, None] | (score == -math.inf)  # no numbers, or no class of positive probability
        ids, logits = ranked.ids.gather(1, place), ranked.logits.gather(1, place)
        ids, logits, score = ids.masked_fill(lost, -1), logits.masked_fill(lost, -math.inf), score.masked_fill(lost, -math.inf)
        return ranked._replace(ids=ids, logits=logits, keys=score, sure=closed & ranked.sure, open=~closed & ~call.bad)

    def _cost(self, found: Found) -> Cost:
        return Cost(found.rows, found.read, found.whole, f"{self.name}/triton")

    def _capturing(self) -> bool:
        return self.matrix.device.type == "cuda" and bool(self.matrix.torch.cuda.is_current_stream_capturing())

    def __repr__(self) -> str:
        about = f"vocab={self.layer.vocab}, dim={self.layer.dim}, {self.layer.dtype}, {self.promise}"
        return f"DeviceEngine({self.name}: {about}, kernel triton, on {self.place})"
