"""Classes that come and go: an engine over the settled rows, a mask of those that are gone, and a few added rows.

::

    more  = engine.with_rows(weight)              # ids go on from the last; ids=ids: in place of others
    fewer = more.without(ids)                     # never answered again, until a row comes back for them
    whole = fewer.compact()                       # one layer and one plan again, of the same kind

    top-k    the k best of the settled classes that are there, and of the added rows, which are all read
    lse      logaddexp of the two           sample   the best key of the two, noise by id

Ids never change: one that is gone keeps its place. What is proved of the two parts is proved of both. Nothing is copied but
the rows that came, so a change costs as much as they do, and an engine that was changed goes on answering what it did.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.answers import Cost, LogProb, Lse, Sample, TopK
from headlong.arrays import answer_as, as_numpy, checked_ids, ids64
from headlong.cached_attribute import once
from headlong.dtypes import Doubles, Ids
from headlong.engines.arguments import Asked, aimed, asked, checked_hidden
from headlong.engines.base import Engine
from headlong.engines.build import checked_norms, reading
from headlong.engines.changed_parts import PartEngine, ids_alone, joined, kept_of, new_ids, one_layer, rows_like
from headlong.engines.class_masks import Marked, classes_of
from headlong.engines.direct_call import Direct
from headlong.engines.full import Full
from headlong.engines.merged import Merged, best_of, blank, exact_logits, exactly_tied, log_probs_of, logits_of, merged_lse
from headlong.engines.sampling_filters import Filters, Sieve
from headlong.engines.saved.changes import Changes
from headlong.engines.saved.engine import write_engine
from headlong.errors import ShapeError
from headlong.layers.matrix import Layer
from headlong.links import Link

Marks = NDArray[np.uint8]
NONE = np.empty(0, np.int64)


class Whole(NamedTuple):
    """What is known of all classes as a whole; ids of those that are gone count."""

    vocab: int
    dim: int
    link: Link


class Changed(Merged):
    """The verbs of :class:`headlong.engines.base.Engine`. Made by ``with_rows`` and ``without``.

    ``settled``  the engine that was changed, and ``there [vocab]``: 1 where its class is still its own
    ``rows``     the added rows, as a layer, or None; ``ids`` their names, ascending; ``vocab`` ids that there were
    """

    may_be_shard = True

    def __init__(self, settled: Engine, there: Marks, rows: Layer | None, ids: Ids, vocab: int) -> None:
        self.settled, self.there, self.rows, self.ids, self.promise = settled, there, rows, ids, settled.promise
        self._whole = Whole(vocab, settled.layer.dim, settled.layer.link)
        alive = np.zeros(vocab, np.uint8)
        alive[: len(there)] = there
        alive[ids] = 1
        self._alive = None if alive.all() else Marked(alive[None])
        self._own = None if there.all() else Marked(there[None])

    @property
    def layer(self) -> Whole:
        return self._whole

    @property
    def name(self) -> str:
        return self.settled.name

    @property
    def options(self) -> dict[str, Any]:
        return self.settled.options

    @property
    def reason(self) -> str:
        return self.settled.reason

    @property
    def _path(self) -> str:
        return f"{self.name} and {len(self.ids)} added rows"

    @once
    def added(self) -> Engine | None:
        """What reads the added rows; its answers are proved."""
        if self.rows is None:
            return None
        return reading(self.rows, Full(), self.promise, threads=self.settled.threads, seed=self.settled.seed)

    @once
    def ids_alone(self) -> Direct | None:
        """``topk`` of both parts in one search and one native call, where that can be."""
        return ids_alone(self.settled, self.there, self.rows, self.ids)

    def topk(self, hidden: Any, k: int = 10, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> TopK:
        """The ``k`` likeliest classes that are there."""
        if allowed is None and exclude is None and self.ids_alone is not None:
            found = self.ids_alone.topk(hidden, k, eps)
            if found is not None:
                return found
        return super().topk(hidden, k, eps=eps, allowed=allowed, exclude=exclude)

    def with_rows(self, weight: Any, bias: Any = None, ids: Any = None) -> Changed:
        rows = rows_like(self.settled.layer, weight, bias)
        names = new_ids(ids, rows.vocab, self.layer.vocab)
        there, stay = self.there.copy(), ~np.isin(self.ids, names)
        there[names[names < len(there)]] = 0
        both = np.concatenate([self.ids[stay], names])
        order = np.argsort(both)
        vocab = max(self.layer.vocab, int(both.max(initial=-1)) + 1)
        return Changed(self.settled, there, joined(kept_of(self.rows, stay), rows, order), both[order], vocab)

    def without(self, ids: Any) -> Changed:
        gone = checked_ids(as_numpy(ids, "ids").reshape(-1), self.layer.vocab, "ids")
        there, stay = self.there.copy(), ~np.isin(self.ids, gone)
        there[gone[gone < len(there)]] = 0
        return Changed(self.settled, there, kept_of(self.rows, stay), self.ids[stay], self.layer.vocab)

    def compact(self, calibration: Any = None) -> Engine | Changed:
        old, vocab = self.settled, self.layer.vocab
        vectors = None if calibration is None else checked_hidden(calibration, self.layer.dim, "calibration")
        if vectors is not None and not len(vectors):
            raise ShapeError("calibration has no rows; pass hidden vectors [n, dim], or None")
        alive = np.ones(vocab, np.uint8) if self._alive is None else self._alive.mask[0]
        layer, threads = one_layer(old.layer, self.rows, self.ids, alive), native.threads(old.threads)
        norms = checked_norms(layer, threads)
        plan = old.method.plan(layer, vectors, threads, old.promise)
        kept = old.method.promise(old.promise, plan)
        engine = Engine(layer, old.method, plan, norms, kept, threads=old.threads, seed=old.seed, reason=old.reason)
        return engine if self._alive is None else Changed(engine, alive, None, NONE, vocab)

    def at_temperature(self, value: float) -> Changed:
        settled, rows = self.settled.at_temperature(value), self.rows
        if rows is not None:
            rows = Layer(rows.weight, rows.bias, settled.layer.link)
        return Changed(settled, self.there, rows, self.ids, self.layer.vocab)

    def save(self, path: str | os.PathLike[str], layer: bool = True) -> None:
        """One file; ``layer=False`` leaves the settled layer out, not the added rows."""
        changes = Changes(self.there, self.rows, self.ids, self.layer.vocab)
        write_engine(path, self.settled.kept()._replace(changes=changes), layer)

    def log_prob(
        self, hidden: Any, ids: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None
    ) -> LogProb:
        """The log-probabilities of ``ids [batch, m]``; -inf for those that are gone."""
        if allowed is not None or exclude is not None:
            return self._log_prob_among(hidden, ids, eps, allowed, exclude)
        call = self._asked(hidden)
        chosen = ids64(ids, len(call.hidden), self.layer.vocab)
        logits = self._logits(call.hidden, chosen)
        found = self._lse(call, aimed(eps, self.promise, call.form), None)
        gone = np.isneginf(logits)
        log_probs = np.where(gone, -np.inf, self.layer.link(np.where(gone, 0.0, logits)) - found.lse[:, None])
        cost, row = found.cost, self.settled.layer.row_bytes
        cost = cost._replace(rows=cost.rows + chosen.shape[1], bytes=cost.bytes + chosen.shape[1] * row)
        return answer_as(LogProb(log_probs, logits, found.lse, found.error, cost), call.form)

    def _logits(self, hidden: Doubles, chosen: Ids, of: Callable[[Engine, Doubles, Ids], Doubles] = logits_of) -> Doubles:
        """Of the classes ``chosen [batch, m]``; -inf for those that are gone."""
        settled = chosen < len(self.there)
        settled &= self.there[np.where(settled, chosen, 0)] != 0
        logits = of(self.settled, hidden, np.where(settled, chosen, 0))
        logits = np.where(settled, logits, -np.inf)
        if self.added is None:
            return logits
        places = np.minimum(np.searchsorted(self.ids, chosen), len(self.ids) - 1)
        added = of(self.added, hidden, places)
        return np.where(self.ids[places] == chosen, added, logits)

    def _every(self, call: Asked) -> tuple[Ids, Doubles]:
        ids = np.arange(self.layer.vocab) if call.mask is None else classes_of(call.mask[0])
        return ids, self._logits(call.hidden, ids[None])[0]

    def _sieved(self, call: Asked, filters: Filters, sieve: Sieve) -> Sample:
        return self._drawn(call, filters) if self.added is None else super()._sieved(call, filters, sieve)

    def _asked(self, hidden: Any, allowed: Any = None, exclude: Any = None) -> Asked:
        if self._alive is not None and allowed is None and exclude is None:
            allowed = self._alive
        call = asked(hidden, allowed, exclude, self.layer.dim, self.layer.vocab)
        if self._alive is None or allowed is self._alive or call.mask is None:
            return call
        return call._replace(mask=call.mask & self._alive.mask)

    def _is_plain(self, call: Asked) -> bool:
        """Whether the caller named no classes."""
        return call.mask is None or (self._alive is not None and call.mask is self._alive.mask)

    def _parts(self, call: Asked) -> list[PartEngine]:
        """The settled classes and the added rows, each with the marks of those that may be answered."""
        own, added = self._own, None
        if not self._is_plain(call):
            assert call.mask is not None
            mask = call.mask[:, : len(self.there)]
            own = Marked(np.ascontiguousarray(mask if own is None else mask & own.mask))
            added = Marked(np.ascontiguousarray(call.mask[:, self.ids]))
        found = [PartEngine(self.settled, None, own)]
        return found if self.added is None else [*found, PartEngine(self.added, self.ids, added)]

    def _topk(self, call: Asked, k: int, eps: float | None, about: Any = None) -> TopK:
        if math.isinf(self.promise.eps if eps is None else eps) and self._is_plain(call) and self.ids_alone is not None:
            found = self.ids_alone.topk(call.hidden, k, eps)
            if found is not None:
                return found
        tops = [part.topk(call.hidden, k, eps) for part in self._parts(call)]
        if len(tops) == 1:
            return tops[0]
        logits, ids = (np.concatenate([getattr(top, name) for top in tops], axis=1) for name in ("logits", "ids"))
        longest = max(float(part.engine.norms.max()) for part in self._parts(call))
        exact = partial(self._logits, of=exact_logits)
        logits = exactly_tied(logits, ids, call.hidden, longest, lambda rows, some: exact(call.hidden[rows], some))
        logits, ids = best_of(logits, ids, k, self.layer.vocab)
        lse, error = merged_lse(tuple(top.lse for top in tops), tuple(top.error for top in tops))
        proved = np.all([top.proved for top in tops], axis=0)
        log_probs = log_probs_of(logits, ids, lse, self.layer.link)
        return TopK(log_probs, ids, logits, lse, error, proved, self._cost([top.cost for top in tops]))

    def _lse(self, call: Asked, eps: float | None, temperature: float | None, about: Any = None) -> Lse:
        found = [part.lse(call.hidden, eps, temperature) for part in self._parts(call)]
        lse, error = merged_lse(tuple(one.lse for one in found), tuple(one.error for one in found))
        return Lse(lse, error, self._cost([one.cost for one in found]))

    def _drawn(self, call: Asked, filters: Filters) -> Sample:
        count = len(call.hidden)
        best, proved = blank(count, filters.n), np.ones((count, filters.n), bool)
        cost = np.zeros(count, np.int64), np.zeros(count), np.zeros(count, bool)
        for part in self._parts(call):
            for rows in part.runs(count):
                drawn = part.drawn(call.hidden[rows], rows, filters._replace(row0=(filters.row0 + rows.start) % 2**64))
                better = drawn.score > best[2][rows]
                for old, new in zip(best, drawn[:3], strict=True):
                    old[rows] = np.where(better, new, old[rows])
                proved[rows] &= drawn.proved
                for total, one in zip(cost, drawn.cost[:3], strict=True):
                    total[rows] += one
        return Sample(*best, proved, Cost(*cost, self._path))

    def _cost(self, costs: list[Cost]) -> Cost:
        rows, read, dense = zip(*(cost[:3] for cost in costs), strict=True)
        return Cost(np.sum(rows, axis=0), np.sum(read, axis=0), np.any(dense, axis=0), self._path)

    def __reduce__(self) -> tuple[Any, ...]:
        return Changed, (self.settled, self.there, self.rows, self.ids, self.layer.vocab)

    def __repr__(self) -> str:
        gone = self.layer.vocab - int(self.there.sum()) - len(self.ids)
        return (
            f"Changed({self.name}: vocab={self.layer.vocab}, dim={self.layer.dim}, {len(self.ids)} added rows, {gone} gone, "
            f"{self.promise})"
        )


def unchanged(engine: Engine) -> Changed:
    """Nothing has come or gone yet."""
    return Changed(engine, np.ones(engine.layer.vocab, np.uint8), None, NONE, engine.layer.vocab)
