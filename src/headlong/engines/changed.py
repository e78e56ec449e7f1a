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

import hashlib
import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.answers import Answer
from headlong.arrays import as_numpy, checked_ids
from headlong.cached_attribute import once
from headlong.dtypes import Doubles, Ids
from headlong.engines.arguments import Asked, checked_hidden
from headlong.engines.base import Engine
from headlong.engines.build import reading
from headlong.engines.changed_parts import ids_alone, joined, kept_of, new_ids, one_layer, rows_like
from headlong.engines.class_masks import classes_of
from headlong.engines.full import Full
from headlong.engines.merged import Merged
from headlong.engines.method import Running
from headlong.engines.parts import Part
from headlong.engines.saved.changes import Changes
from headlong.engines.saved.engine import write_engine
from headlong.errors import ShapeError
from headlong.layers.matrix import Layer
from headlong.links import Link
from headlong.question import Mask, Question

Marks = NDArray[np.uint8]
NONE = np.empty(0, np.int64)


class Whole(NamedTuple):
    """What is known of all classes as a whole; ids of those that are gone count. ``parts``: all that tells it from another."""

    vocab: int
    dim: int
    link: Link
    parts: tuple[Layer, Marks, Layer | None, Ids]

    def checksum(self) -> str:
        """sha256 over the settled layer and what came and went."""
        settled, there, rows, ids = self.parts
        digest = hashlib.sha256(there.tobytes() + ids.tobytes())
        for layer in (settled, *([] if rows is None else [rows])):
            digest.update(layer.checksum().encode())
        return digest.hexdigest()


class Changed(Merged):
    """The verbs of :class:`headlong.engines.base.Engine`. Made by ``with_rows`` and ``without``.

    ``settled``  the engine that was changed, and ``there [vocab]``: 1 where its class is still its own
    ``rows``     the added rows, as a layer, or None; ``ids`` their names, ascending; ``vocab`` ids that there were
    """

    layer: Whole
    may_be_shard = True
    reads_every_logit = True

    def __init__(self, settled: Engine, there: Marks, rows: Layer | None, ids: Ids, vocab: int) -> None:
        self.settled, self.there, self.rows, self.ids, self.promise = settled, there, rows, ids, settled.promise
        self.name, self.seed, self.reason = settled.name, settled.seed, settled.reason
        self.layer = Whole(vocab, settled.layer.dim, settled.layer.link, (settled.layer, there, rows, ids))
        alive = np.zeros(vocab, np.uint8)
        alive[: len(there)] = there
        alive[ids] = 1
        self._alive = None if alive.all() else alive[None]

    @property
    def options(self) -> dict[str, Any]:
        return self.settled.options

    @property
    def _path(self) -> str:
        return f"{self.name} and {len(self.ids)} added rows"

    @once
    def added(self) -> Engine | None:
        """What reads the added rows; its answers are proved."""
        if self.rows is None:
            return None
        return reading(self.rows, Full(), self.promise, running=Running(self.settled.threads, self.settled.seed))

    @once
    def _takes_callers(self) -> native.NativeReader | None:
        """``topk`` of both parts in one search and one native call, where that can be."""
        return ids_alone(self.settled, self.there, self.rows, self.ids)

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
        alive = np.ones(vocab, np.uint8) if self._alive is None else self._alive[0]
        layer = one_layer(old.layer, self.rows, self.ids, alive)
        engine = reading(layer, old.method, old.promise, vectors, Running(old.threads, old.seed, old.reason))
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

    def every_logit(self, hidden: Doubles, mask: Mask) -> tuple[Ids, Doubles]:
        ids = np.arange(self.layer.vocab) if mask is None else classes_of(mask[0])
        logits = self.ask(hidden, Question("given", ids=ids[None])).logits[0]
        there = logits != -np.inf  # of no part: removed
        return ids[there], logits[there]

    @property
    def _is_one_part(self) -> bool:
        return self.added is None

    @property
    def _longest(self) -> float:
        return max(float(part.engine.norms.max()) for part in self._parts)

    def _asked(self, hidden: Any, allowed: Any = None, exclude: Any = None) -> Asked:
        call = super()._asked(hidden, allowed, exclude)
        if self._alive is None:
            return call
        return call._replace(mask=self._alive if call.mask is None else call.mask & self._alive)

    @once
    def _parts(self) -> list[Part]:
        """The settled classes and the added rows."""
        settled = Part(self.settled, own=None if self.there.all() else self.there)
        return [settled] if self.added is None else [settled, Part(self.added, names=self.ids)]

    def _everyone(self, hidden: Doubles, question: Question) -> list[Answer]:
        return [part.ask(hidden, question) for part in self._parts]

    def ask(self, hidden: Doubles, question: Question) -> Answer:
        if question.mask is self._alive:  # parts know which classes they have
            question = question._replace(mask=None)
        if question.verb == "best" and question.eps == np.inf and question.mask is None and self._takes_callers is not None:
            found = self._takes_callers.show(hidden, question, Answer) if question.k <= self.settled.layer.vocab else None
            if found is not None:
                return found
        if question.verb == "best" and self.added is None:
            return self._parts[0].ask(hidden, question)
        return super().ask(hidden, question)

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


Engine.change = unchanged
