"""The questions of an engine that another one answers, and the calls that something is learned from: all, or one in so many.

The others are one native call, as they are of the engine within. Of those that are not plain all are learned from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from headlong.answers import LogProb, Lse, Sample, TopK
from headlong.engines.base import Engine
from headlong.engines.direct_call import Direct

Answer = TypeVar("Answer")


class WatchedVerbs(ABC):
    """``topk``, ``log_prob``, ``lse`` and ``sample`` of the engine that answers at present.

    ``_now``     that engine
    ``_direct``  its native calls but for some, which go the long way and are learned from; None: all do
    """

    _now: Engine
    _direct: Direct | None

    @abstractmethod
    def _learn(self, verb: str, hidden: Any, engine: Engine, found: Any, options: dict[str, Any]) -> None:
        """``engine.verb(hidden, **options)`` was ``found``."""

    def topk(self, hidden: Any, k: int = 10, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> TopK:
        """:meth:`Engine.topk` of the engine of now."""
        self._now.check_weights()
        direct = self._direct  # which others may replace meanwhile
        if direct is not None and allowed is None and exclude is None:
            found = direct.topk(hidden, k, eps)
            if found is not None:
                return found
        return self._asked(Engine.topk, hidden, {"k": k, "eps": eps, "allowed": allowed, "exclude": exclude})

    def log_prob(self, hidden: Any, ids: Any, *, eps: float | None = None) -> LogProb:
        """:meth:`Engine.log_prob` of the engine of now."""
        self._now.check_weights()
        direct = self._direct
        if direct is not None:
            found = direct.log_prob(hidden, ids, eps)
            if found is not None:
                return found
        return self._asked(Engine.log_prob, hidden, {"ids": ids, "eps": eps})

    def lse(self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> Lse:
        """:meth:`Engine.lse` of the engine of now."""
        self._now.check_weights()
        direct = self._direct
        if direct is not None and allowed is None and exclude is None:
            found = direct.lse(hidden, eps)
            if found is not None:
                return found
        return self._asked(Engine.lse, hidden, {"eps": eps, "allowed": allowed, "exclude": exclude})

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
        self._now.check_weights()
        direct = self._direct
        if direct is not None and allowed is None and exclude is None:
            found = direct.sample(hidden, n, temperature, top_k, top_p, min_p, seed, row0, class0)
            if found is not None:
                return found
        filters = {"n": n, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
        places = {"row0": row0, "class0": class0, "allowed": allowed, "exclude": exclude}
        return self._asked(Engine.sample, hidden, filters | places)

    def _asked(self, verb: Callable[..., Answer], hidden: Any, options: dict[str, Any]) -> Answer:
        """The answer of the engine of now, from which something is learned."""
        now = self._now
        found = verb(now, hidden, **options)
        self._learn(verb.__name__, hidden, now, found, options)
        return found
