"""A call, checked: what every engine does with its arguments before it reads anything.

What came in is brought into one form (float64 vectors, a class mask, sampling filters) or refused with an error that says
what came, what was expected, what to do. What is then read is the engine's business.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

import numpy as np

from headlong.answers import View, named_fields
from headlong.arrays import Form, form_of, hidden64, hidden_rows
from headlong.dtypes import Doubles
from headlong.engines.class_masks import class_mask
from headlong.errors import NonFiniteError, OptionError, ShapeError
from headlong.native import widened
from headlong.number_checks import real, whole
from headlong.promise import Promise
from headlong.question import FLOAT32_ROOM, RANGES, Mask

Given = TypeVar("Given", bound=View)

FLOAT32_MAX = float(np.finfo(np.float32).max)
"""Hidden vectors beyond float32's range are refused: nothing computes them."""
class Asked(NamedTuple):
    """One checked call: the form of what came, ``hidden [batch, dim]`` and the mask."""

    form: Form
    hidden: Doubles
    mask: Mask


def checked_hidden(hidden: Any, dim: int, name: str = "hidden", vocab: int | None = None) -> Doubles:
    """``[batch, dim]`` in float64, finite and within float32's range."""
    rows, largest = widened(hidden_rows(hidden, dim, name, vocab))
    if largest <= FLOAT32_MAX:
        return rows
    hidden64(hidden, dim, name)  # says where a number is not finite
    raise NonFiniteError(f"{name} reaches {largest:.3g}, beyond float32's range; rescale the rows")


def asked(hidden: Any, allowed: Any, exclude: Any, dim: int, vocab: int) -> Asked:
    rows = checked_hidden(hidden, dim, vocab=vocab)
    return Asked(form_of(hidden), rows, class_mask(allowed, exclude, len(rows), vocab))


def checked_k(k: Any, vocab: int) -> int:
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or not 1 <= k <= vocab:
        raise ShapeError(f"k is {k!r}; expected a whole number from 1 to the layer's {vocab:,} classes")
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
