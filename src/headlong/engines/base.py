"""An engine over one matrix: top-k, log-probabilities, the normaliser, samples, each with its proof.

::

    engine.topk(hidden, k)        -> TopK(log_probs, ids, logits, lse, error, proved, cost)
    engine.log_prob(hidden, ids)  -> LogProb(log_probs, logits, lse, error, cost)
    engine.lse(hidden)            -> Lse(lse, error, cost)
    engine.entropy(hidden)        -> Entropy(entropy, error, lse, cost)
    engine.sample(hidden, n)      -> Sample(ids, logits, score, proved, cost, log_probs, kept, error)

An engine is a layer, a plan and a reader. The verbs are those of every kind (``contract.py``); what is read and when to stop
is the reader's business, and what the plan holds that of the methods (one file each, in ``methods/``).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.answers import Answer
from headlong.cached_attribute import once
from headlong.dtypes import Doubles
from headlong.engines.contract import Verbs
from headlong.engines.few_allowed_classes import by_classes_left
from headlong.engines.method import PLAIN, EngineParts, Method, Running, option_names
from headlong.engines.promise_failures import normalised
from headlong.engines.reference.query import Matrix
from headlong.engines.reference.rows import Rows
from headlong.engines.saved.engine import Saved, write_engine
from headlong.errors import OptionError, WrongLayerError
from headlong.layers.matrix import Layer
from headlong.links import Affine
from headlong.number_checks import real
from headlong.plan import MOST_SCORED, Plan
from headlong.promise import Promise
from headlong.question import RANGES, About, Mask, Question

MOST_DELTA = 0.5
"""A promise that may be broken more often is kept as if it were this one."""


class Engine(Verbs):
    """Reads one layer by one plan. Made by ``headlong.compile`` and ``headlong.load``; safe to use from many threads."""

    layer: Layer
    may_be_shard = True
    change: ClassVar[Callable[[Engine], Verbs]]
    """The engine with classes that come and go of which none has yet: ``changed.py`` makes it, of engines."""

    def __init__(
        self,
        layer: Layer,
        method: Method,
        plan: Plan,
        norms: NDArray[np.float32],
        promise: Promise,
        running: Running = PLAIN,
    ) -> None:
        stamp = None if layer.unchanging else running.stamp or layer.stamp()
        self._watch = running.watch or layer.watch()
        self._running, threads = running._replace(stamp=stamp, watch=self._watch), running.threads
        self.layer, self.method, self.plan, self.norms, self.promise = layer, method, plan, norms, promise
        self.name, self.seed, self.reason = method.name, running.seed, running.reason
        level = native.isa()
        bet, path = min(promise.delta, MOST_DELTA), f"{method.name}/{level}"
        about = About(promise.eps, bet, self.seed, promise.delta >= 1, threads or 0, path, layer.link)
        rows = rows_of(layer, plan, norms, level, About(threads=threads or 0, path=about.path, link=layer.link))
        own = method.reader(EngineParts(layer, plan, norms, promise, running, rows))
        self.rows, self.reader = rows, own or reader_of(layer, plan, norms, rows, about, level)
        self._takes_callers = self.reader if isinstance(self.reader, native.NativeReader) else None
        self.draws_whole = self._takes_callers is not None and plan.preview is None
        self.reads_entropies = self._takes_callers is not None and plan.codes is not None
    @property
    def options(self) -> dict[str, Any]:
        """The method's options, by name, as compiled: those that were given, and the others' defaults."""
        return {name: getattr(self.method, name) for name in option_names(self.method)}

    @property
    def threads(self) -> int | None:
        """The threads of every call, as given to :func:`headlong.compile`."""
        return self._running.threads

    def ask(self, hidden: Doubles, question: Question) -> Answer:
        """By exact rows alone where a mask leaves few classes, as a native reader sees by itself, else by the plan."""
        if self._takes_callers is not None or question.verb in ("given", "functional"):
            return self.reader.ask(hidden, question)
        return by_classes_left(hidden, question, self.layer.vocab, self._by_rows, self.reader.ask)

    def _by_rows(self, hidden: Doubles, question: Question) -> Answer:
        return self._exact.ask(hidden, question)._replace(path=f"rows/{self.reader.isa}")

    @once
    def _exact(self) -> native.Reader:
        """What answers from all rows, and from no preview of them."""
        about = About(threads=self.threads or 0, link=self.layer.link)
        return self.rows if self.plan.preview is None else rows_of(self.layer, Plan(), self.norms, native.isa(), about)

    def scanned_entropy(self, hidden: Doubles, mask: Mask) -> Answer | None:
        if not isinstance(self.rows, native.NativeReader):
            return None
        return self.rows.ask(hidden, Question("functional", eps=1.0, mask=mask))

    def at_temperature(self, value: float) -> Engine:
        """This engine with the link ``f(z) / value``: same plan, same arrays; normalisers are proved where ids are."""
        link = self.layer.link
        if not isinstance(link, Affine):
            raise OptionError(f"the layer's link is {link}; expected a scale and shift, which a temperature can join")
        scale = real(value, "temperature", *RANGES["temperature"])
        layer = Layer(self.layer.weight, self.layer.bias, Affine(link.scale / scale, link.shift / scale), name=self.layer.name)
        return Engine(layer, self.method, self.plan, self.norms, self.promise, self._running._replace(reason="asked for"))

    def save(self, path: str | os.PathLike[str], layer: bool = True) -> None:
        """Write the engine to one safetensors file; ``layer=False`` leaves the layer out, and ``load`` asks for it."""
        write_engine(path, self.kept(), layer)

    def kept(self) -> Saved:
        """The engine as :meth:`save` writes it."""
        self._check_unchanged()
        options = dataclasses.asdict(self.method)
        return Saved(self.layer, self.method.name, options, self.plan, self.norms, self.promise, self.seed, self.reason)

    def with_rows(self, weight: Any, bias: Any = None, ids: Any = None) -> Verbs:
        return Engine.change(self).with_rows(weight, bias, ids)

    def without(self, ids: Any) -> Verbs:
        return Engine.change(self).without(ids)

    def compact(self, calibration: Any = None) -> Verbs:
        return self if calibration is None else Engine.change(self).compact(calibration)

    def every_class(self, hidden: Doubles) -> tuple[Doubles, Doubles]:
        """The logits of all classes and their log-probabilities ``[n, vocab]``, in float64."""
        logits = native.logits(self.layer.weight, self.layer.bias, hidden, native.threads(self.threads))
        return normalised(logits, self.layer.link(logits))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as layer and plan; a copy, deep or not, shares these arrays, to which nobody writes."""
        self._check_unchanged()
        running = self._running._replace(reason=self.reason, watch=None)
        return partial(Engine, self.layer, self.method, self.plan, self.norms, self.promise, running), ()

    def _check_unchanged(self) -> None:
        """WrongLayerError where the layer's borrowed arrays were written to since the plan was made of them."""
        if self.layer.stamp() != self._running.stamp:
            raise WrongLayerError(
                f"{self.layer!r} was written to after this engine was compiled, so its codes are of other "
                "weights; compile it again, or let the layer take a copy: Layer(..., copy=True)"
            )

    def with_plan(self, plan: Plan, wanted: Promise, reason: str, method: Method | None = None) -> Engine:
        """The same layer by another plan, and by another method where one is given, which keeps what it can of ``wanted``."""
        chosen = self.method if method is None else method
        running = self._running._replace(reason=reason)
        return Engine(self.layer, chosen, plan, self.norms, chosen.promise(wanted, plan), running)

    def __repr__(self) -> str:
        layer, plan = self.layer, self.plan
        stored = 0 if plan.codes is None else plan.codes.tiles.nbytes
        stored += 0 if plan.preview is None else plan.preview.columns.nbytes
        storage = f"{stored / 2**20:.1f} MiB of codes, " if stored else ""
        return (
            f"Engine({self.method.name}: vocab={layer.vocab}, dim={layer.dim}, {layer.dtype}, {storage}"
            f"{self.promise}, kernel {self.reader.isa})"
        )


def rows_of(layer: Layer, plan: Plan, norms: NDArray[np.float32], level: str, about: About) -> native.Reader:
    """What answers from all rows."""
    if level == native.REFERENCE:
        return Rows(Matrix(layer.weight, layer.bias, norms, layer.link, plan.preview), about.path)
    return native.NativeReader(native.rows_of(layer.weight, layer.bias, norms, layer.link, plan, level), about)


def reader_of(
    layer: Layer, plan: Plan, norms: NDArray[np.float32], rows: native.Reader, about: About, level: str
) -> native.Reader:
    """What answers from a plan: its blocks and codes, where it has any, before all ``rows``. The reference reads all rows."""
    if isinstance(rows, Rows):
        return rows
    assert isinstance(rows, native.NativeReader)
    codes = None if plan.codes is None else native.code_reader(rows.rows, plan.codes, level)
    blocks, search = plan.blocks, None
    if blocks is not None:
        search = native.blocks(layer.weight, layer.bias, blocks, MOST_SCORED, level, float(norms.max()))
    return native.NativeReader(rows.rows, about, codes, search, blocks)
