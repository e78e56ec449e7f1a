"""What every engine has, whatever it reads: a matrix, a structured layer, shards, or either in a GPU's memory.

::

    engine.topk(hidden, k)   engine.log_prob(hidden, ids)   engine.lse(hidden)   engine.sample(hidden, n)
    engine.at_temperature(2.0)   engine.save(path)   engine.check(hidden)
    engine.with_rows(weight)   engine.without(ids)   engine.compact()
    engine.layer   engine.name   engine.options   engine.promise   engine.reason

``tests/engines/test_contract.py`` runs one suite over all kinds. What a kind cannot do is an UnsupportedError that names
what can.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from headlong.answers import Answer, Certificate, Entropy, Expected, LogProb, Lse, Sample, Shown, TopK
from headlong.arrays import Form, answer_as, ids64, to_host
from headlong.dtypes import Doubles
from headlong.engines import draws, functionals
from headlong.engines.arguments import (
    Asked,
    aimed,
    asked,
    check_told,
    checked_eps,
    checked_k,
    checked_n,
    told,
    untold,
)
from headlong.engines.certificate import certify
from headlong.engines.class_masks import check_some_left, class_mask
from headlong.engines.few_allowed_classes import checked_draws
from headlong.engines.kind import Kind
from headlong.engines.promise_failures import Check, Progress, check
from headlong.engines.ranked import ranked
from headlong.errors import UnsupportedError
from headlong.number_checks import flag, whole
from headlong.question import RANGES, Filters, Question


class Verbs(Kind):
    """The verbs of every engine, each written once: check, ask, show. Some kinds have no files, temperatures or changes; they
    say so, and who has.

    A kind has a ``layer``, a ``promise`` and :meth:`ask`, the reader: see :class:`headlong.engines.kind.Kind`.
    """

    def _asked(self, hidden: Any, allowed: Any = None, exclude: Any = None) -> Asked:
        return asked(hidden, allowed, exclude, self.layer.dim, self.layer.vocab)

    def _aim(self, eps: float | None, form: Form) -> float | None:
        """What the reader has to be within, for answers in the caller's precision; None: estimates that nothing bounds."""
        aim = aimed(eps, self.promise, form)
        return None if math.isinf(aim) and told(eps, self.promise) else aim

    def _shown(
        self, view: type[Shown], hidden: Any, question: Question, allowed: Any = None, exclude: Any = None
    ) -> Shown | None:
        """The whole verb in one native call, where there is one for the question and its arguments are plain."""
        watch, reader = self._watch, self._takes_callers
        if watch is not None and watch.found():
            raise self._written_to()
        if reader is None:
            return None
        if allowed is not None or exclude is not None:
            shape: tuple[int, ...] = getattr(hidden, "shape", ())
            if not reader.every or len(shape) != 2:
                return None
            question = question._replace(mask=class_mask(allowed, exclude, shape[0], self.layer.vocab))
        return reader.show(hidden, question, view)

    def topk(self, hidden: Any, k: int = 10, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> TopK:
        """The ``k`` likeliest classes of each row of ``hidden [batch, dim]``, likeliest first, equal logits by id.

        ``eps``      how far log-probabilities may be off, in nats; inf: ids and exact logits only, the others are NaN
        ``allowed``, ``exclude``  class ids, ``[m]`` for the call or one row of ids per query: other classes are left
                                  out as if they did not exist. -1 pads rows and is ignored.
        """
        found = self._shown(TopK, hidden, Question("best", k, None, eps), allowed, exclude)
        if found is not None:
            return found
        call = self._asked(hidden, allowed, exclude)
        question = Question("best", checked_k(k, self.layer.vocab), eps=self._aim(eps, call.form), mask=call.mask)
        top = TopK.of(self.ask(call.hidden, question))
        return answer_as(top if told(eps, self.promise) else untold(top), call.form)

    def log_prob(self, hidden: Any, ids: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> LogProb:
        """The log-probabilities of ``ids [batch, m]``: their exact logits, and the normaliser of all classes; -inf for those
        that have no probability.

        ``eps``  inf: exact logits only; an engine that was compiled without log-probabilities asks for one
        """
        if eps is None:
            check_told("log_prob", None, self.promise)
        found = self._shown(LogProb, hidden, Question("given", 0, ids, eps), allowed, exclude)
        if found is not None:
            return found
        call = self._asked(hidden, allowed, exclude)
        question = Question("given", ids=ids64(ids, len(call.hidden), self.layer.vocab), eps=self._aim(eps, call.form))
        if allowed is None and exclude is None:
            a = self.ask(call.hidden, question)
        else:
            a = self._given_among(call.hidden, question._replace(mask=call.mask))
        given = LogProb(a.log_probs, a.logits, a.lse, a.error, a.cost)
        return answer_as(given if told(eps, self.promise) else untold(given), call.form)

    def lse(self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> Lse:
        """The log-normaliser ``log sum_i exp(link(z_i))`` of each row, over the classes that are there."""
        check_told("lse", eps, self.promise)
        found = self._shown(Lse, hidden, Question("normaliser", 0, None, eps), allowed, exclude)
        if found is not None:
            return found
        call = self._asked(hidden, allowed, exclude)
        a = self.ask(call.hidden, Question("normaliser", eps=self._aim(eps, call.form), mask=call.mask))
        return answer_as(Lse(a.lse, a.error, a.cost), call.form)

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The options of how the layer is read, by name, as compiled: those that were given, and the others' defaults."""

    def sample(
        self,
        hidden: Any,
        n: int = 1,
        temperature: Any = 1.0,
        top_k: Any = None,
        top_p: Any = None,
        min_p: Any = None,
        seed: Any = None,
        position: Any = None,
        *,
        eps: float | None = None,
        ties: str = "ids",
        support: bool = False,
        temperature_last: bool = False,
        class0: int = 0,
        allowed: Any = None,
        exclude: Any = None,
    ) -> Sample:
        """``n`` exact draws from each row's distribution at ``temperature``, after top_k, then top_p, then min_p.

        ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``seed``, ``position``  one number, or one for each row
        ``seed``      a draw depends on (seed, position, class) alone, in any batch; None draws a fresh seed
        ``position``  the row's place in its text or stream; None numbers the rows of the call 0, 1, ...: rows with the same
                      seed and position share their noise
        ``eps``       how far ``log_probs`` and ``kept`` may be off, None: what is promised; inf: ids alone
        ``ties``      of equal logits at the k-th place "ids" keeps the smaller ids, "all" all of them, as transformers does
        ``support``   True: the ids that the filters keep, too
        ``temperature_last``  True: the filters go by the distribution at temperature 1, as llama.cpp's do; what they keep is
                      drawn at ``temperature``, of which ``log_probs`` and ``kept`` are, too
        ``top_k``     as many as there are classes, or more, keeps all, as in transformers
        ``class0``    the number of the first class, where the layer is a part of a larger one
        With codes one scan gives the draws, the best classes and the normaliser, which decide what is kept; rows or blocks
        that find a plain draw scan once more for the normaliser. With a ``delta`` above 0 either fails for a row with
        probability at most ``delta``, and
        such draws are not ``proved``.
        """
        if class0 and not self.may_be_shard:
            raise UnsupportedError(
                f"class0 is {class0}; the classes of {type(self).__name__} start at 0: only an engine over one matrix can be a "
                "shard of a larger layer"
            )
        eps = (self.promise.eps if self.draws_say_log_probs else math.inf) if eps is None else checked_eps(eps)
        seed = self._fresh_seed() if seed is None else seed
        first = 0 if position is None else draws.first_of(position, draws.count_of(hidden))
        plain = ties == "ids" and not support and first is not None
        last = temperature_last is not False and flag(temperature_last, "temperature_last")
        asked_for = Filters(n, temperature, top_k, top_p, min_p, seed, first, class0, last)
        found = self._shown(Sample, hidden, Question("draw", eps=eps, filters=asked_for), allowed, exclude) if plain else None
        if found is not None:
            return found
        self.check_weights()
        n, class0 = checked_n(n), whole(class0, "class0", *RANGES["class0"])
        filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        of_all: dict[str, Any] = {"n": n, "class0": class0, "last": last}
        if plain and not last and math.isinf(eps) and not any(map(draws.is_each, (*filters.values(), seed))):
            one = draws.rules_of(1, self.layer.vocab, seed, first, filters, **of_all)
            return self._drawn(hidden, one.filters(0), allowed, exclude)
        of_all |= {"all_ties": draws.check_ties(ties), "support": support}
        rules = draws.rules_of(draws.count_of(hidden), self.layer.vocab, seed, position, filters, **of_all)
        return draws.sample(self, to_host(hidden), rules, eps, allowed, exclude)

    def _drawn(self, hidden: Any, filters: Filters, allowed: Any, exclude: Any) -> Sample:
        """Draws by one rule, rows at consecutive positions, without log-probabilities."""
        call = self._asked(hidden, allowed, exclude)
        check_some_left(call.mask)
        a = self.ask(call.hidden, Question("draw", filters=filters, mask=call.mask))
        return answer_as(Sample(checked_draws(a.ids), a.logits, a.score, a.proved, a.cost), call.form)

    def _given_among(self, hidden: Doubles, question: Question) -> Answer:
        """Log-probabilities under the distribution over the classes that a mask leaves; -inf for others."""
        assert question.ids is not None
        assert question.mask is not None
        given = self.ask(hidden, question._replace(eps=self.exact_at, mask=None))
        if question.eps == math.inf:
            return given
        norm = self.ask(hidden, Question("normaliser", eps=question.eps, mask=question.mask))
        inside = np.take_along_axis(np.broadcast_to(question.mask, (len(hidden), self.layer.vocab)), question.ids, 1)
        log_probs = np.where(inside == 1, self.exponents(given.logits) - norm.lse[:, None], -np.inf)
        error = norm.error + (given.error if math.isfinite(self.exact_at) else 0.0)  # of logits that are sums over parts
        whole = norm._replace(logits=given.logits, log_probs=log_probs, error=error, rows=norm.rows + given.rows)
        return whole._replace(bytes=norm.bytes + given.bytes, full=norm.full + given.full)

    def entropy(
        self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None, moments: bool = False
    ) -> Entropy:
        """``H = -sum_i p_i log p_i`` of each row, in nats, within ``eps`` (None: what is promised); ``error`` says how near.

        Engines with rotated codes draw rows until it is, as for ``lse``; others, and those with ``delta=0``, scan rows in full
        whose mass is spread over many classes, and ``cost.dense`` says so.

        ``moments``  also ``variance = sum_i p_i (log p_i + H)^2``, the varentropy, within ``variance_error``: a full scan of
                     every row in float64, many times the time of the entropy alone
        """
        check_told("entropy", eps, self.promise)
        moments = flag(moments, "moments")
        by_reader, question = self.reads_entropies and not moments, Question("functional", 0, None, eps)
        self.check_weights()
        if by_reader and (found := self._shown(Entropy, hidden, question, allowed, exclude)) is not None:
            return found
        call = self._asked(hidden, allowed, exclude)
        aim = self._aim(eps, call.form) if eps != math.inf else eps
        if not by_reader:
            return functionals.entropy(self, call, aim, moments)
        a = self.ask(call.hidden, question._replace(eps=aim, mask=call.mask))
        return answer_as(Entropy(a.value, a.error, a.lse, a.cost), call.form)

    def expected(
        self, hidden: Any, values: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None
    ) -> Expected:
        """``sum_i p_i values_i`` of each row: the mean of ``values [vocab]``, a number of every class, under the distribution.

        ``eps``  how far it may be off, in halves of the range of the values (None: what is promised of log-probabilities); rows
                 whose mass is spread over many classes are scanned in full, and ``cost.dense`` says so
        """
        check_told("expected", eps, self.promise)
        self.check_weights()
        call = self._asked(hidden, allowed, exclude)
        numbers = functionals.class_values(values, self.layer.vocab)
        return functionals.expected(self, call, numbers, self._aim(eps, call.form) if eps != math.inf else eps)

    def ranked(
        self,
        hidden: Any,
        *,
        eps: float | None = None,
        until: Callable[[Any], Any] | None = None,
        allowed: Any = None,
        exclude: Any = None,
    ) -> Iterator[tuple[Any, Any]]:
        """An iterator of ``ids, log_probs [batch]``: each row's likeliest class, its second, ...; ``topk(k)`` for every ``k``.

        ``until``  a predicate over ``ids [batch]``: the iterator ends when it was true of every row once. Rows with fewer
                   classes than others have id -1 and -inf in their places. ``delta`` is of each doubling of what was read
        """
        return ranked(self, hidden, eps, until, allowed, exclude)

    def check(self, hidden: Any, k: int = 10, *, batch: int = 1, progress: Progress | None = None) -> Check:
        """How often the promise fails on ``hidden [n, dim]``, against every logit in float64, and whether it still holds.

        ``k``         an answer's ids are wrong where any of the best ``k`` is
        ``batch``     queries per call: larger batches may be read in another way
        ``progress``  called with how many of the vectors are done and how many there are; each reads the whole layer
        """
        return check(self, self.topk, hidden, k, batch, progress)

    def certify(self, hidden: Any, *, scores: Any, error: Any, k: int = 10) -> Certificate:
        """The ``k`` best classes from ``scores [n, vocab]`` of somebody else, each within ``error`` of its logit; rows are read
        only where that leaves a doubt.

        ``error``  one number, ``[n]``, ``[1, vocab]`` or ``[n, vocab]``; inf where it is not known. What is read is compared
                   with it, and where a score is further off the engine answers the row itself
        """
        return certify(self, hidden, scores, error, k)

    def at_temperature(self, value: float) -> Verbs:
        """This engine with the link ``f(z) / value``: only over one matrix, where it shares its plan."""
        raise UnsupportedError(
            f"{type(self).__name__} has no at_temperature; pass temperature= to sample, or compile a layer whose link is "
            f"headlong.Affine(1 / {value!r})"
        )

    def save(self, path: str | os.PathLike[str], layer: bool = True) -> None:
        """Write the engine to one safetensors file; ``layer=False`` leaves the layer out, and ``load`` asks for it."""
        raise UnsupportedError(
            f"{type(self).__name__} cannot be saved; save the engine from which it was made, compiled without device= or shards"
        )

    def with_rows(self, weight: Any, bias: Any = None, ids: Any = None) -> Verbs:
        """This engine and the rows ``weight [m, dim]``, ``bias [m]`` (None: 0), stored as the layer's are; it stays as it is.

        ``ids``  what they are called: the next ones (None), or ids of classes that are there or were, whose place they take
        """
        raise self._no_changes()

    def without(self, ids: Any) -> Verbs:
        """This engine without the classes ``ids``, which are never in an answer; other ids stay the same."""
        raise self._no_changes()

    def compact(self, calibration: Any = None) -> Verbs:
        """One layer and one plan with all rows, in the same basis; ``calibration`` vectors choose a new plan."""
        return self

    def _no_changes(self) -> UnsupportedError:
        return UnsupportedError(
            f"{type(self).__name__} takes no rows in or out; pass exclude= to a call, or compile a headlong.Layer, whose "
            "engine has with_rows and without"
        )
