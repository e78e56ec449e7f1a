"""Draws with their log-probabilities, each row with a seed, a position, a temperature and filters of its own.

::

    draw        = argmax over kept classes of f(z) / T + gumbel(seed, position, draw, class)
    log_probs   = f(z) / T - lse_T              lse_T = log sum over all classes of exp(f(z) / T)
    kept        = log of the mass that the filters keep = log sum over kept classes of exp(f(z) / T) - lse_T

so ``log_probs - kept`` are log-probabilities of what was drawn from. Filters are top_k, then top_p, then min_p, as in
transformers, at the temperature T; where the temperature comes last, as in llama.cpp, at temperature 1. Of equal logits at the
k-th place the smaller ids are kept (``ties="ids"``), or all of them (``ties="all"``).
An engine over a native reader answers all of it in one question (``csrc/reader/reader.cpp``). Here is the long way, for other
kinds, for ties and for the support: rows without filters are drawn by the engine's own search for the largest key, others from
the classes that are kept.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from headlong.answers import Answer, Cost, Sample, Support
from headlong.arrays import answer_as, as_numpy, form_of
from headlong.dtypes import UNIT, Doubles, Ids
from headlong.engines.arguments import aimed, checked_hidden, part_of
from headlong.engines.class_masks import check_some_left, class_mask, classes_of
from headlong.engines.few_allowed_classes import checked_draws, largest_keys, lse_of
from headlong.engines.kind import Kind
from headlong.engines.sampling_filters import FINEST, FIRST_CANDIDATES, GROWTH, Ranked, decided
from headlong.errors import NonFiniteError, OptionError, ShapeError
from headlong.links import evaluated
from headlong.number_checks import real, whole
from headlong.question import RANGES, Filters, Mask, Question, Sieve

ROOM = 1 - 2.0**-10
"""The share of ``eps`` that a normaliser has: the rest is for sums of what is kept."""
TIES = ("ids", "all")
ADVICE = {"temperature": "for the likeliest class, topk(k=1)"} | dict.fromkeys(("top_k", "top_p", "min_p"), "None keeps all")


class Rules(NamedTuple):
    """What every row is drawn by, ``[batch]`` each; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 mean off. And for all rows: ``n``
    draws, the number of the first class, whether filters go by temperature 1, whether of equal logits at the k-th place all
    are kept, and whether the classes that are kept are asked for."""

    temperature: list[float]
    top_k: list[int]
    top_p: list[float]
    min_p: list[float]
    seed: list[int]
    position: list[int]
    n: int = 1
    class0: int = 0
    last: bool = False
    all_ties: bool = False
    support: bool = False

    def sieve(self, row: int) -> Sieve:
        found = Sieve(self.temperature[row], self.top_k[row], self.top_p[row], self.min_p[row], self.all_ties)
        return found._replace(temperature=1.0) if self.last and not found.keeps_all else found

    def filters(self, row: int) -> Filters:
        """For rows that count up from ``row``."""
        return Filters._make([self.n, *(part[row] for part in self[:6]), self.class0, self.last])

    def arrays(self) -> Filters:
        """For rows each with a rule of its own."""
        kinds = (np.float64, np.int64, np.float64, np.float64, np.uint64, np.uint64)
        each = (np.array(part, kind) for part, kind in zip(self[:6], kinds, strict=True))
        return Filters._make([self.n, *each, self.class0, self.last])


def rules_of(batch: int, vocab: int, seed: Any, position: Any, filters: dict[str, Any], **of_all: Any) -> Rules:
    """One number, or one for each row, of everything; a fresh seed and positions 0, 1, ... where there is none. ``of_all``
    rows: the fields of :class:`Rules` that have no row."""
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    each: dict[str, Any] = {}
    for name, given in filters.items():
        check = whole if name == "top_k" else real
        each[name] = [off[name]] * batch if given is None and name in off else _each(given, batch, name, check)
    each["top_k"] = [k if k < vocab else 0 for k in each["top_k"]]  # to keep all is no filter
    each["seed"] = _each(secrets.randbits(64) if seed is None else seed, batch, "seed", whole)
    each["position"] = list(range(batch)) if position is None else _each(position, batch, "position", whole)
    return Rules(**each, **of_all)


def is_each(given: Any) -> bool:
    """Whether it is one for each row."""
    return isinstance(given, (list, tuple)) or getattr(given, "ndim", 0) > 0


def count_of(hidden: Any) -> int:
    """How many rows there are; what is no array is refused where it is read."""
    shape = getattr(hidden, "shape", None)
    return len(hidden) if isinstance(hidden, (list, tuple)) or (isinstance(shape, tuple) and shape) else 0


def first_of(position: Any, batch: int) -> Any:
    """The position of the first row, where those of the others count up from it; None where they do not."""
    places = _numbers(position, "position")
    if not isinstance(places, list):
        return places if batch == 1 and not hasattr(position, "shape") else None
    # in Python's integers: those of an array would wrap around
    counts = len(places) == batch and all(type(place) is int and place == places[0] + row for row, place in enumerate(places))
    return places[0] if counts and batch else None


def _each(given: Any, batch: int, name: str, check: Any) -> list[Any]:
    values = _numbers(given, name)
    if not isinstance(values, list):
        return [check(values, name, *RANGES[name], ADVICE.get(name, ""))] * batch
    if len(values) != batch or any(isinstance(value, list) for value in values):
        inner = [len(value) for value in values[:1] if isinstance(value, list)]
        raise ShapeError(f"{name} has shape {[len(values), *inner]}; expected one number, or {batch}, one per row")
    return [check(value, name, *RANGES[name], ADVICE.get(name, "")) for value in values]


def _numbers(given: Any, name: str) -> Any:
    """Python's own numbers, one or a list of them: whole numbers stay whole, where one array of all would be float64."""
    if isinstance(given, (list, tuple)):
        return [_numbers(value, name) for value in given]
    return as_numpy(given, name).tolist() if hasattr(given, "shape") else given


def check_ties(ties: Any) -> bool:
    """Whether all of equal logits are kept."""
    if ties not in TIES:
        raise OptionError(f"ties is {ties!r}; choose from {', '.join(TIES)}")
    return bool(ties == "all")


def sample(engine: Kind, hidden: Any, rules: Rules, eps: float | None, allowed: Any, exclude: Any) -> Sample:
    """:meth:`headlong.Engine.sample`, of which this is the long way."""
    form, vocab = form_of(hidden), engine.layer.vocab
    rows = checked_hidden(hidden, engine.layer.dim, vocab=vocab)
    mask = class_mask(allowed, exclude, len(rows), vocab)
    check_some_left(mask)
    aim = aimed(eps, engine.promise, form)
    engine.agree(("sample", rows, *rules.arrays(), aim, rules.all_ties, rules.support))
    if not rules.all_ties and not rules.support and engine.draws_whole and not (rules.last and math.isfinite(aim)):
        a = engine.ask(rows, Question("draw", eps=aim, filters=rules.arrays(), mask=mask))
        whole = Sample(checked_draws(a.ids), a.logits, a.score, a.proved, a.cost)
        if math.isfinite(aim):
            whole = replace(whole, log_probs=a.log_probs, kept=a.kept, error=a.error)
        return answer_as(whole, form)
    return answer_as(_drawn(engine, rows, rules, mask, aim), form)


def _drawn(engine: Kind, rows: Doubles, rules: Rules, mask: Mask, aim: float) -> Sample:
    """What kinds without a question of their own for draws answer."""
    whole_answer = rules.support or math.isfinite(aim) or rules.all_ties or rules.last
    found = _Draws(engine, rows, rules, mask, aim)
    each = range(len(rows))
    sifted = [row for row in each if whole_answer and not rules.sieve(row).keeps_all]
    found.draw_plainly([row for row in each if row not in set(sifted)])
    if math.isfinite(aim):
        found.normalise()
    if sifted:
        found.draw_from_kept(sifted)
    answer = Sample(checked_draws(found.ids), found.logits, found.score, found.proved, found.cost())
    if math.isfinite(aim):
        steps = np.array(rules.temperature)[:, None]
        log_probs = engine.exponents(found.logits) / steps - found.lse[:, None]
        answer = replace(answer, log_probs=log_probs, kept=found.log_kept(), error=found.error)
    if rules.support:
        every = [found.classes(row) if part is None else np.sort(part) for row, part in enumerate(found.kept)]
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in every])])
        answer = replace(answer, support=Support(np.concatenate([*every, np.empty(0, np.int64)]), offsets.astype(np.int64)))
    return answer


def from_kept(engine: Kind, hidden: Doubles, mask: Mask, filters: Filters, eps: float = math.inf) -> Answer:
    """Draws by one rule, rows at consecutive positions, from the classes that its filters keep: for kinds whose own search for
    the largest key knows no filters. ``eps``  of the normaliser that is asked for with the best classes, where one is needed
    """
    count = len(hidden)
    positions = [(filters.row0 + row) % 2**64 for row in range(count)]
    each = ([value] * count for value in filters[1:6])
    rules = Rules._make([*each, positions, filters.n, filters.class0, filters.last, False, False])
    engine.agree(("kept", hidden, mask, filters))
    found = _Draws(engine, hidden, rules, mask, math.inf)
    found.draw_from_kept(list(range(count)), eps)
    whole = Answer(ids=found.ids, logits=found.logits, score=found.score, proved=found.proved)
    return whole.at(found.cost())


def runs(rows: list[int], rules: Rules) -> list[list[int]]:
    """Rows that share filters and a seed, at consecutive positions: what one call of the engine draws."""
    found: list[list[int]] = []
    for row in rows:
        last = found[-1][-1] if found else row
        follows = bool(found) and rules.position[row] == (rules.position[last] + 1) % 2**64
        if follows and rules.sieve(row) == rules.sieve(last) and rules.seed[row] == rules.seed[last]:
            found[-1].append(row)
        else:
            found.append([row])
    return found


class _Draws:
    """The answer while it is made, in float64."""

    def __init__(self, engine: Kind, rows: Doubles, rules: Rules, mask: Mask, aim: float) -> None:
        self.engine, self.rows, self.rules, self.mask, self.aim = engine, rows, rules, mask, aim
        shape = len(rows), rules.n
        self.ids, self.proved = np.full(shape, -1, np.int64), np.ones(shape, bool)
        self.logits, self.score = np.full(shape, -math.inf), np.full(shape, -math.inf)
        self.kept: list[Ids | None] = [None] * len(rows)
        self.mass = np.zeros(len(rows))  # its log, of those; others keep all
        self.lse, self.error = np.zeros(len(rows)), np.zeros(len(rows))
        self._spent = np.zeros(len(rows), np.int64), np.zeros(len(rows)), np.zeros(len(rows), bool)
        self._path, link = engine.name, getattr(engine.layer, "link", None)
        self._as_drawn = engine.exponents if link is None else evaluated(link)

    def mask_of(self, rows: list[int]) -> Mask:
        return self.mask if self.mask is None or len(self.mask) == 1 else np.ascontiguousarray(self.mask[rows])

    def classes(self, row: int) -> Ids:
        """All that may be drawn."""
        if self.engine.reads_every_logit:
            return np.asarray(self.engine.every_logit(self.rows[row : row + 1], self.mask_of([row]))[0])
        return np.arange(self.engine.layer.vocab) if self.mask is None else classes_of(self.mask[row % len(self.mask)])

    def count(self, rows: list[int], cost: Cost) -> None:
        for total, part in zip(self._spent, cost[:3], strict=True):
            total[rows] += part
        self._path = cost.path

    def cost(self) -> Cost:
        return Cost(*self._spent, self._path)

    def draw_plainly(self, rows: list[int]) -> None:
        """By the engine's own search."""
        for run in runs(rows, self.rules):
            filters = self.rules.filters(run[0])
            drawn = self.engine.ask(self.rows[run], Question("draw", filters=filters, mask=self.mask_of(run)))
            for name in ("ids", "logits", "score", "proved"):
                getattr(self, name)[run] = getattr(drawn, name)
            self.count(run, drawn.cost)

    def log_kept(self) -> Doubles:
        """The log of the mass that filters keep."""
        own = np.array([part is not None for part in self.kept], bool)
        return np.minimum(0.0, np.where(own, self.mass - np.where(own, self.lse, 0.0), 0.0))

    def draw_from_kept(self, rows: list[int], eps: float = math.inf) -> None:
        """The classes that filters keep, from as many of the best as decide it; then the largest keys among them."""
        top_k, more = self.rules.top_k, int(self.rules.all_ties)
        wanted = {row: top_k[row] + more if top_k[row] else FIRST_CANDIDATES for row in rows}
        while wanted:
            count = min(wanted.values())
            some = [row for row, many in wanted.items() if many == count]
            for row, best in zip(some, self._best(some, min(count, self.engine.layer.vocab), eps), strict=True):
                found = Ranked(best.ids, best.scores, -math.inf if best.complete else float(best.scores[-1]))
                size = decided(_Row(self, row, best.lse), self.rules.sieve(row), found) if len(best.ids) else 0
                if size == 0:
                    raise NonFiniteError("no class has a finite logit; expected an intact layer: open it with verify=True")
                if size is None:
                    wanted[row] *= GROWTH
                    continue
                del wanted[row]
                whole_mass = best.complete or self.rules.top_p[row] >= 1 or self.rules.top_k[row] > 0
                sure = best.proved and (whole_mass or self.engine.promise.delta == 0)
                self._draw(row, best.ids[:size], best.logits[:size], best.scores[:size], sure)

    def _best(self, rows: list[int], k: int, eps: float) -> list[_Best]:
        """The ``k`` best classes of each row, or all of them where a kind finds those sooner."""
        engine, vocab = self.engine, self.engine.layer.vocab
        if engine.reads_every_logit and k > vocab // GROWTH:
            return [self._every(row) for row in rows]
        question = Question("best", k, eps=min(eps, engine.exact_at), mask=self.mask_of(rows))
        top = engine.ask(self.rows[rows], question)
        self.count(rows, top.cost)
        found = []
        columns = top.ids >= 0, top.ids, top.logits, top.lse, top.error, top.proved
        for there, ids, logits, lse, off, proved in zip(*columns, strict=True):
            scores, complete = engine.exponents(logits[there]), k == vocab or not there.all()
            ends = (lse - off, lse + off) if math.isfinite(off) else (-math.inf, math.inf)
            found.append(_Best(ids[there], logits[there], scores, complete, bool(proved), ends))
        return found

    def _every(self, row: int) -> _Best:
        ids, logits = self.engine.every_logit(self.rows[row : row + 1], self.mask_of([row]))
        order = np.argsort(-logits, kind="stable")
        self.count([row], Cost(np.array([len(ids)]), np.zeros(1), np.ones(1, bool), self._path))
        return _Best(ids[order], logits[order], self.engine.exponents(logits[order]), complete=True, proved=True)

    def _draw(self, row: int, ids: Ids, logits: Doubles, scores: Doubles, proved: bool) -> None:
        order, rule = np.argsort(ids), self.rules
        keyed, exponents = self._as_drawn(logits[order]) / rule.temperature[row], scores / rule.temperature[row]
        filters = Filters(rule.n, 1.0, 0, 1.0, 0.0, rule.seed[row], 0, rule.class0)
        won, self.score[row] = largest_keys(keyed, ids[order] + rule.class0, filters, rule.position[row])
        self.ids[row], self.logits[row] = ids[order][won], logits[order][won]
        self.kept[row], self.mass[row] = ids, lse_of(exponents[None])[0]
        self.proved[row] = proved

    def normalise(self) -> None:
        """The normaliser of each row at its temperature, and how far off ``log_probs`` and ``kept`` are."""
        warmth = np.array(self.rules.temperature)
        for one in np.unique(warmth):
            rows = np.flatnonzero(warmth == one).tolist()
            found = self.normaliser(rows, float(one), part_of(self.aim, ROOM))
            self.lse[rows] = found.lse
            terms = self.engine.layer.vocab + 8  # terms of a sum of what is kept
            self.error[rows] = found.error + terms * UNIT * (1 + np.abs(np.where(np.isfinite(found.lse), found.lse, 0.0)))

    def normaliser(self, rows: list[int], temperature: float, eps: float) -> Answer:
        question = Question("normaliser", eps=eps, temperature=temperature, mask=self.mask_of(rows))
        found = self.engine.ask(self.rows[rows], question)
        self.count(rows, found.cost)
        return found


class _Best(NamedTuple):
    """Classes of one row, falling, and ``f(z)`` of each; ``complete``: all there are. ``lse``: both ends at temperature 1."""

    ids: Ids
    logits: Doubles
    scores: Doubles
    complete: bool
    proved: bool
    lse: tuple[float, float] = (-math.inf, math.inf)


class _Row:
    """One row as a :class:`~headlong.engines.sampling_filters.Normaliser`; ``known``: both ends at temperature 1."""

    def __init__(self, draws: _Draws, row: int, known: tuple[float, float]) -> None:
        self.draws, self.row, self.known = draws, [row], known

    def lse(self, temperature: float, eps: float) -> tuple[float, float]:
        draws, eps = self.draws, max(eps, FINEST)
        if temperature == 1 and self.known[1] - self.known[0] <= 2 * eps:
            return self.known
        found = draws.normaliser(self.row, temperature, eps)
        return float(found.lse[0] - found.error[0]), float(found.lse[0] + found.error[0])
