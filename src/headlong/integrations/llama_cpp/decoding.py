"""Tokens of several sequences at once: one ``llama_decode`` and one question to the head for each step of all of them.

What a sequence holds in llama.cpp's memory stays there between calls: of the next prompt only what differs is decoded.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from headlong import Layer
from headlong.errors import IdError, OptionError
from headlong.integrations.llama_cpp.body import Body, Singles
from headlong.integrations.llama_cpp.grammar import Grammar
from headlong.integrations.llama_cpp.head import Doubles, Head
from headlong.integrations.llama_cpp.picking import Listed, Row, draw_listed, top
from headlong.integrations.llama_cpp.settings import Settings
from headlong.layers.gguf_file import EMBEDDING, GgufFile


class Token(NamedTuple):
    """``log_prob`` within ``error``, and the likeliest tokens beside it, where they were asked for; what its step took.

    ``body``, ``head`` in seconds; ``rows`` of the head that were scored exactly, ``bytes`` of it that were read.
    """

    id: int
    log_prob: float | None
    error: float
    ranked: tuple[tuple[int, float], ...]
    body: float
    head: float
    rows: float
    bytes: float


class Progress:
    """One sequence while it is generated; whoever reads its tokens sets ``done``."""

    def __init__(self, prompt: Sequence[int], number: int, most: int, grammar: Grammar | None) -> None:
        self.prompt, self.number, self.most, self.grammar = list(prompt), number, most, grammar
        self.generated: list[int] = []
        self.done = False


class Embedding:
    """Rows of the input embedding as llama.cpp's first layer takes them: those of a tied head that is written out, else each
    token's is written out once."""

    def __init__(self, file: GgufFile, head: Layer, scale: float) -> None:
        tied = file.head("lm_head.weight") == EMBEDDING and head.weight.dtype == np.float32
        self._file, self._scale = file, np.float32(scale)
        self._rows = np.asarray(head.weight) if tied else np.empty((head.vocab, head.dim), np.float32)  # as far as written
        self._new = None if tied else np.ones(head.vocab, bool)

    @property
    def nbytes(self) -> int:
        """Of the rows that were asked for and are not the head's."""
        return 0 if self._new is None else int((~self._new).sum()) * self._rows.shape[1] * self._rows.itemsize

    def __call__(self, tokens: Any) -> Singles:
        if self._new is not None and (new := self._new[tokens]).any():
            ids = np.unique(np.asarray(tokens)[new])
            self._rows[ids] = self._file.rows(EMBEDDING, ids)
            self._new[ids] = False
        rows: Singles = self._rows[tokens]
        return rows if self._scale == 1 else rows * self._scale


class Decoder:
    """A body, its embedding and its head."""

    def __init__(self, body: Body, embedding: Embedding, head: Head, sequences: int) -> None:
        self._body, self._embedding, self._head = body, embedding, head
        self._held: list[list[int]] = [[] for _ in range(sequences)]

    def forget(self) -> None:
        """Empties the memory of every sequence."""
        for number, held in enumerate(self._held):
            self._body.keep(number, 0)
            held.clear()

    def room(self, prompt: Sequence[int]) -> int:
        """How many tokens can follow the prompt."""
        if not prompt:
            raise OptionError("the prompt has no tokens; expected text, messages or at least one token")
        if min(prompt) < 0 or max(prompt) >= self._head.vocab:
            raise IdError(f"the prompt has a token outside 0 to {self._head.vocab - 1}")
        if len(prompt) >= self._body.positions:
            raise OptionError(
                f"Requested tokens ({len(prompt)}) exceed context window of {self._body.positions}; pass a larger n_ctx"
            )
        return self._body.positions - len(prompt)

    def read(self, tokens: Sequence[int]) -> Iterator[tuple[Singles, list[int]]]:
        """The hidden vectors of a text in the first sequence, a batch at a time, and the tokens that follow each."""
        self._body.keep(0, 0)
        self._held[0] = list(tokens)
        for part in _parts([(token, place, 0) for place, token in enumerate(tokens)], self._body.largest_batch):
            yield self._decoded(part), list(tokens[part[0][1] + 1 : part[-1][1] + 2])

    def log_probs(self, hidden: Singles, after: Sequence[int]) -> tuple[Doubles, Doubles]:
        """Of the tokens that follow, and how far each can be off."""
        with self._body.team:
            values, error = self._head.log_probs(hidden[: len(after)], np.array(after, np.int64)[:, None])
        return values[:, 0], error

    def memory(self) -> dict[str, int]:
        """Bytes of the embedding's rows that were written out."""
        return {"embedding, rows in use": self._embedding.nbytes}

    def run(
        self, rows: Sequence[Progress], settings: Settings, logprobs: int | None = None
    ) -> Iterator[list[tuple[Progress, Token]]]:
        """The next token of each sequence that is not done, until all are."""
        seed = secrets.randbits(63) if settings.seed is None else settings.seed
        start = time.perf_counter()
        hidden = self._prompted(rows)
        step = 0
        while active := [row for row in rows if not row.done]:
            body = time.perf_counter() - start
            start = time.perf_counter()
            with self._body.team:
                ids = self._next(active, hidden, settings, seed, step)
                ranked = self._ranked(hidden, ids, logprobs)
            head = time.perf_counter() - start
            for row, token in zip(active, ids, strict=True):
                row.generated.append(token)
                if row.grammar is not None:
                    row.grammar.take(token)
                row.done = len(row.generated) >= row.most
            took = body, head, self._head.rows, self._head.bytes
            yield [(row, Token(token, *about, *took)) for row, token, about in zip(active, ids, ranked, strict=True)]
            active = [row for row in active if not row.done]
            start = time.perf_counter()
            if active:
                hidden = self._decoded([self._appended(row) for row in active])
            step += 1

    def _appended(self, row: Progress) -> tuple[int, int, int]:
        held = self._held[row.number]
        held.append(row.generated[-1])
        return held[-1], len(held) - 1, row.number

    def _prompted(self, rows: Sequence[Progress]) -> Singles:
        """The hidden vector of each prompt's last token."""
        places: list[tuple[int, int, int]] = []
        for row in rows:
            held = self._held[row.number]
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(held, row.prompt[:-1], strict=False)))
            if same < len(held) and not self._body.keep(row.number, same):
                same = 0
            self._held[row.number] = list(row.prompt)
            places += [(row.prompt[at], at, row.number) for at in range(same, len(row.prompt))]
        hidden = np.empty((len(rows), self._body.dim), np.float32)
        last = {row.number: index for index, row in enumerate(rows)}
        for part in _parts(places, self._body.largest_batch):
            for vector, (_, _, number) in zip(self._decoded(part), part, strict=True):
                hidden[last[number]] = vector
        return hidden

    def _decoded(self, places: Sequence[tuple[int, int, int]]) -> Singles:
        tokens, positions, sequences = (list(column) for column in zip(*places, strict=True))
        try:
            return self._body.decode(self._embedding(tokens), positions, sequences)
        except BaseException:  # Ctrl-C, too: what the sequences hold now is not known
            self.forget()
            raise

    def _next(self, rows: list[Progress], hidden: Singles, settings: Settings, seed: int, step: int) -> list[int]:
        """One question for all rows where they ask the same, else one for each."""
        edits = settings.penalised or settings.logit_bias or any(row.grammar is not None for row in rows)
        if not edits and settings.greedy:
            return [int(token) for token in self._head.likeliest(hidden)]
        numbers = [np.random.default_rng([seed, row.number, step]) for row in rows]
        if not edits and settings.top_k > 0:
            ids, exponents = self._head.best(hidden, settings.top_k)
            listed = [top(Listed(*pair), settings.top_k) for pair in zip(ids, exponents, strict=True)]
            return [draw_listed(one, settings, rng) for one, rng in zip(listed, numbers, strict=True)]
        if not edits and (settings.temperature == 1 or (settings.top_p >= 1 and settings.min_p <= 0)):
            return [token for run in _runs(rows, hidden) for token in self._drawn(*run, settings, seed, step)]
        found = (Row(self._head, hidden[at : at + 1], settings, row.generated, row.grammar) for at, row in enumerate(rows))
        return [one.pick(rng) for one, rng in zip(found, numbers, strict=True)]

    def _drawn(self, first: int, hidden: Singles, settings: Settings, seed: int, step: int) -> list[int]:
        """Neighbouring sequences, drawn by the engine with all filters: at temperature 1 their order is of no account."""
        filters = {} if settings.top_p >= 1 else {"top_p": max(settings.top_p, 1e-12)}
        filters |= {"min_p": settings.min_p} if settings.min_p > 0 else {}
        number = int(np.random.default_rng([seed, step]).integers(1 << 63))
        ids, _ = self._head.draw(hidden, number, first, temperature=settings.temperature, **filters)
        return [int(token) for token in ids]

    def _ranked(self, hidden: Singles, ids: list[int], count: int | None) -> list[tuple[float | None, float, Any]]:
        """The log-probability of each row's token in the model's own distribution, and the ``count`` likeliest."""
        if count is None:
            return [(None, 0.0, ())] * len(ids)
        chosen = np.array(ids, np.int64)[:, None]
        if count:
            chosen = np.concatenate([chosen, self._head.best(hidden, count)[0]], axis=1)
        log_probs, error = self._head.log_probs(hidden, chosen)
        return [
            (float(values[0]), float(off), tuple(zip(map(int, names[1:]), map(float, values[1:]), strict=True)))
            for names, values, off in zip(chosen, log_probs, error, strict=True)
        ]


def _parts(places: list[tuple[int, int, int]], size: int) -> Iterator[list[tuple[int, int, int]]]:
    return (places[start : start + size] for start in range(0, len(places), size))


def _runs(rows: list[Progress], hidden: Singles) -> Iterator[tuple[int, Singles]]:
    """Neighbouring numbers: the noise of a sequence is that of its number, whichever others are still there."""
    start = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at].number != rows[at - 1].number + 1:
            yield rows[start].number, hidden[start:at]
            start = at
