"""The next token of one sequence, exactly, from candidates.

::

    drawn from  softmax(x / temperature)  over  {tokens that pass grammar, top_k, top_p, min_p}

Tokens whose ``x`` was moved (penalties, biases) are few and scored exactly: ``engines/edited_row.py``. The filters go by
temperature 1. A grammar is asked about the best tokens alone where a top_k follows it, else about every one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headlong.engines.edited_row import NO_IDS, EditedRow, Noise, exponents
from headlong.engines.sampling_filters import FIRST_CANDIDATES, GROWTH, Ranked, kept_count
from headlong.errors import InputError
from headlong.integrations.llama_cpp.body import Singles
from headlong.integrations.llama_cpp.chain import penalised
from headlong.integrations.llama_cpp.grammar import Grammar
from headlong.integrations.llama_cpp.head import Head
from headlong.integrations.llama_cpp.settings import Settings, edited, moved


class Row(EditedRow):
    """One hidden vector ``[1, dim]``, and what has been moved or ruled out for it."""

    def __init__(
        self, head: Head, hidden: Singles, settings: Settings, generated: list[int], grammar: Grammar | None = None,
        repeats: Mapping[int, float] | None = None,
    ) -> None:  # fmt: skip
        self.settings, self.grammar = settings, grammar
        ids, scores = NO_IDS, np.empty(0)
        if settings.moving:
            penalties = repeats or {}
            ids = np.union1d(edited(settings, generated, head.vocab), np.array([*penalties], np.int64))
            scores = moved(settings, generated, ids, exponents(head.engine, hidden, ids))
            scores = penalised(ids, scores, penalties)
        super().__init__(head.engine, hidden, ids, scores)

    def pick(self, noise: Noise) -> int:
        settings = self.settings
        if settings.greedy:
            return int(self.first(1).ids[0])
        if self.grammar is not None and settings.top_k > 0:
            found = self.first(settings.top_k)
            return noise.won(found.alone(slice(kept_count(found.scores, settings.sieve))))
        self.rule_out()
        return self.draw(settings.sieve, noise)

    def first(self, count: int) -> Ranked:
        """The ``count`` best tokens that the grammar accepts, or all, alone."""
        length = count if self.grammar is None else max(count, FIRST_CANDIDATES)
        while True:
            found = self.best(length)
            if self.grammar is not None:
                accepted = self.grammar.accepts(found.ids)
                found = found._replace(ids=found.ids[accepted], scores=found.scores[accepted])
            if len(found.ids) >= count or np.isneginf(found.least):
                break
            length *= GROWTH
        if not len(found.ids):
            raise InputError("no token is left to come next: the grammar rules out every one that biases leave")
        return found.alone(slice(count))

    def rule_out(self) -> None:
        """Asks the grammar about every token; what it accepts is the whole distribution."""
        if self.grammar is not None:
            self.ban(np.flatnonzero(~self.grammar.accepts(np.arange(self.vocab))))
            self.grammar = None
