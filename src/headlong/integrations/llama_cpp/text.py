"""Tokens to text and back: the vocabulary and the chat template of the original file, which llama.cpp reads without weights."""

from __future__ import annotations

import codecs
import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import llama_cpp

from headlong.errors import MalformedFileError, OptionError, named
from headlong.integrations.llama_cpp.log import listening
from headlong.number_checks import wholes

LONGEST = 4096
"""Bytes of one token's text at most."""


class Vocabulary(llama_cpp.Llama):  # type: ignore[misc]
    """``llama_cpp.Llama`` without weights, whose completions are made by somebody else: chat handlers ask it for them."""

    def __init__(self, path: str, complete: Callable[..., Any], *, verbose: bool, **options: Any) -> None:
        self._complete = complete
        with listening(verbose) as last_line:
            try:
                super().__init__(path, vocab_only=True, verbose=verbose, **options)
            except (ValueError, RuntimeError, AssertionError) as error:
                why = last_line() or error
                raise MalformedFileError(f"llama.cpp cannot read the vocabulary of {path}: {why}") from error
        self._pieces: dict[int, bytes] = {}
        self.pointer = llama_cpp.llama_model_get_vocab(self.model)

    def create_completion(self, *arguments: Any, **options: Any) -> Any:
        """Not made here: this has no weights."""
        return self._complete(*arguments, **options)

    def chat_prompt(self, messages: Any) -> tuple[list[int], list[str]]:
        """The tokens that the chat template makes of messages, and the words that end an answer."""
        asked: dict[str, Any] = {}
        beside = Beside(self, asked.update)
        llama_cpp.Llama.create_chat_completion(beside, messages, stream=True)  # what it would make of chunks is never taken
        return [int(token) for token in asked["prompt"]], list(asked["stop"] or ())

    def ends(self, token: int) -> bool:
        """Whether a text ends with this token."""
        return bool(llama_cpp.llama_vocab_is_eog(self.pointer, token))

    def piece(self, token: int) -> bytes:
        """The bytes of a token; none of a special one."""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self._rendered(token, special=False)
        return found

    def name(self, token: int) -> str:
        """A token's text; a special one's name; ``bytes:`` and their numbers where the bytes alone are no text."""
        piece = self.piece(token) or self._rendered(token, special=True)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def _rendered(self, token: int, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(LONGEST)  # one for all would be every thread's
        count = llama_cpp.llama_token_to_piece(self.pointer, token, buffer, LONGEST, 0, special)
        return buffer.raw[: max(count, 0)]

    def spelled(self) -> Iterator[tuple[int, bytes]]:
        """Each token, and its bytes at the beginning of a text; special ones by their names."""
        buffer = ctypes.create_string_buffer(LONGEST)
        for token in range(self.n_vocab()):
            one = (ctypes.c_int32 * 1)(token)
            count = llama_cpp.llama_detokenize(self.pointer, one, 1, buffer, LONGEST, False, True)
            yield token, buffer.raw[: max(count, 0)]

    def prompt(self, prompt: str | Sequence[int]) -> list[int]:
        """The tokens of a text, with those that the model wants at its ends, as ``create_completion`` has them."""
        if not isinstance(prompt, str):
            return token_ids(prompt)
        first = [self.token_bos()] if llama_cpp.llama_vocab_get_add_bos(self.pointer) and self.token_bos() != -1 else []
        last = [self.token_eos()] if llama_cpp.llama_vocab_get_add_eos(self.pointer) and self.token_eos() != -1 else []
        middle = self.tokenize(prompt.encode(), add_bos=False, special=True) if prompt else []
        return [*first, *middle, *last] or [self.token_bos()]


class Beside:
    """A :class:`Vocabulary` to a chat handler, but for the completion that it asks for."""

    def __init__(self, words: Vocabulary, complete: Callable[..., Any]) -> None:
        self.words, self.create_completion = words, complete

    def __getattr__(self, name: str) -> Any:
        return getattr(self.words, name)


class TextBuilder:
    """Bytes of tokens as they come, text as it can be shown: whole characters, and nothing that may begin a stop word."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = ""
        self.text = ""
        self.stopped = False

    def add(self, piece: bytes) -> str:
        """The text that is safe to show now."""
        self._waiting += self._decoder.decode(piece)
        found = [place for place in (self._waiting.find(stop) for stop in self._stops) if place >= 0]
        if found:
            self.stopped = True
            return self._shown(min(found), rest="")
        held = max((_overlap(self._waiting, stop) for stop in self._stops), default=0)
        return self._shown(len(self._waiting) - held)

    def end(self) -> str:
        """What was held back; half a character is left out."""
        return "" if self.stopped else self._shown(len(self._waiting))

    def _shown(self, length: int, rest: str | None = None) -> str:
        shown, self._waiting = self._waiting[:length], self._waiting[length:] if rest is None else rest
        self.text += shown
        return shown


def _overlap(text: str, stop: str) -> int:
    """How many of the last letters of ``text`` begin ``stop``."""
    return next((length for length in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:length])), 0)


def token_ids(prompt: Any) -> list[int]:
    """Whole numbers, as a list, tuple or array of them; OptionError for anything else that is not text."""
    if isinstance(prompt, (bytes, bytearray, memoryview, Mapping)) or not hasattr(prompt, "__getitem__"):
        advice = ": decode() makes text of bytes" if isinstance(prompt, (bytes, bytearray, memoryview)) else ""
        raise OptionError(f"prompt is {named(prompt)}; expected text, or a list of token ids{advice}")
    return list(prompt) if all(type(token) is int for token in prompt) else wholes(prompt, "prompt", -(2**31), 2**31 - 1)


def is_chat(prompt: object) -> bool:
    """Messages, each a mapping with a role and content."""
    return isinstance(prompt, Sequence) and not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def several(prompt: Any) -> bool:
    """A list of prompts; one prompt is text, messages or tokens."""
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str) and len(prompt) > 0
    return is_list and (isinstance(prompt[0], (str, Sequence)) and not isinstance(prompt[0], Mapping))
