"""An engine that learns from its own queries: it keeps some of them, compiles a better plan beside, and goes on with that.

::

    before      queries are answered by the plan that was compiled without vectors, and copied
    beside      when there are some, a thread of low priority compiles the plan that these vectors choose
    then        it takes the place of the first between two calls
    again       when there are some times as many, and so on until there are enough
    drift       queries that read twice as much as those that the plan was made from: new ones are kept, and all begins again

What was asked for stays: ``eps`` and ``delta`` are as they were, and vectors choose only what is read. Which rows a normaliser
draws does change with the plan, and so may the last digits within ``eps``: an answer is the same bytes for the same plan only.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from headlong.engines.base import Engine
from headlong.engines.contract import Changeable
from headlong.engines.watched_verbs import WatchedVerbs
from headlong.layers.matrix import Layer
from headlong.native import Doubles, Floats
from headlong.previews.expected_reads import Call, Expected, Kinds, by_kind, held_out, watched
from headlong.previews.kept_queries import Queries
from headlong.promise import Promise

WATCHED, MOST = 64, 8
"""Watched calls that are judged together, and how many drifts are followed."""
ONE_IN = 8
"""Plain calls of which one is watched; others all are. What they read is added up together: with cold caches a sum costs a call
some ten microseconds."""
NICENESS = 5
"""Of the thread that compiles, where threads have one of their own: a third of a processor's time beside one that is busy. Not
more than that: it holds the interpreter's lock at times, and all others wait for it while busy processes keep it waiting."""

Again = Callable[[Doubles], Engine]
"""The engine that some thousand queries choose."""
Verb = TypeVar("Verb", bound=Callable[..., Any])


def always_searching(engine: Engine) -> Engine:
    """The engine without a trial of blocks that vectors chose: passes in their place would hide a drift."""
    plan = engine.plan
    if plan.blocks is None or math.isinf(plan.blocks.trial):
        return engine
    searching = plan._replace(blocks=plan.blocks._replace(trial=math.inf))
    return engine._by(searching, engine.threads, engine.reason)  # noqa: SLF001  # the same engine by another plan


class OwnLock:
    """A lock that a forked child has anew: one that another thread held at the fork would be held there for ever."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def own(self) -> threading.Lock:
        """For a ``with``: where a method of Python's took it, a signal could come before anybody saw to its release."""
        return self._locks.setdefault(os.getpid(), threading.Lock())


def passing(verb: Verb) -> Verb:
    """The verb of the engine of now."""

    @functools.wraps(verb)
    def asked(self: Adapting, *rest: Any, **options: Any) -> Any:
        return verb(self._now, *rest, **options)

    return asked  # type: ignore[return-value]


class Adapting(WatchedVerbs, Changeable):
    """The verbs of :class:`headlong.engines.base.Engine`. Made by ``headlong.compile(layer, adapt=True)``.

    ``now``       the engine that answers at present
    ``adapted``   how many times another took its place
    ``trouble``   why no better plan could be compiled, or None
    """

    def __init__(self, engine: Engine, again: Again, like: Floats | None = None) -> None:
        """``like``: vectors like those that the engine's plan was made from; None: it was made without."""
        self._now, self._again = engine if like is None else always_searching(engine), again
        self._queries: Queries | None = Queries(engine.layer.dim) if like is None else None
        self._thread: threading.Thread | None = None
        self._judge: threading.Thread | None = None
        self._starting = OwnLock()
        self._direct = None
        self._watched: list[Call] = []
        self._expected = None if like is None else Expected(like)
        self._learned = 0
        self.adapted = 0
        self.trouble: str | None = None
        self._told = False

    at_temperature = passing(Engine.at_temperature)
    save = passing(Engine.save)
    kept = passing(Engine.kept)
    check = passing(Engine.check)
    every_class = passing(Engine.every_class)

    @property
    def now(self) -> Engine:
        return self._now

    @property
    def layer(self) -> Layer:
        return self._now.layer

    @property
    def name(self) -> str:
        return self._now.name

    @property
    def options(self) -> dict[str, Any]:
        return self._now.options

    @property
    def promise(self) -> Promise:
        return self._now.promise

    @property
    def plan(self) -> Any:
        return self._now.plan

    @property
    def method(self) -> Any:
        return self._now.method

    @property
    def threads(self) -> int | None:
        return self._now.threads

    @property
    def reason(self) -> str:
        return f"{self._now.reason}; {self._state()}"

    def wait(self, seconds: float | None = None) -> Engine:
        """Waits for a plan that is being compiled, for at most ``seconds``; returns the engine that answers then."""
        thread = self._thread
        if thread is not None and thread.is_alive():  # it may not have been started yet
            thread.join(seconds)
        return self._now

    def _state(self) -> str:
        if self.trouble is not None:
            return f"adapts no more: {self.trouble}"
        thread, queries = self._thread, self._queries
        if thread is not None and thread.is_alive():
            return "compiling a plan for the queries that came"
        if queries is None:
            return "adapted to the queries that came" if self.adapted else "watches for a drift of the queries"
        again = "adapted to the queries that came, and adapts again" if self.adapted else "adapts"
        return f"{again} after {queries.wanted - queries.count:,} more queries"

    def _learn(self, verb: str, hidden: Any, engine: Engine, found: Any, options: dict[str, Any]) -> None:
        """One call more: its queries are kept while some are wanted; afterwards what they cost is watched, of one in some."""
        queries = self._queries
        if queries is not None:
            self._direct = None
        elif self._direct is None and engine is self._now:
            direct = engine._direct  # noqa: SLF001  # its native calls, but for those that are watched
            self._direct = None if direct is None else direct.but_for_one_in(ONE_IN)
        if self.trouble is not None:
            self._tell(self.trouble)
        elif queries is not None:
            queries.take(hidden)
            if queries.enough and not self._busy():
                self._start(queries)
        elif engine is self._now and self._learned < MOST:
            call = watched(verb, len(hidden), options, found.cost.bytes)
            if call is not None:
                self._watch(call, engine)

    def _tell(self, trouble: str) -> None:
        """Once, to the caller: it is answered as before, but by the plan that was there."""
        self._queries = None
        if not self._told:
            self._told = True
            warnings.warn(f"this engine adapts no more: {trouble}", RuntimeWarning, stacklevel=5)

    def _busy(self) -> bool:
        return self.trouble is not None or (self._thread is not None and self._thread.is_alive())

    def _watch(self, call: Call, engine: Engine) -> None:
        """Compares what the queries of some calls read with what is expected. Several threads' may mix: it is a mean."""
        self._watched.append(call)
        expected = self._expected
        if len(self._watched) < WATCHED or expected is None:
            return
        kinds, self._watched = by_kind(self._watched), []
        if not expected.missing(kinds):
            self._judged(kinds, expected)
        elif self._judge is None or not self._judge.is_alive():
            self._judge = threading.Thread(
                target=self._measure, args=(kinds, expected, engine), name="headlong measures", daemon=True
            )
            self._judge.start()

    def _judged(self, kinds: Kinds, expected: Expected) -> None:
        if expected.drifted(kinds) and expected is self._expected and self._queries is None:
            self._queries, self._direct = Queries(self.layer.dim), None

    def _measure(self, kinds: Kinds, expected: Expected, engine: Engine) -> None:
        """In a thread of its own, and with no others: they are there for those who ask."""
        _yielding()
        try:
            alone = engine._alone()  # noqa: SLF001  # bytes do not depend on threads
        except MemoryError:
            return  # the next calls that are judged try again
        for kind in expected.missing(kinds):
            expected.measure(kind, alone)
        self._judged(kinds, expected)

    def _start(self, queries: Queries) -> None:
        with self._starting.own():  # a fork leaves the thread behind: the child starts its own
            if self._busy() or queries is not self._queries:
                return
            np.ma.isMaskedArray(queries)  # loads it now: a child that is forked while the thread does waits for it for ever
            self._thread = threading.Thread(target=self._compile, args=(queries,), name="headlong adapts", daemon=True)
            self._thread.start()

    def _compile(self, queries: Queries) -> None:
        """In a thread of its own. Whatever fails leaves the engine that there is; the next call and ``reason`` say so."""
        _yielding()
        while queries.enough:  # others may have come while the plan was compiled
            before, count = self._now, queries.count
            vectors, like = held_out(queries.vectors())
            try:
                engine = always_searching(self._again(vectors))
                before.kept()  # refuses a layer that was written to: its new plan would not be that of this engine
            except Exception as error:  # nobody waits for this thread: whatever it was is told by the next call
                self.trouble = f"{type(error).__name__}: {error}"
                return
            self._now = engine
            self.adapted += 1
            queries.planned(count)
            self._watched, self._expected = [], Expected(like)
        if not queries.wanted:
            self._learned += 1
            self._queries = None

    def _unchanged(self) -> Any:
        return self._now._unchanged()  # noqa: SLF001  # the same verb of the engine of now

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has the plan of now and begins to learn anew where this one still learns."""
        expected = self._expected
        return Adapting, (self._now, self._again, None if self._queries is not None or expected is None else expected.vectors)

    def __repr__(self) -> str:
        return f"Adapting({self._now!r}, {self._state()})"


def _yielding() -> None:
    """Of the thread that calls: others come first."""
    if sys.platform == "linux":  # elsewhere a niceness is the whole process's
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
