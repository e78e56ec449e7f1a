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
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from headlong.answers import Certificate, Cost, Entropy, LogProb, Lse, Sample
from headlong.arrays import answer_as, as_numpy, form_of, to_host
from headlong.dtypes import Doubles
from headlong.engines import draws
from headlong.engines.arguments import (
    RANGES,
    Asked,
    aimed,
    asked,
    check_told,
    checked_eps,
    checked_hidden,
    checked_n,
    told,
    untold,
)
from headlong.engines.certificate import certify
from headlong.engines.class_masks import class_mask
from headlong.engines.direct_call import Direct
from headlong.engines.draws import Rules, rules_of
from headlong.engines.entropy import entropy, scanned
from headlong.engines.few_allowed_classes import lse_of
from headlong.engines.promise_failures import ROUNDING, Check, Progress, check, float64_error, longest_row, normalised
from headlong.engines.ranked import ranked
from headlong.engines.sampling_filters import Filters
from headlong.errors import InputError, UnsupportedError
from headlong.layers.written_to import WrittenTo
from headlong.native import FoundEntropy, Mask
from headlong.number_checks import flag, whole


class Changeable:
    """Classes that are added and removed. Each method returns a new engine; this one stays as it is."""

    def with_rows(self, weight: Any, bias: Any = None, ids: Any = None) -> Any:
        """This engine and the rows ``weight [m, dim]``, ``bias [m]`` (None: 0), stored as the layer's are.

        ``ids``  what they are called: the next ones (None), or ids of classes that are there or were, whose place they take
        """
        return self._unchanged().with_rows(weight, bias, ids)

    def without(self, ids: Any) -> Any:
        """This engine without the classes ``ids``, which are never in an answer; other ids stay the same."""
        return self._unchanged().without(ids)

    def compact(self, calibration: Any = None) -> Any:
        """One layer and one plan with all rows, in the same basis; ``calibration`` vectors choose a new plan."""
        return self if calibration is None else self._unchanged().compact(calibration)

    def _unchanged(self: Any) -> Any:
        from headlong.engines.changed import unchanged  # made of engines, and what makes them

        return unchanged(self)


class Common(ABC):
    """What all kinds of engines share: draws with checked arguments, and a count of how often the promise fails."""

    may_be_shard: ClassVar[bool] = True
    """Whether its classes can be numbered from another than 0: those of a matrix, which may be part of a larger one."""
    exact_at: ClassVar[float] = math.inf
    """The ``eps`` at which logits are exact but for rounding: any, unless normalisers of parts are summands of them."""
    draws_say_log_probs: ClassVar[bool] = True
    """Whether draws come with log-probabilities without being asked: not from a GPU, where that would wait for the CPU."""
    reads_every_logit: ClassVar[bool] = False
    """Whether ``every_logit`` gives all classes of a row sooner than ``topk`` an eighth of them."""
    _direct: Direct | None = None
    """One native call for each question without a mask, where a kind has that."""
    _watch: WrittenTo | None = None
    """What sees writes to borrowed arrays, where a kind has some."""

    def check_weights(self) -> None:
        """InputError where a look at the layer's borrowed arrays shows that they were written to since the plan was made."""
        if self._watch is not None and self._watch.found():
            engine: Any = self
            raise InputError(
                f"the weights of {engine.layer!r} have changed since this engine was compiled; compile again, or let the layer "
                "take a copy: Layer(..., copy=True)"
            )

    def _asked(self: Any, hidden: Any, allowed: Any = None, exclude: Any = None) -> Asked:
        return asked(hidden, allowed, exclude, self.layer.dim, self.layer.vocab)

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
        With filters one scan gives the best classes and the normaliser, which decide what is kept; without them the draw and
        the normaliser are a scan each. With a ``delta`` above 0 either fails for a row with probability at most ``delta``, and
        such draws are not ``proved``.
        """
        if class0 and not self.may_be_shard:
            raise UnsupportedError(
                f"class0 is {class0}; the classes of {type(self).__name__} start at 0: only an engine over one matrix can be a "
                "shard of a larger layer"
            )
        self.check_weights()
        engine: Any = self
        eps = (engine.promise.eps if self.draws_say_log_probs else math.inf) if eps is None else checked_eps(eps)
        seed = self._fresh_seed() if seed is None else seed
        shape = getattr(hidden, "shape", None)
        count = len(hidden) if isinstance(hidden, (list, tuple)) or (isinstance(shape, tuple) and shape) else 0  # refused below
        first = draws.first_of(position, count)
        plain = ties == "ids" and not support and first is not None
        last = flag(temperature_last, "temperature_last")
        if plain and self._direct is not None and allowed is None and exclude is None:
            found = self._direct.sample(hidden, n, temperature, top_k, top_p, min_p, seed, first, class0, eps, last)
            if found is not None:
                return found
        n, class0 = checked_n(n), whole(class0, "class0", *RANGES["class0"])
        filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        if plain and not last and math.isinf(eps) and not any(map(draws.is_each, (*filters.values(), seed))):
            one = rules_of(1, engine.layer.vocab, seed, first, False, **filters)
            return self._sample(hidden, one.filters(0, n, class0), allowed, exclude)
        rules = rules_of(count, engine.layer.vocab, seed, position, last, **filters)
        about: dict[str, Any] = {"ties": ties, "support": support, "class0": class0}
        return draws.sample(self, to_host(hidden), n, rules, eps=eps, allowed=allowed, exclude=exclude, **about)

    def drawn(self, hidden: Doubles, filters: Filters, allowed: Any = None) -> Sample:
        """Draws by checked filters, rows at consecutive positions: what engines that are made of others ask for."""
        found = None
        if self._direct is not None and allowed is None:
            named = filters._replace(top_k=filters.top_k or None)  # type: ignore[arg-type]
            found = self._direct.sample(hidden, *named, math.inf, False)
        return self._sample(hidden, filters, allowed, None) if found is None else found

    def _drawn_each(self, hidden: Doubles, n: int, rules: Rules, class0: int, aim: float, mask: Mask) -> Sample | None:
        """Draws of each row by its own rule, with log-probabilities where ``aim`` is finite; None where a kind has none."""
        return None

    def agree(self, question: tuple[Any, ...]) -> None:  # noqa: B027  # most have nobody to agree with
        """Where others have to ask the same at the same time: that they do."""

    def exponents(self, logits: Doubles) -> Doubles:
        """``f(z)``; -inf for what is not there."""
        engine: Any = self
        link = getattr(engine.layer, "link", None)
        gone = np.isneginf(logits)
        return logits if link is None else np.where(gone, -np.inf, link(np.where(gone, 0.0, logits)))

    def tempered_lse(self, hidden: Doubles, temperature: float, eps: float, limits: dict[str, Any]) -> Lse:
        """The normaliser of ``f(z) / temperature``; here from every class."""
        engine: Any = self
        if temperature == 1:
            found: Lse = engine.lse(hidden, eps=eps, **limits)
            return found
        logits, _ = self.every_class(hidden)
        mask = limits["allowed"].mask if limits else 1
        tempered = np.where(mask, self.exponents(logits) / temperature, -np.inf)
        count = len(hidden)
        read = np.full(count, 4.0 * engine.layer.vocab * engine.layer.dim)
        lost = ROUNDING + float64_error(engine.layer, longest_row(engine.layer), hidden, logits) / temperature
        return Lse(lse_of(tempered), lost, Cost(np.full(count, engine.layer.vocab), read, np.ones(count, bool), engine.name))

    def _log_prob_among(self, hidden: Any, ids: Any, eps: float | None, allowed: Any, exclude: Any) -> LogProb:
        """Log-probabilities under the distribution over the classes that are left; -inf for others."""
        engine: Any = self
        form, hidden = form_of(hidden), to_host(hidden)
        rows = checked_hidden(hidden, engine.layer.dim, vocab=engine.layer.vocab)
        given = engine.log_prob(rows, to_host(ids), eps=self.exact_at)
        if eps is None:
            check_told("log_prob", None, engine.promise)
        wanted = told(eps, engine.promise)
        aim = aimed(eps, engine.promise, form)
        limits = {"allowed": allowed, "exclude": exclude}
        norm = engine.lse(rows, eps=aim, **limits) if wanted else Lse(given.lse, given.error, given.cost)
        mask = class_mask(allowed, exclude, len(rows), engine.layer.vocab)
        assert mask is not None
        inside = np.take_along_axis(np.broadcast_to(mask, (len(rows), engine.layer.vocab)), as_numpy(to_host(ids), "ids"), 1)
        log_probs = np.where(inside == 1, self.exponents(given.logits) - norm.lse[:, None], -np.inf)
        error = norm.error + (given.error if math.isfinite(self.exact_at) else 0.0)  # of logits that are sums over parts
        rows_read, read, dense = (one + more for one, more in zip(given.cost[:3], norm.cost[:3], strict=True))
        whole = LogProb(log_probs, given.logits, norm.lse, error, Cost(rows_read, read, dense, norm.cost.path))
        return answer_as(whole if wanted else untold(whole), form)

    def entropy(
        self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None, moments: bool = False
    ) -> Entropy:
        """``H = -sum_i p_i log p_i`` of each row, in nats, within ``eps`` (None: what is promised); ``error`` says how near.

        Engines with rotated codes draw rows until it is, as for ``lse``; others, and those with ``delta=0``, scan rows in full
        whose mass is spread over many classes, and ``cost.dense`` says so.

        ``moments``  also ``variance = sum_i p_i (log p_i + H)^2``, the varentropy, within ``variance_error``: a full scan of
                     every row in float64, many times the time of the entropy alone
        """
        return entropy(self, hidden, eps, allowed, exclude, flag(moments, "moments"))

    def scanned_entropy(self, hidden: Doubles, mask: Any) -> FoundEntropy:
        """By a full scan."""
        return scanned(self, hidden, mask)[0]

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

    @abstractmethod
    def _sample(self, hidden: Any, filters: Filters, allowed: Any, exclude: Any) -> Sample:
        """The draws, in arrays of the kind that came."""

    def _fresh_seed(self) -> int:
        return secrets.randbits(64)

    def check(self, hidden: Any, k: int = 10, *, batch: int = 1, progress: Progress | None = None) -> Check:
        """How often the promise fails on ``hidden [n, dim]``, against every logit in float64, and whether it still holds.

        ``k``         an answer's ids are wrong where any of the best ``k`` is
        ``batch``     queries per call: larger batches may be read in another way
        ``progress``  called with how many of the vectors are done and how many there are; each reads the whole layer
        """
        return check(self, hidden, k, batch, progress)  # type: ignore[arg-type]

    def certify(self, hidden: Any, *, scores: Any, error: Any, k: int = 10) -> Certificate:
        """The ``k`` best classes from ``scores [n, vocab]`` of somebody else, each within ``error`` of its logit; rows are read
        only where that leaves a doubt.

        ``error``  one number, ``[n]``, ``[1, vocab]`` or ``[n, vocab]``; inf where it is not known. What is read is compared
                   with it, and where a score is further off the engine answers the row itself
        """
        return certify(self, hidden, scores, error, k)

    def every_class(self, hidden: Doubles) -> tuple[Doubles, Doubles]:
        """The logits of all classes and their log-probabilities ``[n, vocab]``, to float64's rounding."""
        engine: Any = self
        ids = np.tile(np.arange(engine.layer.vocab), (len(hidden), 1))
        # A mixture's logits are as good as the normalisers of its components, which any eps would leave where they are guessed.
        logits = np.asarray(engine.log_prob(hidden, ids, eps=self.exact_at).logits, np.float64)
        return normalised(logits, self.exponents(logits))


class Bounded(Common):
    """For kinds without some verbs: each says that it has none, and who has."""

    may_be_shard: ClassVar[bool] = False

    def at_temperature(self, value: float) -> Any:
        """Only an engine over one matrix shares its plan with another temperature."""
        raise UnsupportedError(
            f"{type(self).__name__} has no at_temperature; pass temperature= to sample, or compile a layer whose link is "
            f"headlong.Affine(1 / {value!r})"
        )

    def save(self, path: str | os.PathLike[str], layer: bool = True) -> None:
        """Only engines on one CPU are files."""
        raise UnsupportedError(
            f"{type(self).__name__} cannot be saved; save the engine from which it was made, compiled without device= or shards"
        )

    def with_rows(self, weight: Any, bias: Any = None, ids: Any = None) -> Any:
        """Only an engine over one matrix has rows to which others can be added."""
        raise self._no_changes()

    def without(self, ids: Any) -> Any:
        """Only classes of one matrix can be taken out; elsewhere ``exclude=`` leaves them out of a call."""
        raise self._no_changes()

    def compact(self, calibration: Any = None) -> Any:
        """There are no changes."""
        return self

    def _no_changes(self) -> UnsupportedError:
        return UnsupportedError(
            f"{type(self).__name__} takes no rows in or out; pass exclude= to a call, or compile a headlong.Layer, whose "
            "engine has with_rows and without"
        )
