"""What moves and filters the distribution of the next token, with llama.cpp's names, defaults and order.

::

    x = link(z) + logit_bias                                          all tokens
    x = x / repeat_penalty if x > 0 else x * repeat_penalty           tokens of the last 64 generated ones
    x = x - count * frequency_penalty - presence_penalty
    grammar -> top_k -> top_p -> min_p -> x / temperature -> draw     temperature 0: the likeliest after the penalties
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headlong.dtypes import Doubles, Ids
from headlong.errors import IdError, OptionError
from headlong.number_checks import real, whole


@dataclass(frozen=True)
class Settings:
    """As ``llama_cpp.Llama`` takes them; ``top_k`` 0 or less, ``top_p`` 1 or more, ``min_p`` 0 or less: off."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    last_n: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        whole(self.top_k, "top_k", -(2**31), 2**31)
        whole(self.last_n, "last_n_tokens_size", 0, 2**31)
        real(self.temperature, "temperature", 0.0, 1e6)
        real(self.top_p, "top_p", 0.0, math.inf)
        real(self.min_p, "min_p", -math.inf, 1.0)
        real(self.repeat_penalty, "repeat_penalty", 1e-6, 1e6)
        real(self.frequency_penalty, "frequency_penalty", -1e6, 1e6)
        real(self.presence_penalty, "presence_penalty", -1e6, 1e6)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def moving(self) -> bool:
        """Whether the ``x`` of any token may be another than the model's."""
        return self.penalised or bool(self.logit_bias)

    @property
    def penalised(self) -> bool:
        return (self.repeat_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)


def edited(settings: Settings, generated: Sequence[int], vocab: int) -> Ids:
    """The tokens whose ``x`` is another than the model's, ascending."""
    ids = {int(token) for token in settings.logit_bias}
    if ids and not 0 <= min(ids) <= max(ids) < vocab:
        raise IdError(f"logit_bias names the token {min(ids) if min(ids) < 0 else max(ids)}; expected 0 to {vocab - 1}")
    if settings.penalised and settings.last_n:
        ids.update(generated[-settings.last_n :])
    return np.array(sorted(ids), np.int64)


def moved(settings: Settings, generated: Sequence[int], ids: Ids, exponents: Doubles) -> Doubles:
    """What becomes of the exponents of those tokens."""
    bias = {int(token): float(value) for token, value in settings.logit_bias.items()}
    if any(math.isnan(value) or value == math.inf for value in bias.values()):
        raise OptionError(f"logit_bias is {bias}; expected numbers, or -inf for tokens that may not come")
    found: Doubles = exponents + np.array([bias.get(int(token), 0.0) for token in ids])
    if not settings.penalised:
        return found
    counts = Counter(generated[-settings.last_n :] if settings.last_n else ())
    count = np.array([counts[int(token)] for token in ids])
    repeated = np.where(found <= 0, found * settings.repeat_penalty, found / settings.repeat_penalty)
    penalty = count * settings.frequency_penalty + (count > 0) * settings.presence_penalty
    return np.asarray(np.where(count > 0, repeated - penalty, found))
