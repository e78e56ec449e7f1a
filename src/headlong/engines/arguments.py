"""A call, checked: what every engine does with its arguments before it reads anything.

What came in is brought into one form (float64 vectors, a class mask, sampling filters) or refused with an error that says
what came, what was expected, what to do. What is then read is the engine's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from headlong.answers import Answer, Cost, named_fields
from headlong.arrays import Form, form_of, hidden64, hidden_rows
from headlong.dtypes import Doubles, Ids
from headlong.engines.class_masks import all_left, restricted
from headlong.engines.few_allowed_classes import few_enough
from headlong.errors import NonFiniteError, OptionError, ShapeError
from headlong.native import Mask, widened
from headlong.number_checks import real, whole
from headlong.promise import Promise

Given = TypeVar("Given", bound=Answer)

FLOAT32_MAX = float(np.finfo(np.float32).max)
"""Hidden vectors beyond float32's range are refused: nothing computes them."""
FLOAT32_ROOM = 1 - 2.0**-10
"""A thousandth of ``eps`` is for rounding an answer to float32: enough for normalisers up to ``2^13 eps``."""
MOST_DRAWS = 2**24
"""Of one row in one call: they come as arrays."""
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


class Asked(NamedTuple):
    """One checked call: the form of what came, ``hidden [batch, dim]``, the mask, and whether few classes are left.

    ``listed``  where rows differ in that: how many classes are left of each, if they are few, else -1. How a row is answered
    depends on the row alone: on nothing that pads it, and not on who is asked with it
    """

    form: Form
    hidden: Doubles
    mask: Mask
    few_classes: bool
    listed: Ids | None = None

    def each(self, answer: Callable[[Asked, int], Given], in_order: bool = False) -> Given:
        """``answer(call, first row)`` of rows that are answered alike, put together.

        ``in_order``  rows that are asked together follow one another
        """
        if self.listed is None:
            return answer(self, 0)
        assert self.mask is not None
        order = np.arange(len(self.listed)) if in_order else np.argsort(self.listed, kind="stable")
        groups, parts = np.split(order, np.flatnonzero(np.diff(self.listed[order])) + 1), []
        for rows in groups:
            some = Asked(self.form, self.hidden[rows], np.ascontiguousarray(self.mask[rows]), bool(self.listed[rows[0]] >= 0))
            parts.append(answer(some, int(rows[0])))
        return in_rows(parts, np.argsort(order))


def in_rows(parts: list[Given], order: Ids) -> Given:
    """Answers with the rows of ``parts`` behind one another, then in ``order``."""

    def joined(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], Cost):
            rows, read, dense = (np.concatenate(column)[order] for column in zip(*(cost[:3] for cost in values), strict=True))
            return Cost(rows, read, dense, values[-1].path)
        return None if values[0] is None else np.concatenate(values)[order]

    return type(parts[0])(**{name: joined(name) for name in named_fields(parts[0])})


def checked_hidden(hidden: Any, dim: int, name: str = "hidden", vocab: int | None = None) -> Doubles:
    """``[batch, dim]`` in float64, finite and within float32's range."""
    rows, largest = widened(hidden_rows(hidden, dim, name, vocab))
    if largest <= FLOAT32_MAX:
        return rows
    hidden64(hidden, dim, name)  # says where a number is not finite
    raise NonFiniteError(f"{name} reaches {largest:.3g}, beyond float32's range; rescale the rows")


def asked(hidden: Any, allowed: Any, exclude: Any, dim: int, vocab: int) -> Asked:
    rows = checked_hidden(hidden, dim, vocab=vocab)
    mask, left = restricted(allowed, exclude, len(rows), vocab)
    few, counts = mask is not None and few_enough(left, vocab), None
    if mask is not None and len(mask) > 1:
        counts = np.array([one if few_enough(one, vocab) else -1 for one in all_left(mask)])
    return Asked(form_of(hidden), rows, mask, few, None if counts is None or (counts == counts[0]).all() else counts)


def checked_k(k: Any, vocab: int) -> int:
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or not 1 <= k <= vocab:
        raise ShapeError(f"k is {k!r}; expected a whole number from 1 to the layer's {vocab} classes")
    return int(k)


def checked_eps(eps: Any) -> float:
    """``eps`` above 0, infinity included."""
    return real(eps, "eps", *RANGES["eps"], "log-probabilities are rounded to float64, so 0 cannot be kept")


def checked_n(n: Any) -> int:
    return whole(n, "n", *RANGES["n"], "ask again for more, at other positions or with another seed")


def aimed(eps: Any, promise: Promise, form: Form) -> float:
    """What a normaliser has to be within, so that it is within ``eps`` (None: what is promised) in the caller's precision."""
    wanted = promise.eps if eps is None else checked_eps(eps)
    return part_of(wanted, FLOAT32_ROOM) if form.single else wanted


def told(eps: Any, promise: Promise) -> bool:
    """Whether log-probabilities are asked for: not at ``eps=inf``, given or promised. A method that promises nothing at all has
    estimates, and says those."""
    return promise.delta >= 1 or not math.isinf(promise.eps if eps is None else checked_eps(eps))


def check_told(verb: str, eps: Any, promise: Promise) -> None:
    """OptionError where a verb that is about the normaliser alone is asked without one."""
    if told(eps, promise):
        return
    if eps is None:
        raise OptionError(
            f"{verb} is about log-probabilities, and this engine was compiled without them; pass eps=0.01, say, to this call, "
            "or compile it with log_probs=True"
        )
    raise OptionError(f"eps is inf, and {verb} is about log-probabilities; expected how far they may be off in nats: 0.01, say")


def untold(answer: Given) -> Given:
    """The same without what was not asked for: log-probabilities and normalisers are NaN, their error infinite."""
    named = named_fields(answer)
    for name, value in {"log_probs": math.nan, "lse": math.nan, "error": math.inf}.items():
        given = named[name]
        named[name] = np.full_like(given, value) if isinstance(given, np.ndarray) else given.new_full(given.shape, value)
    return type(answer)(**named)


def part_of(eps: float, share: float) -> float:
    """What of ``eps`` is asked in somebody's name: not less than callers themselves may ask, or a refusal would tell them of a
    number that they never gave."""
    return max(share * eps, float(RANGES["eps"][0]))
