"""Texts of several threads at once: each step of llama.cpp is the next token of all of them.

A thread of its own decodes. Who comes while a step runs is in the next one if a sequence is free, else in the order of
arrival. A text gets the free sequence that holds most of its prompt. What it says does not depend on who is there beside it,
but for what llama.cpp rounds otherwise in batches of other sizes.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from headlong.errors import InputError
from headlong.integrations.llama_cpp.body import Singles
from headlong.integrations.llama_cpp.decoding import Decoder, Progress, Token, same
from headlong.integrations.llama_cpp.settings import Settings

Picker = Callable[[list[Progress], Singles], list[int]]


class _Asked:
    """A text that a thread waits for: ``pick`` None: only the tokens of its prompt, as :meth:`Decoder.told` has them."""

    def __init__(
        self, reader: Progress, settings: Settings | None, pick: Picker | None, logprobs: int | None, out: Any
    ) -> None:
        self.reader, self.settings, self.pick, self.logprobs, self.out = reader, settings, pick, logprobs, out
        self.row = Progress(reader.prompt, -1, reader.most, reader.grammar, reader.voice)
        self.row.repeats = reader.repeats
        """Its own, ahead of what the thread has read."""


class Shared(Decoder):
    """A decoder that many threads ask at once; it takes the place of another, which nobody asks any more."""

    def __init__(self, decoder: Decoder) -> None:
        vars(self).update(vars(decoder))
        self.lock = nullcontext()
        self._free = list(range(len(decoder.held)))
        self._waiting: deque[_Asked] = deque()
        self._active: list[_Asked] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="headlong steps", daemon=True)
        self._thread.start()

    def run(
        self, rows: Sequence[Progress], settings: Settings, logprobs: int | None = None
    ) -> Iterator[list[tuple[Progress, Token]]]:
        """As :meth:`Decoder.run`, a token at a time."""
        pick, out = self.picker(rows, settings), queue.SimpleQueue[Any]()
        asked = {id(one.row): one for one in (_Asked(row, settings, pick, logprobs, out) for row in rows if not row.done)}
        for one in asked.values():
            one.reader.grammar = None  # it is taken along where tokens are picked
        self._ask(asked.values())
        try:
            while asked:
                row, token = out.get()
                if isinstance(token, BaseException):
                    raise token
                if id(row) not in asked:  # it was read to its end, and a step ahead was made
                    continue
                one = asked[id(row)]
                one.reader.take(token.id)
                yield [(one.reader, token)]
                if one.reader.done:
                    asked.pop(id(row)).row.done = True
        finally:
            for one in asked.values():
                one.row.done = one.reader.done = True

    def told(self, tokens: Sequence[int], count: int, number: int = 0) -> list[Token]:
        """As :meth:`Decoder.told`, in whichever sequence is free."""
        out = queue.SimpleQueue[Any]()
        self._ask([_Asked(Progress(tokens, -1, 0, None), None, None, count, out)])
        _, found = out.get()
        if isinstance(found, BaseException):
            raise found
        return list(found)

    def close(self) -> None:
        """No more texts are taken; returns when those that were have ended."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _ask(self, some: Any) -> None:
        with self._changed:
            if self._closing:
                raise InputError("the model was closed; make a new Model of its file")
            self._waiting.extend(some)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._waiting or self._active)
                if not self._waiting and not self._active:
                    return
                told = self._admitted()
            self._tell(told)
            self._step()

    def _admitted(self) -> list[_Asked]:
        """Gives free sequences to those that wait; who only wants its prompt told is returned."""
        for one in [one for one in self._active if one.row.done]:
            self._active.remove(one)
            self._free.append(one.row.number)
        told: list[_Asked] = []
        while self._waiting and self._free:
            one = self._waiting.popleft()
            if one.row.done:
                continue
            one.row.number = max(self._free, key=lambda number: same(self.held[number], one.row.prompt))
            self._free.remove(one.row.number)
            (told if one.pick is None else self._active).append(one)
        return told

    def _tell(self, some: list[_Asked]) -> None:
        for one in some:
            try:
                answer: Any = super().told(one.row.prompt, one.logprobs or 0, one.row.number)
            except BaseException as error:  # whoever asked is told
                answer = error
            self._free.append(one.row.number)
            one.out.put((one.row, answer))

    def _step(self) -> None:
        some = [one for one in self._active if not one.row.done]
        if not some:
            return
        try:
            with self.at_work():
                found = self._answers(some)
        except BaseException as error:  # of llama.cpp: nobody's text goes on
            found = [error] * len(some)
        for one, answer in zip(some, found, strict=True):
            if isinstance(answer, BaseException):
                one.row.done = True
            else:
                one.row.take(answer.id)
            one.out.put((one.row, answer))

    def _answers(self, some: list[_Asked]) -> list[Any]:
        """The next token of each, or why there is none."""
        hidden = self.last_hidden([one.row for one in some])
        alike: dict[Any, list[int]] = {}
        for place, one in enumerate(some):
            plain = one.settings is not None and one.settings.greedy and not one.settings.moving and one.row.grammar is None
            alike.setdefault("greedy" if plain else place, []).append(place)
        found: list[Any] = [None] * len(some)
        with self.body.team:
            for places in alike.values():
                rows, pick = [some[place].row for place in places], some[places[0]].pick
                assert pick is not None
                try:
                    ids = pick(rows, hidden[places])
                    for place, token in zip(places, ids, strict=True):
                        (about,) = self.ranked(hidden[place : place + 1], [token], some[place].logprobs)
                        found[place] = Token(token, *about, 0.0, 0.0, self.head.cost)
                except Exception as error:  # whoever asked is told; others go on
                    found = [error if place in places else one for place, one in enumerate(found)]
        return found
