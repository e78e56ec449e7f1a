"""What moves and filters the distribution of the next token, with llama.cpp's names, defaults and order.

::

    x = link(z) + logit_bias                                          all tokens
    x = x / repeat_penalty if x > 0 else x * repeat_penalty           tokens of the last 64 generated ones
    x = x - count * frequency_penalty - presence_penalty
    dry -> grammar -> top_n_sigma -> top_k -> typical_p -> top_p -> min_p -> xtc -> x / temperature -> draw

Temperature 0: the likeliest after penalties, dry and grammar. What ``chain.py`` has is said there.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headlong.dtypes import Doubles, Ids
from headlong.errors import IdError, OptionError, UnsupportedError, named
from headlong.number_checks import real, whole
from headlong.question import Sieve

RANDOM = 2**32 - 1
"""``LLAMA_DEFAULT_SEED``."""

WHOLE = {"top_k": (-(2**31), 2**31), "dry_allowed_length": (0, 2**31), "dry_penalty_last_n": (-1, 2**31)}
REAL = {
    **dict.fromkeys(("temperature", "dry_multiplier", "dry_base", "dynatemp_range", "dynatemp_exponent"), (0.0, 1e6)),
    **dict.fromkeys(("mirostat_tau", "mirostat_eta"), (0.0, 1e6)),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), (-1e6, 1e6)),
    **dict.fromkeys(("top_p", "typical_p", "xtc_threshold"), (0.0, math.inf)),
    "min_p": (-math.inf, 1.0),
    "repeat_penalty": (1e-6, 1e6),
    "top_n_sigma": (-math.inf, math.inf),
    "xtc_probability": (0.0, 1.0),
}
"""What each may be, both ends included."""


@dataclass(frozen=True)
class Settings:
    """As ``llama_cpp.Llama`` takes them, and llama.cpp's own options; ``top_k`` 0 or less, ``top_p`` 1 or more, ``min_p`` 0 or
    less, ``typical_p`` 1 or more, ``top_n_sigma`` 0 or less, ``xtc_threshold`` above 0.5: off.

    ``dry_penalty_last_n``  tokens of prompt and text in which repeats are looked for; -1: as many as the model was trained on
    ``seed``  None, -1 and 2^32 - 1: drawn anew for each call; another below zero counts from 2^32, as llama.cpp's 32 bits do
    """

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
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    top_n_sigma: float = -1.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat_mode: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1

    def __post_init__(self) -> None:
        whole(self.last_n, "last_n_tokens_size", 0, 2**31)
        for name, ends in WHOLE.items():
            whole(getattr(self, name), name, *ends)
        for name, (low, high) in REAL.items():
            real(getattr(self, name), name, low, high)
        if self.mirostat_mode == 1:
            raise UnsupportedError("mirostat_mode is 1, which guesses at a tail; it is not supported: pass 2, which reads it")
        whole(self.mirostat_mode, "mirostat_mode", 0, 2)
        breakers = tuple(stop_words(self.dry_sequence_breakers, "dry_sequence_breakers"))
        object.__setattr__(self, "dry_sequence_breakers", breakers)
        object.__setattr__(self, "logit_bias", biases(self.logit_bias))
        if self.seed is not None:
            whole(self.seed, "seed", -(2**31), 2**63 - 1, "or None or -1 for a random one")

    @property
    def noise_seed(self) -> int:
        """The seed of a call's draws."""
        if self.seed is None or self.seed in (-1, RANDOM):
            return secrets.randbits(63)
        return int(self.seed) % 2**32 if self.seed < 0 else int(self.seed)

    @property
    def sieve(self) -> Sieve:
        """The filters, which go by temperature 1."""
        return Sieve(1.0, max(self.top_k, 0), min(max(self.top_p, 1e-12), 1.0), max(self.min_p, 0.0))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def moving(self) -> bool:
        """Whether the ``x`` of any token may be another than the model's."""
        return self.penalised or self.dry or bool(self.logit_bias)

    @property
    def dry(self) -> bool:
        """Whether repeats are penalised."""
        return self.dry_multiplier > 0 and self.dry_base >= 1 and self.dry_penalty_last_n != 0

    @property
    def xtc(self) -> bool:
        return self.xtc_probability > 0 and self.xtc_threshold <= 0.5

    @property
    def chained(self) -> bool:
        """Whether samplers beyond top_k, top_p, min_p and temperature are asked for."""
        far = self.top_n_sigma > 0 or self.typical_p < 1 or self.dynatemp_range > 0
        return not self.greedy and (far or self.xtc or self.mirostat_mode == 2)

    @property
    def penalised(self) -> bool:
        return (self.repeat_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)


def biases(given: Any) -> dict[int, float]:
    """``{token: bias}``, -inf for a token that may not come; a token may be text, as the names in JSON are; None: none."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise OptionError(f"logit_bias is {named(given)}; expected a dictionary of token ids and numbers: dict(pairs)")
    found = {}
    for token, bias in given.items():
        try:
            key, value = int(token), float(bias)
            right = (isinstance(token, str) or key == token) and value < math.inf  # NaN is not
        except (TypeError, ValueError, OverflowError):
            right = False
        if not right:
            raise OptionError(
                f"logit_bias has {token!r}: {bias!r}; expected a token's id (tokenize() has those of a word) and a number, or "
                "-inf for a token that may not come"
            )
        found[key] = value
    return found


def edited(settings: Settings, generated: Sequence[int], vocab: int) -> Ids:
    """The tokens whose ``x`` is another than the model's, ascending."""
    ids = set(settings.logit_bias)
    if ids and not 0 <= min(ids) <= max(ids) < vocab:
        raise IdError(f"logit_bias names the token {min(ids) if min(ids) < 0 else max(ids)}; expected 0 to {vocab - 1}")
    if settings.penalised and settings.last_n:
        ids.update(generated[-settings.last_n :])
    return np.array(sorted(ids), np.int64)


def moved(settings: Settings, generated: Sequence[int], ids: Ids, exponents: Doubles) -> Doubles:
    """What becomes of the exponents of those tokens."""
    found: Doubles = exponents + np.array([settings.logit_bias.get(int(token), 0.0) for token in ids])
    if not settings.penalised:
        return found
    counts = Counter(generated[-settings.last_n :] if settings.last_n else ())
    count = np.array([counts[int(token)] for token in ids])
    repeated = np.where(found <= 0, found * settings.repeat_penalty, found / settings.repeat_penalty)
    penalty = count * settings.frequency_penalty + (count > 0) * settings.presence_penalty
    return np.asarray(np.where(count > 0, repeated - penalty, found))


def stop_words(stop: Any, name: str = "stop") -> list[str]:
    """A word or several; None: none."""
    words = [stop] if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(words, (list, tuple, set, frozenset)) or not all(isinstance(word, str) for word in words):
        raise OptionError(f"{name} is {stop!r:.80}; expected text, or a list of texts")
    return list(words)
