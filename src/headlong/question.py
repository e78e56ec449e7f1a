"""What can be asked of hidden vectors: one record for every verb, and what its numbers may be.

::

    best        the k largest logits, and the normaliser within eps      given       logits of ids, and the normaliser
    normaliser  log sum_i exp(f(z_i))                                    draw        argmax of f(z) / T + gumbel, by filters
    functional  a sum over the distribution: see ``headlong.engines.functionals``

A reader answers a :class:`Question` about ``hidden [batch, dim]`` with a :class:`headlong.answers.Answer`.
``csrc/bind/reader.cpp`` reads questions by the order of their fields.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import Ids

Verb = Literal["best", "given", "normaliser", "draw", "functional"]
Mask = NDArray[np.uint8] | None
"""``[1 or batch, vocab]``: 1 where a class may be answered."""

FLOAT32_ROOM = 1 - 2.0**-10
"""A thousandth of ``eps`` is for rounding an answer to float32: enough for normalisers up to ``2^13 eps``."""
MOST_DRAWS = 2**24
"""The most draws for one row in one call: they come as arrays."""
COLDEST = 1e-6
"""Lower temperatures are the argmax, which needs no noise."""
RANGES: dict[str, tuple[Any, Any]] = {
    "eps": (1e-300, math.inf),
    "n": (1, MOST_DRAWS),
    "temperature": (COLDEST, 1e6),
    "top_k": (1, 2**62),
    "top_p": (5e-324, 1.0),
    "min_p": (0.0, 1.0),
    "seed": (0, 2**64 - 1),
    "position": (0, 2**64 - 1),
    "class0": (0, 2**40),
}
"""What a number may be, both ends included."""


class Filters(NamedTuple):
    """How samples are drawn: ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 mean off; rows count up from ``row0``, noise of classes
    from ``class0``. ``last``: filters go by temperature 1, and what they keep is drawn at ``temperature``. A native reader also
    takes an array ``[batch]`` of each from ``temperature`` to ``row0``."""

    n: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    row0: int
    class0: int = 0
    last: bool = False

    @property
    def sieve(self) -> Sieve:
        return Sieve(self.temperature, self.top_k, self.top_p, self.min_p)


class Sieve(NamedTuple):
    """``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 mean off; ``all_ties``: of equal scores at the k-th place all are kept."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    all_ties: bool = False

    @property
    def keeps_all(self) -> bool:
        return self.top_k == 0 and self.top_p >= 1 and self.min_p <= 0


class Question(NamedTuple):
    """``k`` of the best, ``ids [batch, m]`` of those that are given, ``filters`` of draws.

    ``temperature``  of a normaliser: that of ``f(z) / temperature``
    ``eps``  how far the normaliser may be off in nats; inf: it is not asked for, None: what the reader promises
    """

    verb: Verb
    k: int = 0
    ids: Ids | None = None
    eps: float | None = math.inf
    temperature: float = 1.0
    filters: Filters | None = None
    mask: Mask = None


class About(NamedTuple):
    """What a native reader says where a question does not: its promise (bets are lost with probability ``delta`` at most, by
    rows that ``seed`` draws), whether estimates without a promise are told, threads (0: those at hand), its name, the link."""

    eps: float = math.inf
    delta: float = 0.0
    seed: int = 0
    estimates: bool = False
    threads: int = 0
    path: str = ""
    link: Any = None
