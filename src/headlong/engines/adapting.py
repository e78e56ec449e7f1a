"""An engine that learns from its own queries: it keeps some of them, compiles a better plan beside, and goes on with that.

::

    before      queries are answered by the plan that there is, and copied
    beside      when there are some, a thread of low priority compiles the plan that these vectors choose
    then        it takes the place of the first between two calls
    again       when there are some times as many, and so on until there are enough

What was asked for stays: ``eps`` and ``delta`` are as they were, and vectors choose only what is read. Which rows a normaliser
draws does change with the plan, and so may the last digits within ``eps``: an answer is the same bytes for the same plan only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from headlong.dtypes import Doubles
from headlong.engines.base import Engine
from headlong.engines.kept_queries import Queries
from headlong.layers.matrix import Layer
from headlong.promise import Promise

NICENESS = 5
"""The niceness of the thread that compiles, where threads have their own: a third of a processor's time beside a busy one. Not
more than that: it holds the interpreter's lock at times, and all others wait for it while busy processes keep it waiting."""

Again = Callable[[Doubles], Engine]
"""The engine that some thousand queries choose."""
Verb = TypeVar("Verb", bound=Callable[..., Any])


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


def teaching(verb: Verb) -> Verb:
    """The verb of the engine of now, whose queries are kept while some are wanted."""

    @functools.wraps(verb)
    def asked(self: Adapting, hidden: Any, *rest: Any, **options: Any) -> Any:
        found = verb(self._now, hidden, *rest, **options)
        if self._queries is not None:
            self._learn(hidden, self._queries)
        return found

    return asked  # type: ignore[return-value]


class Adapting:
    """The verbs of :class:`headlong.engines.base.Engine`. Made by ``headlong.compile(layer, adapt=True)``.
    A process that ends waits for a plan that is being compiled.

    ``now``       the engine that answers at present
    ``adapted``   how many times another took its place
    ``trouble``   why no better plan could be compiled, or None
    """

    def __init__(self, engine: Engine, again: Again) -> None:
        self._now, self._again = engine, again
        self._queries: Queries | None = Queries(engine.layer.dim)
        self._thread: threading.Thread | None = None
        self._starting = OwnLock()
        self.adapted = 0
        self.trouble: str | None = None

    topk = teaching(Engine.topk)
    log_prob = teaching(Engine.log_prob)
    lse = teaching(Engine.lse)
    sample = teaching(Engine.sample)
    entropy = passing(Engine.entropy)
    expected = passing(Engine.expected)
    ranked = passing(Engine.ranked)
    at_temperature = passing(Engine.at_temperature)
    save = passing(Engine.save)
    kept = passing(Engine.kept)
    check = passing(Engine.check)
    certify = passing(Engine.certify)
    every_class = passing(Engine.every_class)
    exponents = passing(Engine.exponents)
    with_rows = passing(Engine.with_rows)
    without = passing(Engine.without)

    def compact(self, calibration: Any = None) -> Any:
        return self if calibration is None else self._now.compact(calibration)

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
            return "adapted to the queries that came"
        again = "adapted to the queries that came, and adapts again" if self.adapted else "adapts"
        return f"{again} after {queries.wanted - queries.count:,} more queries"

    def _learn(self, hidden: Any, queries: Queries) -> None:
        """One call more. Where no better plan could be compiled, the caller is told once, and answered as before."""
        if self.trouble is not None:
            self._queries = None
            warnings.warn(f"this engine adapts no more: {self.trouble}", RuntimeWarning, stacklevel=3)
            return
        queries.take(hidden)
        if queries.enough and not self._busy():
            self._start(queries)

    def _busy(self) -> bool:
        return self.trouble is not None or (self._thread is not None and self._thread.is_alive())

    def _start(self, queries: Queries) -> None:
        with self._starting.own():  # a fork leaves the thread behind: the child starts its own
            if self._busy() or queries is not self._queries:
                return
            np.ma.isMaskedArray(queries)  # loads it now: a child that is forked while the thread does waits for it for ever
            # Not a daemon: a process that ends waits. A thread that is ended inside a product leaves BLAS waiting for ever.
            self._thread = threading.Thread(target=self._compile, args=(queries,), name="headlong adapts", daemon=False)
            self._thread.start()

    def _compile(self, queries: Queries) -> None:
        """In a thread of its own. Whatever fails leaves the engine that there is; the next call and ``reason`` say so."""
        if sys.platform == "linux":  # others come first; elsewhere a niceness is the whole process's
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while queries.enough:  # others may have come while the plan was compiled
            before, count = self._now, queries.count
            try:
                engine = self._again(queries.vectors())
                before.kept()  # refuses a layer that was written to: its new plan would not be that of this engine
            except Exception as error:  # nobody waits for this thread: whatever it was is told by the next call
                self.trouble = f"{type(error).__name__}: {error}"
                return
            self._now = engine
            self.adapted += 1
            queries.planned(count)
        if not queries.wanted:
            self._queries = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy begins to learn anew where this one still learns; else it is the engine of now."""
        return self._now.__reduce__() if self._queries is None else (Adapting, (self._now, self._again))

    def __repr__(self) -> str:
        return f"Adapting({self._now!r}, {self._state()})"
