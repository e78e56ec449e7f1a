"""The questions of an engine that another one answers, and the calls that something is learned from: all, or one in so many.

The others are one native call, as they are of the engine within. Of those that are not plain all are learned from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from headlong.answers import Entropy, LogProb, Lse, Sample, TopK
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

    def log_prob(
        self, hidden: Any, ids: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None
    ) -> LogProb:
        """:meth:`Engine.log_prob` of the engine of now."""
        self._now.check_weights()
        direct = self._direct
        if direct is not None and allowed is None and exclude is None:
            found = direct.log_prob(hidden, ids, eps)
            if found is not None:
                return found
        return self._asked(Engine.log_prob, hidden, {"ids": ids, "eps": eps, "allowed": allowed, "exclude": exclude})

    def lse(self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> Lse:
        """:meth:`Engine.lse` of the engine of now."""
        self._now.check_weights()
        direct = self._direct
        if direct is not None and allowed is None and exclude is None:
            found = direct.lse(hidden, eps)
            if found is not None:
                return found
        return self._asked(Engine.lse, hidden, {"eps": eps, "allowed": allowed, "exclude": exclude})

    def entropy(self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> Entropy:
        """:meth:`Engine.entropy` of the engine of now."""
        return self._now.entropy(hidden, eps=eps, allowed=allowed, exclude=exclude)

    def ranked(self, hidden: Any, **options: Any) -> Iterator[tuple[Any, Any]]:
        """:meth:`Engine.ranked` of the engine of now, which stays with it."""
        return self._now.ranked(hidden, **options)

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
        class0: int = 0,
        allowed: Any = None,
        exclude: Any = None,
    ) -> Sample:
        """:meth:`Engine.sample` of the engine of now."""
        filters = {"n": n, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
        about = {"position": position, "eps": eps, "ties": ties, "support": support, "class0": class0}
        return self._asked(Engine.sample, hidden, filters | about | {"allowed": allowed, "exclude": exclude})

    def _asked(self, verb: Callable[..., Answer], hidden: Any, options: dict[str, Any]) -> Answer:
        """The answer of the engine of now, from which something is learned."""
        now = self._now
        found = verb(now, hidden, **options)
        self._learn(verb.__name__, hidden, now, found, options)
        return found
