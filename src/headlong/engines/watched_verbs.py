"""The questions of an engine that another one answers, and the calls that something is learned from: all, or one in so many.

Each verb is spelled out with its arguments. ``*rest, **options`` would say it once for all, but the interpreter makes a tuple
and a dictionary of such a call and leaves its own loop to pass them on: with cold caches that costs some ten microseconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from headlong.answers import LogProb, Lse, Sample, TopK
from headlong.engines.base import Engine


class WatchedVerbs(ABC):
    """``topk``, ``log_prob``, ``lse`` and ``sample`` of the engine that answers at present.

    ``_now``   that engine
    ``_left``  the next call that is learned from comes after so many; what learns sets it again. Threads that count at once may
               count one call for two
    """

    _now: Engine
    _left: int

    @abstractmethod
    def _learn(self, verb: str, hidden: Any, engine: Engine, found: Any, options: dict[str, Any]) -> None:
        """``engine.verb(hidden, **options)`` was ``found``."""

    def topk(self, hidden: Any, k: int = 10, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> TopK:
        """:meth:`Engine.topk` of the engine of now."""
        now = self._now
        found = now.topk(hidden, k, eps=eps, allowed=allowed, exclude=exclude)
        self._left -= 1
        if self._left <= 0:
            self._learn("topk", hidden, now, found, {"k": k, "eps": eps, "allowed": allowed, "exclude": exclude})
        return found

    def log_prob(self, hidden: Any, ids: Any, *, eps: float | None = None) -> LogProb:
        """:meth:`Engine.log_prob` of the engine of now."""
        now = self._now
        found = now.log_prob(hidden, ids, eps=eps)
        self._left -= 1
        if self._left <= 0:
            self._learn("log_prob", hidden, now, found, {"ids": ids, "eps": eps})
        return found

    def lse(self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> Lse:
        """:meth:`Engine.lse` of the engine of now."""
        now = self._now
        found = now.lse(hidden, eps=eps, allowed=allowed, exclude=exclude)
        self._left -= 1
        if self._left <= 0:
            self._learn("lse", hidden, now, found, {"eps": eps, "allowed": allowed, "exclude": exclude})
        return found

    def sample(
        self,
        hidden: Any,
        n: int = 1,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        row0: int = 0,
        *,
        class0: int = 0,
        allowed: Any = None,
        exclude: Any = None,
    ) -> Sample:
        """:meth:`Engine.sample` of the engine of now."""
        now = self._now
        found = now.sample(
            hidden, n, temperature, top_k, top_p, min_p, seed, row0, class0=class0, allowed=allowed, exclude=exclude
        )
        self._left -= 1
        if self._left <= 0:
            filters = {"n": n, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
            self._learn("sample", hidden, now, found, {**filters, "allowed": allowed, "exclude": exclude})
        return found
