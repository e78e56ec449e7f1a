"""llama.cpp's samplers beyond top_k, top_p, min_p and temperature, over a list that has every token that may pass.

::

    top_n_sigma   x >= max x - n sigma                      sigma: of the x of all tokens that the grammar allows
    typical_p     the least |-log p - H|, until their mass exceeds typical_p             H: the entropy
    xtc           with a probability: of the tokens with p >= threshold the last one alone stays
    dynatemp      T - range + 2 range (H / log of how many are left) ^ exponent
    mirostat 2    -log2 p <= mu; then mu -= eta (-log2 p of what came, among these - tau), from 2 tau on
    dry           x - multiplier base ^ (how long a repeat the token would go on with - allowed_length)

In llama.cpp's order: biases, penalties, dry, grammar, top_n_sigma, top_k, typical_p, top_p, min_p, xtc, temperature. Mirostat
is in the place of all filters and of the temperature, as ``llama_cpp.Llama`` has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import Doubles, Ids
from headlong.integrations.llama_cpp.settings import Settings

LARGEST_LOG, LONGEST_TAIL, LONGEST_BREAKER = 88.7228391, 20, 40
"""The largest log of a float32, which limits a penalty of DRY; the most tokens and bytes of a breaker."""
LEAST_BASE = 1.000001
Places = NDArray[np.int64]


def log_probs(exponents: Doubles) -> Doubles:
    return np.asarray(exponents - np.logaddexp.reduce(exponents))


def entropy(exponents: Doubles) -> float:
    logs = log_probs(exponents)
    return float(-(np.exp(logs) * logs).sum())


def typical(exponents: Doubles, share: float) -> Places:
    """Which places stay, rising."""
    logs = log_probs(exponents)
    order = np.argsort(np.abs(-logs - entropy(exponents)), kind="stable")
    more = np.flatnonzero(np.cumsum(np.exp(logs[order])) > share)
    return np.sort(order[: more[0] + 1] if len(more) else order)


def temperature(exponents: Doubles, settings: Settings) -> float:
    """At which the tokens that are left are drawn."""
    if settings.dynatemp_range <= 0 or len(exponents) < 2:
        return settings.temperature
    low = max(0.0, settings.temperature - settings.dynatemp_range)
    high = settings.temperature + settings.dynatemp_range
    share = min(1.0, max(0.0, entropy(exponents)) / math.log(len(exponents)))
    return float(low + (high - low) * share**settings.dynatemp_exponent)


class Mirostat:
    """What mirostat carries from token to token."""

    def __init__(self, tau: float, eta: float) -> None:
        self.tau, self.eta, self.mu = tau, eta, 2 * tau

    def take(self, log_prob: float) -> None:
        """A token came that had this log-probability among those that were left."""
        self.mu -= self.eta * (-log_prob / math.log(2) - self.tau)


class Breakers:
    """Which tokens hold a breaker, or begin one: ``{token: the rests that may follow}``; no rest: it is there whole."""

    def __init__(self, words: Iterable[tuple[int, bytes]], breakers: Sequence[str], tokenize: Any) -> None:
        self.rests: dict[int, set[tuple[int, ...]]] = {}
        found = [one.encode()[:LONGEST_BREAKER] for one in breakers if one]
        for token, word in words:
            for breaker in found:
                if breaker in word:
                    self.rests.setdefault(token, set()).add(())
                    continue
                for size in range(1, min(len(word), len(breaker) - 1) + 1):
                    if word.endswith(breaker[:size]):
                        rest = tuple(tokenize(breaker[size:]))[:LONGEST_TAIL]
                        self.rests.setdefault(token, set()).add(rest)


class Repeats:
    """DRY: the penalty of each token that would go on with a repeat."""

    def __init__(self, settings: Settings, breakers: Breakers, context: int) -> None:
        last = settings.dry_penalty_last_n
        self._settings, self._breakers = settings, breakers
        self._last = context if last < 0 else min(last, context)

    def __call__(self, history: Sequence[int]) -> dict[int, float]:
        settings, least = self._settings, self._settings.dry_allowed_length
        recent = np.array(history[-self._last :][::-1], np.int64)
        longest = self._limit(recent)
        if len(recent) <= least or longest < least:
            return {}
        lengths: dict[int, int] = {}
        places, length = np.arange(1, len(recent)), 0  # where the last tokens are found again, going back
        while len(places):
            if length >= least:
                lengths |= dict.fromkeys(recent[places - 1].tolist(), length)
            if length == longest:
                break
            places = places[places + length < len(recent)]
            places = places[recent[places + length] == recent[length]]
            length += 1
        most = int(LARGEST_LOG / math.log(settings.dry_base)) if settings.dry_base > LEAST_BASE else 0
        found = {}
        for token, length in lengths.items():
            if () not in self._breakers.rests.get(token, ()):
                power = min(length - least, most) if most else length - least
                found[token] = settings.dry_multiplier * settings.dry_base**power
        return found

    def _limit(self, recent: Ids) -> int:
        """How many of the last tokens come after the last breaker."""
        tokens = recent.tolist()
        for place, token in enumerate(tokens):
            rests = self._breakers.rests.get(token, ())
            ahead = [len(rest) for rest in rests if len(rest) <= place and tokens[place - len(rest) : place] == [*rest[::-1]]]
            if ahead:
                return place - max(ahead)
        return len(tokens)


def penalised(ids: Ids, exponents: Doubles, penalties: Mapping[int, float]) -> Doubles:
    return np.asarray(exponents - np.array([penalties.get(int(token), 0.0) for token in ids]))
