"""The contract of every engine over one matrix: top-k, log-probabilities, the normaliser, samples, each with its proof.

::

    engine.topk(hidden, k)        -> TopK(log_probs, ids, logits, lse, error, proved, cost)
    engine.log_prob(hidden, ids)  -> LogProb(log_probs, logits, lse, error, cost)
    engine.lse(hidden)            -> Lse(lse, error, cost)
    engine.entropy(hidden)        -> Entropy(entropy, error, lse, cost)
    engine.sample(hidden, n)      -> Sample(ids, logits, score, proved, cost, log_probs, kept, error)

An engine is a layer, a plan and an executor. Here input is checked and answers get their shape; what is read and when to
stop is the executor's business, and what the plan holds that of the methods (one file each, in ``methods/``).
"""

from __future__ import annotations

import dataclasses
import math
import os
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.answers import Cost, Entropy, LogProb, Lse, Sample, TopK
from headlong.arrays import answer_as, ids64
from headlong.dtypes import UNIT, Doubles
from headlong.engines.arguments import RANGES, Asked, aimed, check_told, checked_k, told, untold
from headlong.engines.class_masks import all_left, check_some_left
from headlong.engines.contract import Changeable, Common
from headlong.engines.direct_call import direct
from headlong.engines.draws import ROOM, Rules
from headlong.engines.few_allowed_classes import ListedClasses, few_enough, listed, listed_classes, lse_of, sample_of, topk_of
from headlong.engines.method import EngineParts, Method, option_names
from headlong.engines.promise_failures import normalised
from headlong.engines.reference.codes import CodesInNumPy
from headlong.engines.reference.executor import Executor as Reference
from headlong.engines.reference.query import Matrix
from headlong.engines.sampling_filters import Filters
from headlong.engines.saved.engine import Saved, write_engine
from headlong.errors import OptionError, WrongLayerError
from headlong.layers.matrix import Layer
from headlong.layers.written_to import WrittenTo
from headlong.links import Affine, lowering_error
from headlong.number_checks import real
from headlong.plan import MOST_SCORED, Plan
from headlong.promise import Promise

LONGEST = 1e30
"""Numbers of a hidden vector that is divided by a temperature: well within float32."""
MOST_DELTA = 0.5
"""A promise that may be broken more often is kept as if it were this one."""

RULES = (np.float64, np.int64, np.float64, np.float64, np.uint64, np.uint64)
"""How native code takes the parts of :class:`Rules`."""


class Engine(Changeable, Common):
    """Reads one layer by one plan. Made by ``headlong.compile`` and ``headlong.load``; safe to use from many threads."""

    def __init__(
        self,
        layer: Layer,
        method: Method,
        plan: Plan,
        norms: NDArray[np.float32],
        promise: Promise,
        *,
        threads: int | None = None,
        seed: int = 0,
        reason: str = "asked for",
        stamp: str | None = None,
        watch: WrittenTo | None = None,
    ) -> None:
        self._stamp = None if layer.unchanging else stamp or layer.stamp()
        self._watch = watch or layer.watch()
        self.layer, self.method, self.plan, self.norms, self.promise = layer, method, plan, norms, promise
        self.seed, self.reason = seed, reason
        self._threads = threads
        self._bet = min(promise.delta, MOST_DELTA), seed  # how often it may be lost, and the seed of the rows that it draws
        level = native.isa()
        self._rows = rows_of(layer, plan, norms, level)
        own = method.reader(EngineParts(layer, plan, norms, promise, seed, self._rows))
        self._executor = own or reader_of(layer, plan, norms, self._rows, level)
        self._by_codes: Any = self._executor if plan.codes is not None and level != native.REFERENCE else None
        self._path = f"{method.name}/{self._executor.isa}"
        self._direct = direct(self._executor, layer.link, promise, self._bet, threads, self._path)

    @property
    def name(self) -> str:
        """How the layer is read, in one word."""
        return self.method.name

    @property
    def options(self) -> dict[str, Any]:
        """The method's options, by name, as compiled: those that were given, and the others' defaults."""
        return {name: getattr(self.method, name) for name in option_names(self.method)}

    @property
    def threads(self) -> int | None:
        """The threads of every call, as given to :func:`headlong.compile`."""
        return self._threads

    @property
    def executor(self) -> native.Executor:
        """The executor that reads the plan, for engines that are made of other engines."""
        return self._executor

    def topk(self, hidden: Any, k: int = 10, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> TopK:
        """The ``k`` likeliest classes of each row of ``hidden [batch, dim]``, likeliest first, equal logits by id.

        ``eps``      how far log-probabilities may be off, in nats; inf: ids and exact logits only, the others are NaN
        ``allowed``, ``exclude``  class ids, ``[m]`` for the call or one row of ids per query: other classes are left
                                  out as if they did not exist. -1 pads rows and is ignored.
        """
        self.check_weights()
        if self._direct is not None and allowed is None and exclude is None:
            found = self._direct.topk(hidden, k, eps)
            if found is not None:
                return found
        asked = self._asked(hidden, allowed, exclude)
        k, aim = checked_k(k, self.layer.vocab), aimed(eps, self.promise, asked.form)

        def best_of(call: Asked, _: int) -> TopK:
            if call.few_classes:
                answer = self._listed(call)
                logits, ids, exponents = topk_of(answer, k)
                lse = lse_of(answer.exponents)
                log_probs = np.where(ids < 0, -np.inf, exponents - np.where(np.isfinite(lse), lse, 0.0)[:, None])
                error, proved = self._rounding(call, answer, lse), np.ones(len(lse), bool)
                return TopK(log_probs, ids, logits, lse, error, proved, self._cost_of_listed(answer))
            best = self._executor.topk(call.hidden, k, aim, call.mask, native.threads(self._threads), *self._bet)
            return TopK(best.log_probs, best.ids, best.logits, best.lse, best.error, best.proved, self._cost(best))

        found = asked.each(best_of)
        return answer_as(found if told(eps, self.promise) else untold(found), asked.form)

    def log_prob(self, hidden: Any, ids: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> LogProb:
        """The log-probabilities of ``ids [batch, m]``: their exact logits, and the normaliser of all classes.

        ``eps``  inf: exact logits only; an engine that was compiled without log-probabilities asks for one
        """
        if eps is None:
            check_told("log_prob", None, self.promise)
        if allowed is not None or exclude is not None:
            return self._log_prob_among(hidden, ids, eps, allowed, exclude)
        self.check_weights()
        if self._direct is not None:
            found = self._direct.log_prob(hidden, ids, eps)
            if found is not None:
                return found
        asked = self._asked(hidden)
        chosen = ids64(ids, len(asked.hidden), self.layer.vocab)
        threads = native.threads(self._threads)
        logits = self._executor.logits(asked.hidden, chosen, threads)
        aim = aimed(eps, self.promise, asked.form)
        norm = self._executor.lse(asked.hidden, aim, None, threads, *self._bet)
        log_probs = self.layer.link(logits) - norm.lse[:, None]
        count = chosen.shape[1]
        cost = Cost(norm.rows + count, norm.bytes + count * self._row_bytes, norm.dense, self._path)
        whole = LogProb(log_probs, logits, norm.lse, norm.error, cost)
        return answer_as(whole if told(eps, self.promise) else untold(whole), asked.form)

    def lse(self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> Lse:
        """The log-normaliser ``log sum_i exp(link(z_i))`` of each row, over the classes that are there."""
        check_told("lse", eps, self.promise)
        self.check_weights()
        if self._direct is not None and allowed is None and exclude is None:
            found = self._direct.lse(hidden, eps)
            if found is not None:
                return found
        asked = self._asked(hidden, allowed, exclude)
        aim = aimed(eps, self.promise, asked.form)

        def normaliser_of(call: Asked, _: int) -> Lse:
            if call.few_classes:
                answer = self._listed(call)
                value = lse_of(answer.exponents)
                return Lse(value, self._rounding(call, answer, value), self._cost_of_listed(answer))
            norm = self._executor.lse(call.hidden, aim, call.mask, native.threads(self._threads), *self._bet)
            return Lse(norm.lse, norm.error, self._cost(norm))

        return answer_as(asked.each(normaliser_of), asked.form)

    def entropy(
        self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None, moments: bool = False
    ) -> Entropy:
        check_told("entropy", eps, self.promise)
        self.check_weights()
        if moments or self._by_codes is None:
            return super().entropy(hidden, eps=eps, allowed=allowed, exclude=exclude, moments=moments)
        asked = self._asked(hidden, allowed, exclude)
        aim = aimed(eps, self.promise, asked.form)
        found = self._by_codes.entropy(asked.hidden, aim, asked.mask, native.threads(self._threads), *self._bet)
        return answer_as(Entropy(found.entropy, found.error, found.lse, self._cost(found)), asked.form)

    def scanned_entropy(self, hidden: Doubles, mask: Any) -> native.FoundEntropy:
        if not native.is_native(self._rows):
            return super().scanned_entropy(hidden, mask)
        rows: Any = self._rows
        found: native.FoundEntropy = rows.entropy(hidden, 1.0, mask, native.threads(self._threads))
        return found

    def _sample(self, hidden: Any, filters: Filters, allowed: Any, exclude: Any) -> Sample:
        asked = self._asked(hidden, allowed, exclude)
        check_some_left(asked.mask)

        def draws_of(call: Asked, first: int) -> Sample:
            own = filters._replace(row0=(filters.row0 + first) % 2**64)
            if call.few_classes:
                answer = self._listed(call)
                ids, logits, score = sample_of(answer, own)
                return Sample(ids, logits, score, np.ones(ids.shape, bool), self._cost_of_listed(answer))
            threads = native.threads(self._threads)
            return self._of_draws(self._executor.sample(call.hidden, *own[:-1], call.mask, threads, own.class0, *self._bet))

        return answer_as(asked.each(draws_of, in_order=True), asked.form)

    def _of_draws(self, drawn: native.FoundDraws) -> Sample:
        return Sample(drawn.ids, drawn.logits, drawn.score, drawn.proved, self._cost(drawn))

    def _drawn_each(self, hidden: Doubles, n: int, rules: Rules, class0: int, aim: float, mask: native.Mask) -> Sample | None:
        if not native.is_native(self._executor) or (math.isfinite(aim) and self.plan.preview is not None):
            return None
        if mask is not None and any(few_enough(left, self.layer.vocab) for left in all_left(mask)):
            return None
        if rules.last and math.isfinite(aim):  # a normaliser of another temperature than the filters'
            return None
        each = [np.array(part, kind) for part, kind in zip(rules[:-1], RULES, strict=True)]
        executor: Any = self._executor
        threads = native.threads(self._threads)
        found = executor.sample_each(hidden, n, *each, mask, threads, class0, *self._bet, aim * ROOM, rules.last)
        drawn = self._of_draws(found)
        if math.isinf(aim):
            return drawn
        summed = (self.layer.vocab + 8) * UNIT * (1 + np.abs(found.lse))
        return dataclasses.replace(drawn, log_probs=found.log_probs, kept=found.kept, error=found.error + summed)

    def tempered_lse(self, hidden: Doubles, temperature: float, eps: float, limits: dict[str, Any]) -> Lse:
        """The normaliser of ``f(z) / temperature``: without a bias that of ``hidden / temperature``, by the same plan."""
        link = self.layer.link
        colder = hidden / temperature
        scales = self.layer.bias is None and isinstance(link, Affine) and np.abs(colder).max(initial=0.0) < LONGEST
        if temperature == 1 or (scales and isinstance(link, Affine)):
            found = self.lse(colder, eps=eps, **limits)
            if temperature == 1 or not isinstance(link, Affine):
                return found
            moved = 2 * UNIT * link.steepest * float(self.norms.max()) * np.linalg.norm(colder, axis=1)
            shift = link.shift * (1 / temperature - 1)
            return dataclasses.replace(found, lse=found.lse + shift, error=found.error + moved)
        if isinstance(link, Affine):
            return self.at_temperature(temperature).lse(hidden, eps=eps, **limits)
        return super().tempered_lse(hidden, temperature, eps, limits)

    def at_temperature(self, value: float) -> Engine:
        """This engine with the link ``f(z) / value``: same plan, same arrays; normalisers are proved where ids are."""
        link = self.layer.link
        if not isinstance(link, Affine):
            raise OptionError(f"the layer's link is {link}; expected a scale and shift, which a temperature can join")
        scale = real(value, "temperature", *RANGES["temperature"])
        layer = Layer(self.layer.weight, self.layer.bias, Affine(link.scale / scale, link.shift / scale), name=self.layer.name)
        promise = self.promise
        return Engine(
            layer, self.method, self.plan, self.norms, promise,
            threads=self._threads, seed=self.seed, stamp=self._stamp, watch=self._watch,
        )  # fmt: skip

    def save(self, path: str | os.PathLike[str], layer: bool = True) -> None:
        """Write the engine to one safetensors file; ``layer=False`` leaves the layer out, and ``load`` asks for it."""
        write_engine(path, self.kept(), layer)

    def kept(self) -> Saved:
        """The engine as :meth:`save` writes it."""
        self._check_unchanged()
        options = dataclasses.asdict(self.method)
        return Saved(self.layer, self.method.name, options, self.plan, self.norms, self.promise, self.seed, self.reason)

    def every_class(self, hidden: Doubles) -> tuple[Doubles, Doubles]:
        """The logits of all classes and their log-probabilities ``[n, vocab]``, in float64."""
        logits = native.logits(self.layer.weight, self.layer.bias, hidden, native.threads(self._threads))
        return normalised(logits, self.layer.link(logits))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as layer and plan; a copy, deep or not, shares these arrays, to which nobody writes."""
        self._check_unchanged()
        parts = self.layer, self.method, self.plan, self.norms, self.promise
        return partial(Engine, *parts, threads=self._threads, seed=self.seed, reason=self.reason, stamp=self._stamp), ()

    def _check_unchanged(self) -> None:
        """WrongLayerError where the layer's borrowed arrays were written to since the plan was made of them."""
        if self.layer.stamp() != self._stamp:
            raise WrongLayerError(
                f"{self.layer!r} was written to after this engine was compiled, so its codes are of other "
                "weights; compile it again, or let the layer take a copy: Layer(..., copy=True)"
            )

    def with_plan(self, plan: Plan, wanted: Promise, reason: str, method: Method | None = None) -> Engine:
        """The same layer by another plan, and by another method where one is given, which keeps what it can of ``wanted``."""
        chosen = self.method if method is None else method
        parts = self.layer, chosen, plan, self.norms, chosen.promise(wanted, plan)
        return Engine(*parts, threads=self._threads, seed=self.seed, reason=reason, stamp=self._stamp, watch=self._watch)

    def __repr__(self) -> str:
        layer, plan = self.layer, self.plan
        stored = 0 if plan.codes is None else plan.codes.tiles.nbytes
        stored += 0 if plan.preview is None else plan.preview.columns.nbytes
        storage = f"{stored / 2**20:.1f} MiB of codes, " if stored else ""
        return (
            f"Engine({self.method.name}: vocab={layer.vocab}, dim={layer.dim}, {layer.dtype}, {storage}"
            f"{self.promise}, kernel {self._executor.isa})"
        )

    def _listed(self, asked: Asked) -> ListedClasses:
        assert asked.mask is not None
        ids = listed(asked.mask, len(asked.hidden))
        scored = self._executor.logits(asked.hidden, np.maximum(ids, 0), native.threads(self._threads))
        return listed_classes(ids, scored, self.layer.link)

    def _rounding(self, asked: Asked, answer: ListedClasses, lse: Doubles) -> Doubles:
        """How far float64 can have carried the normaliser of a few exact rows."""
        link = self.layer.link
        norms = self.norms[np.maximum(answer.ids, 0)].max(axis=1, initial=0.0).astype(np.float64)
        logits = np.abs(np.where(answer.ids < 0, 0.0, answer.logits)).max(axis=1, initial=0.0)
        terms = (self.layer.dim + 4) * norms * np.linalg.norm(asked.hidden, axis=1) + 8 * logits
        size = link.steepest * terms + 8 * link.offset
        size += (answer.ids >= 0).sum(axis=1) + 16 + 8 * np.abs(np.where(np.isfinite(lse), lse, 0.0))
        return np.asarray(size * UNIT + 2 * lowering_error(link))

    def _cost(self, found: native.FoundTopK | native.FoundLse | native.FoundEntropy | native.FoundDraws) -> Cost:
        return Cost(found.rows, found.bytes, found.dense, self._path)

    def _cost_of_listed(self, answer: ListedClasses) -> Cost:
        rows = (answer.ids >= 0).sum(axis=1)
        return Cost(rows, rows * float(self._row_bytes), np.zeros(len(rows), bool), f"rows/{self._executor.isa}")

    @property
    def _row_bytes(self) -> int:
        return self.layer.row_bytes


def rows_of(layer: Layer, plan: Plan, norms: NDArray[np.float32], level: str) -> native.Executor:
    """What answers from all rows."""
    if level == native.REFERENCE:
        return Reference(Matrix(layer.weight, layer.bias, norms, layer.link, plan.preview))
    return native.executor(layer.weight, layer.bias, norms, layer.link.lowered(), plan, level)


def reader_of(
    layer: Layer, plan: Plan, norms: NDArray[np.float32], rows: native.Executor, level: str
) -> native.Executor:
    """What answers from a plan: its blocks and codes, where it has any, before all ``rows``. The reference has no blocks."""
    if isinstance(rows, Reference):
        return rows if plan.codes is None else CodesInNumPy(layer, plan.codes, rows)
    codes = None if plan.codes is None else native.code_reader(rows, plan.codes, level)
    blocks, search = plan.blocks, None
    if blocks is not None:
        search = native.blocks(layer.weight, layer.bias, blocks, MOST_SCORED, level, float(norms.max()))
    return rows if codes is search is None else native.reader(rows, codes, search, blocks)
