"""Texts while they are written, and the dictionaries in which ``llama_cpp.Llama`` answers."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headlong.errors import OptionError
from headlong.integrations.llama_cpp.decoding import Decoder, Progress, Token
from headlong.integrations.llama_cpp.options import refuse_absent
from headlong.integrations.llama_cpp.settings import Settings
from headlong.integrations.llama_cpp.text import TextBuilder, Vocabulary

ABSENT = {
    "suffix": (None, "infilling"),
    "tfs_z": (1.0, "tail-free sampling"),
    "adaptive_target": (-1.0, "adaptive-p, which moves every token's logit by its probability,"),
    "adaptive_decay": (0.9, "adaptive-p"),
    "guidance_scale": (1.0, "guidance, which needs the logits of two texts for every token,"),
    "cfg_scale": (1.0, "guidance"),
    "negative_prompt": (None, "guidance"),
    "logits_processor": (None, "a processor that sees every logit (logit_bias, penalties and grammars are supported)"),
}
"""Options of ``llama_cpp.Llama.create_completion`` that are not supported: their defaults, and what they are."""
UNUSED = ("penalize_nl",)


def check_options(options: Mapping[str, Any]) -> None:
    """UnsupportedError for an option that is not supported and not at its default; OptionError for one that nobody has."""
    refuse_absent(options, ABSENT)
    for name in options:
        if name not in ABSENT and name not in UNUSED:
            raise OptionError(f"{name} is no option of a completion; it has those of llama_cpp.Llama.create_completion")


class Text(NamedTuple):
    """``log_probs`` and their ``errors`` are empty where none were asked for; ``finish_reason``: "stop" or "length"."""

    text: str
    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    errors: tuple[float, ...]
    finish_reason: str


class Writing:
    """One text while it is written."""

    def __init__(self, words: Vocabulary, progress: Progress, stops: Sequence[str], criteria: Any = None) -> None:
        self._words, self._builder, self._criteria = words, TextBuilder(stops), criteria
        self.progress, self.reason = progress, "length"
        self.tokens: list[Token] = []
        self.ending: list[Token] = []
        """The token that ended the text, if one did; it is no part of it."""

    @property
    def text(self) -> str:
        return self._builder.text

    def result(self, with_log_probs: bool) -> Text:
        asked = self.tokens if with_log_probs else []
        ids, log_probs = (token.id for token in self.tokens), (float(token.log_prob or 0.0) for token in asked)
        return Text(self.text, tuple(ids), tuple(log_probs), tuple(token.error for token in asked), self.reason)

    def take(self, token: Token) -> str:
        """The text that can be shown now that this token has come."""
        if self._words.ends(token.id):
            self.ending.append(token)
            return self._stop()
        self.tokens.append(token)
        if self._criteria is not None and self._criteria(self.progress.prompt + [one.id for one in self.tokens], None):
            return self._stop()
        shown = self._builder.add(self._words.piece(token.id))
        if self._builder.stopped:
            self._stop()
        return shown + (self._builder.end() if self.progress.done else "")

    def _stop(self) -> str:
        self.reason, self.progress.done = "stop", True
        return self._builder.end()


class Piece(NamedTuple):
    """A piece of the text ``number``, and the tokens that came since the piece before."""

    number: int
    text: str
    tokens: tuple[Token, ...]


def pieces(decoder: Decoder, texts: Sequence[Writing], settings: Settings, logprobs: int | None = None) -> Iterator[Piece]:
    """The texts as they grow, all of them at once."""
    by_number = {one.progress.number: one for one in texts}
    given = dict.fromkeys(by_number, 0)
    for step in decoder.run([one.progress for one in texts], settings, logprobs):
        for progress, token in step:
            one = by_number[progress.number]
            shown = one.take(token)
            if shown or progress.done:
                yield Piece(progress.number, shown, tuple(one.tokens[given[progress.number] :]))
                given[progress.number] = len(one.tokens)


class Answers:
    """The dictionaries of one completion: what all its chunks have in common, and the choices."""

    def __init__(self, words: Vocabulary, model: str, offset: int) -> None:
        """``offset``: where the first listed token's text begins."""
        self._words, self._offset = words, offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._base = {"id": f"cmpl-{uuid.uuid4()}", "object": "text_completion", "created": int(time.time()), "model": model}

    def chunk(self, text: str, reason: str | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {**self._base, "choices": [{"text": text, "index": 0, "logprobs": logprobs, "finish_reason": reason}]}

    def chunks(self, found: Iterator[Piece], text: Writing, with_logprobs: bool) -> Iterator[dict[str, Any]]:
        for piece in found:
            if piece.text:
                yield self.chunk(piece.text, None, self.logprobs(piece.tokens) if with_logprobs else None)
        yield self.chunk("", text.reason, None)

    def whole(self, text: Writing, before: str, with_logprobs: bool, echoed: Sequence[Token] = ()) -> dict[str, Any]:
        prompt, tokens = len(text.progress.prompt), len(text.tokens)
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        ending = text.ending if echoed else []  # who counts the prompt's tokens counts one for each that was drawn
        logprobs = self.logprobs([*echoed, *text.tokens, *ending]) if with_logprobs else None
        if logprobs and echoed:  # nothing is before the first
            logprobs["token_logprobs"][:1] = logprobs["top_logprobs"][:1] = [None]
        return {**self.chunk(before + text.text, text.reason, logprobs), "usage": usage}

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """As the OpenAI API lists the next tokens. One whose bytes end within a character begins where that does."""
        found: dict[str, list[Any]] = {"tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []}
        for token in tokens:
            if token.id == self._words.token_bos():
                continue
            text, ranked = self._words.name(token.id), {self._words.name(one): value for one, value in token.ranked}
            found["tokens"].append(text)
            found["text_offset"].append(self._offset)
            found["token_logprobs"].append(token.log_prob)
            found["top_logprobs"].append(ranked | {text: token.log_prob})
            self._offset += len(self._decoder.decode(self._words.piece(token.id)))
        return found
