"""Tokens of several sequences at once: one ``llama_decode`` and one question to the head for each step of all of them.

What a sequence holds in llama.cpp's memory stays there between calls: of the next prompt only what differs is decoded. Where
another text takes a sequence in the middle of one, what that holds is put away, and put back when it goes on. A step is one
thread's.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from headlong import Layer
from headlong.answers import Cost
from headlong.dtypes import Doubles
from headlong.engines.edited_row import Noise
from headlong.errors import IdError, OptionError
from headlong.integrations.llama_cpp.body import Body, Singles
from headlong.integrations.llama_cpp.chain import Mirostat, Repeats
from headlong.integrations.llama_cpp.chained import ChainedRow
from headlong.integrations.llama_cpp.grammar import Grammar
from headlong.integrations.llama_cpp.head import NOTHING as NOTHING_READ
from headlong.integrations.llama_cpp.head import Head
from headlong.integrations.llama_cpp.picking import Row
from headlong.integrations.llama_cpp.settings import Settings
from headlong.layers.gguf_file import EMBEDDING, GgufFile

SEQUENCES = 256
"""At most, of one model; the draws of its sequences have positions of their own."""


class Token(NamedTuple):
    """``log_prob`` within ``error``, and the likeliest tokens beside it, where they were asked for; what its step took.

    ``body``, ``head`` in seconds; ``rows`` of the head that were scored exactly, ``bytes`` of it that were read: means over the
    sequences of the step.
    """

    id: int
    log_prob: float | None
    error: float
    ranked: tuple[tuple[int, float], ...]
    body: float
    head: float
    cost: Cost

    @property
    def rows(self) -> float:
        return float(np.mean(self.cost.rows))

    @property
    def bytes(self) -> float:
        return float(np.mean(self.cost.bytes))


class Progress:
    """One text while it is generated; whoever reads its tokens sets ``done``.

    ``number``  the sequence that it is in; ``voice``  whose noise it has: which of the texts of one call it is
    """

    def __init__(
        self, prompt: Sequence[int], number: int, most: int, grammar: Grammar | None, voice: int | None = None
    ) -> None:
        self.prompt, self.number, self.most, self.grammar = list(prompt), number, most, grammar
        self.voice = number if voice is None else voice
        self.repeats: Repeats | None = None
        """Penalties of DRY, where they are asked for."""
        self.generated: list[int] = []
        self.done = False
        self.put_away: Any = None
        """What its sequence held when another text took it."""

    def take(self, token: int) -> None:
        """The next token."""
        self.generated.append(token)
        if self.grammar is not None:
            self.grammar.take(token)
        self.done = len(self.generated) >= self.most


class Embedding:
    """Rows of the input embedding as llama.cpp's first layer takes them: those of a tied head that is written out, else each
    token's is written out once."""

    def __init__(self, file: GgufFile, head: Layer, scale: float) -> None:
        same = file.head("lm_head.weight") == EMBEDDING and head.weight.dtype == np.float32 and scale == 1
        self._file, self._scale = file, np.float32(scale)
        self._rows = np.asarray(head.weight) if same else np.empty((head.vocab, head.dim), np.float32)  # as far as written
        self._written: set[int] | None = None if same else set()
        self.nbytes = 0
        """Bytes of the rows that were asked for and are not the head's."""

    def __call__(self, tokens: Sequence[int]) -> Singles:
        if self._written is not None and not self._written.issuperset(tokens):
            ids = sorted(set(tokens) - self._written)
            self._rows[ids] = self._file.rows(EMBEDDING, np.array(ids)) * self._scale
            self._written.update(ids)
            self.nbytes += len(ids) * self._rows[0].nbytes
        only = tokens[0]
        rows: Singles = self._rows[only : only + 1] if len(tokens) == 1 else self._rows[tokens]
        return rows


class Decoder:
    """A body, its embedding and its head."""

    def __init__(self, body: Body, embedding: Embedding, head: Head, sequences: int) -> None:
        self.body, self._embedding, self.head = body, embedding, head
        self.held: list[list[int]] = [[] for _ in range(sequences)]
        self._owners: list[Callable[[], Progress | None]] = [_nobody] * sequences
        self.lock: AbstractContextManager[Any] = body.lock
        """Held by who asks for more than one thing in a row."""
        self.reproducible = False
        """Whether each text is decoded from its beginning and by itself: what llama.cpp rounds depends on what is beside it."""

    def forget(self) -> None:
        """Empties the memory of every sequence; a text that goes on is decoded anew."""
        with self.body.lock:
            for number, held in enumerate(self.held):
                self.body.keep(number, 0)
                held.clear()
                self._owners[number] = _nobody

    def keep(self, number: int, count: int) -> None:
        """Forgets all but the first ``count`` tokens of a sequence, or all, where its memory cannot forget a part."""
        if count < len(self.held[number]):
            del self.held[number][count if self.body.keep(number, count) else 0 :]

    def copy(self, source: int, target: int) -> None:
        """Another sequence holds what ``source`` does."""
        self.body.copy(source, target)
        self.held[target][:] = self.held[source]

    def room(self, prompt: Sequence[int], least: int = 1) -> int:
        """How many tokens can follow the prompt; OptionError where they are fewer than ``least``."""
        if not prompt:
            raise OptionError("the prompt has no tokens; expected text, messages or at least one token")
        if min(prompt) < 0 or max(prompt) >= self.head.vocab:
            raise IdError(f"the prompt has a token outside 0 to {self.head.vocab - 1}")
        if len(prompt) + least > self.body.positions:
            raise OptionError(
                f"Requested tokens ({len(prompt):,}) exceed context window of {self.body.positions}; pass a larger n_ctx"
            )
        return self.body.positions - len(prompt)

    def read(self, tokens: Sequence[int], number: int = 0) -> Iterator[tuple[Singles, list[int]]]:
        """The hidden vectors of a text in a sequence, a batch at a time, and the tokens that follow each; the next batch
        writes over them."""
        with self.at_work():
            self.leave(number)
            self.keep(number, 0)
            for part in parts([(token, place, number) for place, token in enumerate(tokens)], self.body.largest_batch):
                yield self.decoded(part), list(tokens[part[0][1] + 1 : part[-1][1] + 2])

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Nobody else decodes. After an error, or Ctrl-C, nobody knows what the sequences hold."""
        with self.body.lock:
            try:
                yield
            except BaseException:
                self.forget()
                raise

    def told(self, tokens: Sequence[int], count: int, number: int = 0) -> list[Token]:
        """The tokens of a text, each but the first with its log-probability and the ``count`` likeliest in its place."""
        found = [Token(tokens[0], None, 0.0, (), 0.0, 0.0, NOTHING_READ)]
        for hidden, after in self.read(tokens, number):
            with self.body.team:
                about = self.ranked(hidden[: len(after)], after, count)
            found += [Token(token, *one, 0.0, 0.0, self.head.cost) for token, one in zip(after, about, strict=True)]
        return found

    def log_probs(self, hidden: Singles, after: Sequence[int]) -> tuple[Doubles, Doubles]:
        """Log-probabilities of the tokens that follow, and how far each can be off."""
        with self.body.team:
            values, error = self.head.log_probs(hidden[: len(after)], np.array(after, np.int64)[:, None])
        return values[:, 0], error

    def memory(self) -> dict[str, int]:
        """Bytes of the embedding's rows that were written out."""
        return {"embedding, rows in use": self._embedding.nbytes}

    def run(
        self, rows: Sequence[Progress], settings: Settings, logprobs: int | None = None
    ) -> Iterator[list[tuple[Progress, Token]]]:
        """The next token of each sequence that is not done, until all are."""
        pick, team, active = self.picker(rows, settings), self.body.team, [row for row in rows if not row.done]
        try:
            while active:
                with self.at_work():
                    start = time.perf_counter()
                    hidden = self.last_hidden(active)
                    asked = time.perf_counter()
                    with team:
                        ids = pick(active, hidden)
                        ranked = self.ranked(hidden, ids, logprobs)
                    took = asked - start, time.perf_counter() - asked, self.head.cost
                for row, token in zip(active, ids, strict=True):
                    row.take(token)
                yield [(row, Token(token, *about, *took)) for row, token, about in zip(active, ids, ranked, strict=True)]
                active = [row for row in active if not row.done]
        finally:
            for row in rows:  # where the caller stops before the end: nothing of it need be kept
                row.done = True

    def leave(self, number: int) -> None:
        """Puts away what the sequence holds, if that is a text that goes on."""
        owner = self._owners[number]()
        if owner is not None and not owner.done:
            owner.put_away = self.body.saved(number)
        self._owners[number] = _nobody

    def _missing(self, row: Progress) -> list[tuple[int, int, int]]:
        """The tokens of a text that its sequence does not hold yet, the last one among them."""
        number, held = row.number, self.held[row.number]
        if self._owners[number]() is row:
            return [(row.generated[-1], len(held), number)]
        self.leave(number)
        tokens, state, row.put_away = [*row.prompt, *row.generated], row.put_away, None
        if state is not None:
            held[:] = tokens[:-1] if self.body.load(number, state) else []
        else:
            self.keep(number, 0 if self.reproducible else same(held, tokens[:-1]))
        self._owners[number] = weakref.ref(row)
        return [(tokens[at], at, number) for at in range(len(held), len(tokens))]

    def last_hidden(self, rows: Sequence[Progress]) -> Singles:
        """The hidden vector of each text's last token."""
        if self.reproducible and len(rows) > 1:
            return np.concatenate([self.last_hidden([row]).copy() for row in rows])
        places = [place for row in rows for place in self._missing(row)]
        if len(places) == len(rows) <= self.body.largest_batch:
            return self.decoded(places)
        hidden = np.empty((len(rows), self.body.dim), np.float32)
        last = {row.number: index for index, row in enumerate(rows)}
        for part in parts(places, self.body.largest_batch):
            for vector, (_, _, number) in zip(self.decoded(part), part, strict=True):
                hidden[last[number]] = vector
        return hidden

    def decoded(self, places: Sequence[tuple[int, int, int]]) -> Singles:
        tokens, positions, sequences = (list(column) for column in zip(*places, strict=True))
        found = self.body.decode(self._embedding(tokens), positions, sequences)
        for token, number in zip(tokens, sequences, strict=True):
            self.held[number].append(token)
        return found

    def picker(self, rows: Sequence[Progress], settings: Settings) -> Callable[[list[Progress], Singles], list[int]]:
        """Finds the next tokens of sequences: by one question for all of them where they ask the same, else one for each."""
        head, seed, sieve = self.head, settings.noise_seed, settings.sieve
        if not (settings.moving or settings.chained or any(row.grammar is not None for row in rows)):
            if settings.greedy:
                return lambda active, hidden: [int(token) for token in head.likeliest(hidden)]
            drawn = {**sieve._asdict(), "temperature": settings.temperature, "top_k": sieve.top_k or None}
            del drawn["all_ties"]
            return lambda active, hidden: [int(token) for token in head.draw(hidden, seed, _places(active), **drawn)]
        surprises = {row.voice: Mirostat(settings.mirostat_tau, settings.mirostat_eta) for row in rows}

        def each(active: list[Progress], hidden: Singles) -> list[int]:
            found = []
            for at, row in enumerate(active):
                repeats = None if row.repeats is None else row.repeats([*row.prompt, *row.generated])
                about = head, hidden[at : at + 1], settings, row.generated, row.grammar, repeats
                mirostat = surprises[row.voice] if settings.mirostat_mode else None
                one = ChainedRow(*about, mirostat=mirostat) if settings.chained else Row(*about)
                found.append(one.pick(Noise(seed, _place(row), settings.temperature)))
                head.cost = one.cost or head.cost
            return found

        return each

    def ranked(self, hidden: Singles, ids: list[int], count: int | None) -> list[tuple[float | None, float, Any]]:
        """The log-probability of each row's token in the model's own distribution, and the ``count`` likeliest."""
        if count is None:
            return [(None, 0.0, ())] * len(ids)
        chosen = np.array(ids, np.int64)[:, None]
        if count:
            chosen = np.concatenate([chosen, self.head.best(hidden, count)], axis=1)
        log_probs, error = self.head.log_probs(hidden, chosen)
        return [
            (float(values[0]), float(off), tuple(zip(map(int, names[1:]), map(float, values[1:]), strict=True)))
            for names, values, off in zip(chosen, log_probs, error, strict=True)
        ]


def _place(row: Progress) -> int:
    """The position of a draw: each sequence and each of its tokens has noise of its own."""
    return len(row.generated) * SEQUENCES + row.voice


def _places(active: Sequence[Progress]) -> Any:
    return np.array([_place(row) for row in active]) if len(active) > 1 else _place(active[0])


def _nobody() -> None:
    """The owner of a sequence that no text is in the middle of."""


def same(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many of the same tokens both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def parts(places: list[tuple[int, int, int]], size: int) -> Iterator[list[tuple[int, int, int]]]:
    return (places[start : start + size] for start in range(0, len(places), size))
