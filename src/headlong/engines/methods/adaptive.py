"""AdaptiveSoftmax (Baharav et al., NeurIPS 2024): a few coordinates of every class, more of those that matter.

::

    1  warm-up     all classes together to variance 1 / (17 L), at most ``warm`` of the coordinates      L = ln(6 V / delta')
    2  best arms   goes on from there, in rounds of half the variance; a class stays while
                   estimate + ci >= the k-th largest of (estimate - ci),   ci = sqrt(2 var ln(6 V ln(D) / delta'))
    3  their logits, exactly
    4  normaliser  every class to the variance that its weight asks for; logsumexp of the estimates

    delta' = delta / 2,   eps' = eps / (1 + eps):  |Z^ / Z - 1| <= eps' is |p^ / p - 1| <= eps

Coordinates are read in one order per query, ``descending ln(share) + Gumbel``, and a class's estimate is that of its prefix, by
Horvitz and Thompson. One state of samples for a query: no stage starts anew. ``published=True`` has the authors' constants,
which are not sound: the best class alone has a lower end in 2, so that ranks 2..k are whatever was left, and 4 aims at eps.

Nothing is promised either way: variances are estimated from the same few draws. ``arm`` and ``sum`` are the published
multipliers on all of them, fitted on calibration vectors until the failure rate is met; 1 is the theory. ``cost.bytes`` counts
every entry once, four bytes each, as the authors count. Entries are saved, not time: rotated codes are faster
(studies/pages/adaptive-softmax.md).
The search is ``csrc/adaptive/``, native alone: with ``HEADLONG_ISA=numpy`` it runs by the portable kernels.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.answers import Answer
from headlong.arrays import Array
from headlong.dtypes import Doubles, Ids
from headlong.engines.base import rows_of
from headlong.engines.few_allowed_classes import ListedClasses, lse_of, sample_of
from headlong.engines.method import PLAIN, EngineParts, Making, Method, register
from headlong.errors import NonFiniteError, OptionError
from headlong.layers.matrix import Layer
from headlong.native import FoundByCoordinates
from headlong.number_checks import flag, real
from headlong.plan import Plan, padded
from headlong.promise import Promise
from headlong.question import About, Filters, Mask, Question

GROUP = 64
"""Classes that the native search reads together."""
PIECE = 1 << 21
"""Weights that are widened at once."""
TUNED_ON = 400
"""The most queries that multipliers are fitted on. The paper has 200, which cannot show a failure rate of 1 %."""
MOST = 1e34
"""The largest bound on a squared logit."""
NOTHING = 1e-20
"""A multiplier with which every variance is small enough."""
MOST_TIMES = 1e6
"""A multiplier at most."""
LOWEST, STEP = -6.0, 0.01
"""Where log10 of a multiplier starts, and how closely it is found."""


class Rules(NamedTuple):
    """``eps`` relative; ``warm`` the share of the coordinates that the warm-up may read.

    ``arm``, ``sum``  the multipliers;  ``published``: the authors' constants
    """

    eps: float = 0.3
    delta: float = 0.1
    warm: float = 0.1
    arm: float = 1.0
    sum: float = 1.0
    published: bool = False


def normaliser_eps(rules: Rules) -> float:
    """What Z may be off by, relatively, for p to be off by ``eps`` at most: 1 / (1 - eps') = 1 + eps."""
    return rules.eps if rules.published else rules.eps / (1 + rules.eps)


def arrays_of(layer: Layer) -> dict[str, NDArray[Any]]:
    """``columns [groups, dim, 64]`` float32, so that a group of classes is one run of memory; ``column_weight [dim]``;
    ``spread``: the variance of one draw is at most ``spread |x|_1^2``."""
    columns = np.zeros((padded(layer.vocab) // GROUP, layer.dim, GROUP), np.float32)
    heavy = np.zeros(layer.dim)
    for part, rows in pieces(layer):
        ids = np.arange(part.start, part.stop)
        columns[ids // GROUP, :, ids % GROUP] = rows
        heavy += np.abs(rows).sum(axis=0)
    shares = np.divide(heavy.sum(), heavy, out=np.zeros_like(heavy), where=heavy > 0)
    widest = max(float((rows**2 @ shares).max()) for _, rows in pieces(layer))
    return {"columns": columns, "column_weight": heavy, "spread": np.array([widest / layer.dim**2])}


def pieces(layer: Layer) -> Iterator[tuple[slice, Doubles]]:
    """The rows as float64, some at a time."""
    step = max(1, PIECE // layer.dim)
    for start in range(0, layer.vocab, step):
        part = slice(start, min(start + step, layer.vocab))
        yield part, layer.weight[part].astype(np.float64)


def check_arrays(arrays: Mapping[str, NDArray[Any]], layer: Layer) -> None:
    """ValueError unless all arrays are there, of their type and shape, and in range: a file may hold anything. Columns stay
    unread."""
    groups = padded(layer.vocab) // GROUP
    shapes = {"columns": (groups, layer.dim, GROUP), "column_weight": (layer.dim,), "spread": (1,), "multipliers": (2,)}
    for name, shape in shapes.items():
        array, kind = arrays.get(name), np.float32 if name == "columns" else np.float64
        if array is None or array.shape != shape or array.dtype != kind:
            came = "missing" if array is None else f"{array.dtype} {list(array.shape)}"
            raise ValueError(f"the array {name} is {came}; the method needs {np.dtype(kind)} {list(shape)}")
        if name != "columns" and not ((array >= 0) & (array <= MOST)).all():
            raise ValueError(f"the array {name} holds NaN, a negative number, or one beyond {MOST:g}")
    if not ((arrays["multipliers"] > 0) & (arrays["multipliers"] <= MOST_TIMES)).all():
        raise ValueError(f"the multipliers are {arrays['multipliers'].tolist()}; expected numbers above 0, to {MOST_TIMES:g}")


@register
@dataclass(frozen=True)
class Adaptive(Method):
    """``published``  the authors' constants
    ``warm``       the share of the coordinates that the warm-up may read
    ``arm``, ``sum``  the multipliers on variances; None: fitted on calibration vectors, 1 without
    ``arm_share``  the share of the allowed failures that the argmax's multiplier may use up; the paper's is 1
    """

    published: bool = False
    warm: float = 0.1
    arm: float | None = None
    sum: float | None = None
    arm_share: float = 1.0
    aim: tuple[float, ...] | None = None
    """``(eps, delta)`` as asked for."""

    name: ClassVar[str] = "adaptive"
    filled_in: ClassVar[frozenset[str]] = frozenset({"aim"})

    def __post_init__(self) -> None:
        flag(self.published, "published")
        for name in ("warm", "arm_share"):
            real(getattr(self, name), name, 1e-9, 1.0)
        for name in ("arm", "sum"):
            if getattr(self, name) is not None:
                real(getattr(self, name), name, 1e-12, MOST_TIMES)
        if self.aim is not None:  # from a file it comes as a list
            object.__setattr__(self, "aim", tuple(real(value, "aim", 1e-300, 1e300) for value in self.aim))

    def aimed(self, wanted: Promise) -> Adaptive:
        """Remembers what was asked for, since none of it is promised."""
        eps, delta = wanted[:2]
        if not (0 < delta < 1 and math.isfinite(eps)):
            raise OptionError(f"method='adaptive' takes 0 < delta < 1 and a finite eps; got delta={delta:g}, eps={eps:g}")
        return replace(self, aim=(float(eps), float(delta)))

    def promise(self, wanted: Promise, plan: Plan) -> Promise:
        return Promise(math.inf, 1.0)

    def plan(self, making: Making) -> Plan:
        layer, calibration = making.layer, making.calibration
        if layer.link.lowered()[0] != "affine":
            raise OptionError(f"method='adaptive' knows temperatures only; the link is {layer.link}: use method='full'")
        if not all(np.abs(rows).max() < 1e18 for _, rows in pieces(layer)):
            raise OptionError("method='adaptive' squares the weights in float32, and these are too large: use method='full'")
        arrays, given = arrays_of(layer), (self.arm, self.sum)
        found = tuple(1.0 if value is None else value for value in given)
        if calibration is not None and None in given:
            reader = Reader(parts_for(layer, arrays | {"multipliers": np.ones(2)}), self.rules())
            found = fit_multipliers(reader, calibration, given, self.arm_share)
        kept = arrays | {"multipliers": np.array(found)}
        return Plan(arrays=kept)

    def reader(self, engine: EngineParts) -> Reader:
        return Reader(engine, self.rules())

    def rules(self) -> Rules:
        eps, delta = (math.log(1.3), 0.1) if self.aim is None else (self.aim[0], self.aim[1])
        return Rules(math.expm1(eps), delta, self.warm, published=self.published)


class Reader:
    """A reader: the search's top-k, its normaliser, draws from the distribution of its estimates."""

    def __init__(self, parts: EngineParts, rules: Rules) -> None:
        assert parts.plan.arrays is not None
        self.rows, self.seed, self.arrays, self.layer = parts.rows, parts.running.seed, dict(parts.plan.arrays), parts.layer
        self._threads, self.path = parts.running.threads, f"adaptive/{parts.rows.isa}"
        check_arrays(self.arrays, self.layer)
        arm, total = (float(value) for value in self.arrays["multipliers"])
        self.rules = rules._replace(arm=arm, sum=total)
        self.isa = parts.rows.isa
        _, self.slope, self.shift, *_ = self.layer.link.lowered()
        weight = self.layer.weight if isinstance(self.layer.weight, np.ndarray) else np.asarray(self.layer.weight)
        self._native = native.adaptive(
            weight, self.layer.bias, (self.arrays["columns"], self.arrays["column_weight"]),
            (self.slope, self.shift), "portable" if self.isa == native.REFERENCE else self.isa,
        )  # fmt: skip

    @property
    def _count(self) -> int:
        return native.threads(self._threads)

    def search(
        self, hidden: Doubles, k: int, mask: Mask, threads: int, rules: Rules | None = None, estimates: bool = False
    ) -> FoundByCoordinates:
        rules = self.rules if rules is None else rules
        hidden = np.ascontiguousarray(hidden)
        with np.errstate(over="ignore"):
            widths = float(self.arrays["spread"][0]) * np.abs(hidden).sum(axis=1) ** 2 * self.slope**2
            large = bool((widths * float(hidden.shape[1]) ** 2 > MOST).any())
        if large:
            raise NonFiniteError("hidden vectors are too long for sums in float32; scale them, or use method='full'")
        given = (normaliser_eps(rules), rules.delta, rules.warm, rules.arm, rules.sum, rules.published, widths)
        found: FoundByCoordinates = self._native.search(hidden, keys_of(hidden), mask, self.seed, given, k, threads, estimates)
        return found

    def ask(self, hidden: Doubles, question: Question) -> Answer:
        if question.verb == "given":
            return self._given(hidden, question)
        filters = question.filters
        if question.temperature != 1:
            return self.rows.ask(hidden, question)
        k = max(question.k, 1) if filters is None else min(max(filters.top_k, 1), self.layer.vocab)
        found = self.search(hidden, k, question.mask, self._count, estimates=filters is not None)
        flags = np.zeros(len(hidden), bool)
        whole = Answer(rows=found.rows, bytes=found.bytes, full=flags, path=self.path)
        if filters is not None:
            return self._drawn(whole, found, question.mask, filters)
        whole = whole._replace(lse=found.lse, error=np.full(len(hidden), np.inf))
        if question.verb == "normaliser":
            return whole
        ids, lse = found.ids, found.lse
        logits = np.where(ids < 0, -np.inf, (found.values - self.shift) / self.slope)
        log_probs = np.where(ids < 0, -np.inf, found.values - np.where(lse == -np.inf, 0.0, lse)[:, None])
        return whole._replace(ids=ids, logits=logits, log_probs=log_probs, proved=flags)

    def _given(self, hidden: Doubles, question: Question) -> Answer:
        """Exact logits, and the estimate of the normaliser."""
        found = self.rows.ask(hidden, Question("given", ids=question.ids))
        if question.eps == math.inf:
            return found
        norm = self.ask(hidden, Question("normaliser", mask=question.mask))
        log_probs = np.asarray(self.layer.link(found.logits)) - norm.lse[:, None]
        rows, read = norm.rows + found.rows, norm.bytes + found.bytes
        return norm._replace(logits=found.logits, log_probs=log_probs, rows=rows, bytes=read)

    def _drawn(self, whole: Answer, found: FoundByCoordinates, mask: Mask, filters: Filters) -> Answer:
        """From the estimated distribution; the paper has no sampling."""
        batch, vocab = len(found.rows), self.layer.vocab
        ids = np.broadcast_to(np.arange(vocab), (batch, vocab))
        if mask is not None:
            ids = np.where(np.broadcast_to(mask, (batch, vocab)) != 0, ids, -1)
        # An estimate may be no number where a mapped file was damaged: such a class is drawn last.
        estimates = np.nan_to_num(found.estimates.astype(np.float64), nan=-1e30, posinf=1e30, neginf=-1e30)
        exponents = np.where(ids < 0, -np.inf, estimates)
        won, logits, score, *_ = sample_of(ListedClasses(np.ascontiguousarray(ids), exponents, exponents), filters)
        return whole._replace(ids=won, logits=logits, score=score, proved=np.zeros(won.shape, bool))

def keys_of(hidden: Doubles) -> NDArray[np.uint64]:
    """A number for each query's content, which names its noise: the same query has the same answer."""
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in np.ascontiguousarray(hidden)]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def failed(values: Doubles, ids: Ids, lse: Doubles, exact: Doubles, eps: float | None) -> NDArray[np.bool_]:
    """Rows whose argmax is wrong or, with ``eps``, whose probability is off by more than that, relatively: the paper's rule."""
    wrong = ids[:, 0] != exact.argmax(axis=1)
    if eps is None:
        return np.asarray(wrong)
    true = exact.max(axis=1) - lse_of(exact)
    with np.errstate(over="ignore"):
        return np.asarray(wrong | (np.abs(np.expm1(values[:, 0] - lse - true)) > eps))


def parts_for(layer: Layer, arrays: Mapping[str, Array]) -> EngineParts:
    """An engine's parts before there is an engine."""
    plan = Plan(arrays=arrays)
    norms = native.row_norms(layer.weight)
    return EngineParts(layer, plan, norms, Promise(math.inf, 1.0), PLAIN, rows_of(layer, plan, norms, native.isa(), About()))


def fit_multipliers(
    reader: Reader, calibration: Doubles, given: tuple[float | None, float | None], share: float = 1.0
) -> tuple[float, float]:
    """``(arm, sum)`` on the first 400 calibration vectors: for the argmax first, then for the whole search given that.

    The argmax's multiplier is fitted on a race of its own: a warm-up that any variance satisfies ends where a race starts.
    ``share`` of the failures that are allowed is what the argmax may use up; the paper's 1 often leaves none for the rest.
    """
    hidden, rules, layer = np.ascontiguousarray(calibration[:TUNED_ON]), reader.rules, reader.layer
    every = np.ascontiguousarray(np.broadcast_to(np.arange(layer.vocab), (len(hidden), layer.vocab)))
    exact = reader.slope * reader.rows.ask(hidden, Question("given", ids=every)).logits + reader.shift
    allowed = math.floor(rules.delta * len(hidden))

    def failing(rows: Ids, arm: float, total: float | None, eps: float | None) -> NDArray[np.bool_]:
        how = rules._replace(arm=arm, sum=NOTHING, warm=1.0) if total is None else rules._replace(arm=arm, sum=total)
        found = reader.search(hidden[rows], 1, None, native.threads(None), how)
        return failed(found.values, found.ids, found.lse, exact[rows], eps)

    arm, total, count = *given, len(hidden)
    if arm is None:
        arm = fitted(lambda f, rows: failing(rows, f, None, None), count, math.floor(share * allowed))
    race = arm
    return arm, fitted(lambda f, rows: failing(rows, race, f, rules.eps), count, allowed) if total is None else total


def fitted(failing: Callable[[float, Ids], NDArray[np.bool_]], count: int, allowed: int) -> float:
    """The smallest multiplier from 10^-6 to 1 with at most ``allowed`` failures of ``count``; 1 where even that has more.

    ``failing(f, rows)`` says which of the vectors fail. What fails at one multiplier fails at smaller ones, and what does not
    is right at larger ones, so only the vectors between the two ends are asked again.
    """
    low, high, sure = LOWEST, 0.0, 0
    rows = np.flatnonzero(failing(10.0**low, np.arange(count)))
    if len(rows) <= allowed:
        return float(10.0**low)
    while high - low > STEP:
        middle = (low + high) / 2
        wrong = failing(10.0**middle, rows)
        if sure + int(wrong.sum()) <= allowed:
            high, sure, rows = middle, sure + int(wrong.sum()), rows[~wrong]
        else:
            low, rows = middle, rows[wrong]
    return float(10.0**high)
