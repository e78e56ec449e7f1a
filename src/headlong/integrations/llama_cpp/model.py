"""A GGUF model whose body is run by llama.cpp and whose head is read by headlong."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from llama_cpp import LlamaGrammar

from headlong import Layer
from headlong.dtypes import Doubles
from headlong.errors import AbsentError, MalformedFileError, OptionError, WrongLayerError
from headlong.integrations.llama_cpp.body import Body, Singles
from headlong.integrations.llama_cpp.body_file import ROWS, body_file, fingerprint
from headlong.integrations.llama_cpp.calibration import vectors
from headlong.integrations.llama_cpp.chain import Breakers, Repeats
from headlong.integrations.llama_cpp.completions import ABSENT as SAMPLING
from headlong.integrations.llama_cpp.completions import Answers, Piece, Writing, check_options, pieces
from headlong.integrations.llama_cpp.decoding import SEQUENCES, Decoder, Embedding, Progress
from headlong.integrations.llama_cpp.families import input_scale
from headlong.integrations.llama_cpp.grammar import Grammar
from headlong.integrations.llama_cpp.head import Head, engine_of
from headlong.integrations.llama_cpp.options import context_options, refuse_absent
from headlong.integrations.llama_cpp.scoring import Scored, scored
from headlong.integrations.llama_cpp.settings import Settings, stop_words
from headlong.integrations.llama_cpp.sharing import Shared
from headlong.integrations.llama_cpp.text import Vocabulary, is_chat, several
from headlong.layers.gguf_file import GgufFile
from headlong.native import threads as threads_at_hand
from headlong.number_checks import file_name, flag, real, whole

Rules: TypeAlias = str | LlamaGrammar | None
"""A grammar: GBNF, or llama_cpp's."""


class Model:
    """``Model("model.gguf")`` answers as ``llama_cpp.Llama("model.gguf")`` does, in less time.

    ::

        logits = link(hidden @ output.weight.T)    hidden: after the last norm, by llama.cpp; logits: of few tokens, exact

    ``sequences``    how many texts :meth:`generate` writes at once; each has ``n_ctx`` positions
    ``eps, delta``   for each token, ids are exact and log-probabilities are within ``eps`` nats, except with probability
                     ``delta``; 0: proved
    ``compiled``     False: the output layer is compiled when it is first asked, which :meth:`hidden` never does
    ``cache``        the folder of the body and the engine, which are made once for each model; None: ``HEADLONG_CACHE``, or
                     the user's cache folder
    ``lora_path``    an adapter of the layers between embedding and output layer, ``lora_scale`` times
    ``options``      ``n_ctx``, ``n_batch``, ... as in ``llama_cpp.Llama``; ``n_threads`` None: all processors
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        sequences: int = 1,
        eps: float = 0.01,
        delta: float = 1e-6,
        compiled: bool = True,
        cache: str | os.PathLike[str] | None = None,
        n_threads: int | None = None,
        seed: int | None = None,
        last_n_tokens_size: int = 64,
        verbose: bool = False,
        chat_format: str | None = None,
        chat_handler: Any = None,
        tokenizer: Any = None,
        lora_path: str | os.PathLike[str] | None = None,
        lora_scale: float = 1.0,
        **options: Any,
    ) -> None:
        self.model_path, self.verbose = file_name(model_path, "model_path"), verbose
        self._seed, self._last_n = Settings(seed=seed, last_n=last_n_tokens_size).seed, last_n_tokens_size
        self._sequences = whole(sequences, "sequences", 1, SEQUENCES)
        file, self._stamp = GgufFile(self.model_path), _stamp(self.model_path)
        layer = Layer.load(self.model_path)
        scale = input_scale(file, layer.dim)
        threads = threads_at_hand(n_threads)
        trained = file.parts[0].value(f"{file.parts[0].value('general.architecture')}.context_length")
        self._trained, self._breakers = int(trained or 512), dict[tuple[str, ...], Breakers]()
        fields = context_options(options, self._sequences, threads, self._trained)
        how = {"chat_format": chat_format, "chat_handler": chat_handler, "tokenizer": tokenizer}
        self.words = Vocabulary(self.model_path, self.create_completion, verbose=verbose, **how)
        if self.words.n_vocab() > layer.vocab:
            raise MalformedFileError(f"{model_path} has {self.words.n_vocab():,} tokens; its head has {layer.vocab:,} rows")
        path = body_file(file, cache)
        self.fingerprint = fingerprint(file)
        saved = path.with_name(f"{Path(self.model_path).stem}.{self.fingerprint}.{eps:g}.{delta:g}.head.safetensors")
        self._body = Body(path, fields, verbose)
        embedding = Embedding(file, layer, scale)
        first = list(range(min(ROWS, layer.vocab)))
        self._body.check(embedding(first), file.rows(file.head("lm_head.weight"), np.array(first)), layer.link)
        own_vectors = partial(vectors, self._body, embedding, self.words.tokenize)
        if lora_path is not None:
            self._body.adapt(file_name(lora_path, "lora_path"), real(lora_scale, "lora_scale", -1e6, 1e6))
        head = Head(layer, partial(engine_of, layer, saved, threads, eps, delta, own_vectors))
        self._decoder = Decoder(self._body, embedding, head, self._sequences)
        self._files = {"original, mapped": Path(self.model_path), "body, mapped": path, "codes, mapped": saved}
        if compiled:
            _ = self.engine

    @property
    def engine(self) -> Any:
        """What answers for the output layer."""
        return self._decoder.head.engine

    @property
    def layer(self) -> Layer:
        """The output layer, as the file stores it."""
        found: Layer = self._decoder.head.layer
        return found

    def generate(
        self,
        prompt: str | Sequence[Any],
        max_tokens: int | None = 128,
        *,
        stop: str | Sequence[str] = (),
        grammar: Rules = None,
        logprobs: int | None = None,
        **settings: Any,
    ) -> Any:
        """A :class:`Text` for a prompt; for a list of prompts a list of them, written at once.

        ``prompt``    text, a list of chat messages, or a list of tokens
        ``grammar``   GBNF, or a ``llama_cpp.LlamaGrammar``
        ``logprobs``  0: the log-probability of each token in the model's own distribution, within the engine's ``eps``
        ``settings``  temperature, top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, logit_bias, seed:
                      as in ``llama_cpp.Llama``, defaults too
        """
        texts, chosen = self._texts(prompt, max_tokens, stop, grammar, settings)
        with self._decoder.lock:  # a text that nobody waits for in pieces is written in one go
            deque(pieces(self._decoder, texts, chosen, self._ranks(logprobs)), 0)
        found = [one.result(logprobs is not None) for one in texts]
        return found if several(prompt) else found[0]

    def stream(self, prompt: str | Sequence[Any], max_tokens: int | None = 128, **options: Any) -> Iterator[Piece]:
        """What :meth:`generate` would write, a piece at a time as it comes."""
        named = {name: options.pop(name, default) for name, default in (("stop", ()), ("grammar", None))}
        logprobs = self._ranks(options.pop("logprobs", None))
        texts, chosen = self._texts(prompt, max_tokens, named["stop"], named["grammar"], options)
        return pieces(self._decoder, texts, chosen, logprobs)

    def steps(self, prompts: Sequence[Any], count: int, **settings: Any) -> Iterator[list[int]]:
        """``count`` tokens of each prompt, a step of all of them at a time, whether or not texts end before."""
        texts, chosen = self._texts(list(prompts), count, (), None, settings)
        for step in self._decoder.run([one.progress for one in texts], chosen):
            yield [token.id for _, token in step]

    def log_probs(self, text: str | Sequence[int]) -> tuple[Doubles, Doubles]:
        """Log-probabilities of all tokens of a text but the first, given those before, and how far each can be off."""
        values = [self._decoder.log_probs(hidden, after) for hidden, after in self._read(text)]
        return np.concatenate([value for value, _ in values]), np.concatenate([error for _, error in values])

    def scores(self, texts: Sequence[tuple[Sequence[int], int]]) -> Iterator[tuple[int, Scored]]:
        """``(place, scores)`` of each of many texts ``(tokens, start)``: the log-probabilities of its tokens from ``start`` on,
        how far each can be off and whether it is the likeliest. What texts have in common is decoded once.

        A text has at most ``n_ctx`` tokens before its last; texts come in the order of their tokens.
        """
        self._check_unchanged()
        for tokens, start in texts:
            self._decoder.room(tokens[:-1], 0)
            whole(start, "start", 1, len(tokens) - 1)
        return scored(self._decoder, texts)

    def chat_text(self, messages: Any) -> str:
        """The text that the chat template makes of messages."""
        return self.detokenize(self.words.chat_prompt(messages)[0], special=True).decode(errors="replace")

    def hidden(self, text: str | Sequence[int]) -> Singles:
        """The hidden vectors ``[tokens, dim]`` of a text, after the last norm."""
        return np.concatenate([hidden.copy() for hidden, _ in self._read(text)])

    def _read(self, text: str | Sequence[int]) -> Iterator[tuple[Singles, list[int]]]:
        self._check_unchanged()
        tokens = self.words.prompt(text)
        self._decoder.room(tokens)
        return self._decoder.read(tokens)

    def _ranks(self, logprobs: Any) -> int | None:
        return None if logprobs is None else whole(logprobs, "logprobs", 0, self.n_vocab())

    def _texts(
        self, prompt: str | Sequence[Any], most: int | None, stop: Any, grammar: Rules, settings: Mapping[str, Any]
    ) -> tuple[list[Writing], Settings]:
        self._check_unchanged()
        prompts = list(prompt) if several(prompt) else [prompt]
        if not 1 <= len(prompts) <= self._sequences:
            raise OptionError(f"got {len(prompts)} prompts; expected 1 to {self._sequences}: pass sequences= to Model for more")
        stops, found = stop_words(stop), []
        for number, one in enumerate(prompts):
            tokens, more = self.words.chat_prompt(one) if is_chat(one) else (self.words.prompt(one), [])
            found.append(self._writing(tokens, number, most, [*stops, *more], grammar))
        return found, self._chosen(settings, found)

    def _writing(
        self, tokens: list[int], number: int, most: int | None, stops: Sequence[str], grammar: Rules, criteria: Any = None
    ) -> Writing:
        room = self._decoder.room(tokens)
        most = room if most is None or whole(most, "max_tokens", -(2**31), 2**31) <= 0 else min(most, room)
        rules = None if grammar is None else Grammar(self.words.pointer, grammar)
        return Writing(self.words, Progress(tokens, number, most, rules), stops, criteria)

    def _chosen(self, given: Mapping[str, Any], texts: Sequence[Writing]) -> Settings:
        """Settings, and what they ask of each text."""
        settings = self._settings(given)
        if settings.dry:
            key = tuple(settings.dry_sequence_breakers)
            if key not in self._breakers:
                self._breakers[key] = Breakers(self.words.spelled(), key, partial(self.words.tokenize, add_bos=False))
            for one in texts:
                one.progress.repeats = Repeats(settings, self._breakers[key], self._trained)
        return settings

    def _settings(self, given: Mapping[str, Any]) -> Settings:
        known = {name: value for name, value in given.items() if value is not None}
        refuse_absent(known, SAMPLING)
        unknown = sorted(set(known) - set(Settings.__dataclass_fields__))
        if unknown:
            raise OptionError(f"{unknown[0]} is no option here; they are {', '.join(Settings.__dataclass_fields__)}")
        return Settings(**{"seed": self._seed, "last_n": self._last_n, **known})

    def create_completion(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = 16,
        stop: str | Sequence[str] | None = (),
        stream: bool = False,
        echo: bool = False,
        logprobs: int | None = None,
        grammar: Rules = None,
        stopping_criteria: Any = None,
        model: str | None = None,
        **options: Any,
    ) -> Any:
        """As ``llama_cpp.Llama.create_completion``: a dictionary, or chunks of one.

        ``text_offset`` counts from the prompt's beginning: letters of a text, tokens of a list of tokens. With ``echo=True``
        ``max_tokens=0`` is none, and ``logprobs=`` lists the prompt's tokens, then each drawn one, one that ends the text, too.
        """
        self._check_unchanged()
        if several(prompt):
            raise OptionError(f"got {len(prompt)} prompts; a completion has one: generate(prompts, ...) writes several at once")
        if echo and (stream or not isinstance(prompt, str)):
            raise OptionError("echo=True goes with text, without stream=")
        settings = {name: value for name, value in options.items() if name in Settings.__dataclass_fields__}
        check_options({name: value for name, value in options.items() if name not in settings})
        logprobs = self._ranks(logprobs)
        tokens = self.words.prompt(prompt)
        text = self._writing(tokens, 0, max_tokens, stop_words(stop), grammar, stopping_criteria)
        if echo and max_tokens == 0:
            text.progress.done = True
        answers = Answers(self.words, model or self.model_path, 0 if echo else len(prompt))
        found = pieces(self._decoder, [text], self._chosen(settings, [text]), logprobs)
        if stream:
            return answers.chunks(found, text, logprobs is not None)
        with self._decoder.lock:
            told = self._decoder.told(tokens, logprobs) if echo and logprobs is not None else []
            deque(found, 0)
        return answers.whole(text, str(prompt) if echo else "", logprobs is not None, told)

    __call__ = create_completion

    def create_chat_completion(self, messages: Any, **options: Any) -> Any:
        """As ``llama_cpp.Llama.create_chat_completion``, by the same template."""
        return self.words.create_chat_completion(messages, **options)

    def create_chat_completion_openai_v1(self, *arguments: Any, **options: Any) -> Any:
        """As ``llama_cpp.Llama.create_chat_completion_openai_v1``: pydantic models, with the openai package."""
        return self.words.create_chat_completion_openai_v1(*arguments, **options)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """As ``llama_cpp.Llama.tokenize``."""
        return list(self.words.tokenize(text, add_bos, special))

    def detokenize(self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False) -> bytes:
        """As ``llama_cpp.Llama.detokenize``."""
        return bytes(self.words.detokenize(list(tokens), prev_tokens, special))

    def tokenizer(self) -> Any:
        """As ``llama_cpp.Llama.tokenizer``."""
        return self.words.tokenizer()

    @property
    def metadata(self) -> dict[str, str]:
        """The file's facts, as text."""
        return dict(self.words.metadata)

    @property
    def chat_format(self) -> str | None:
        """The name of the chat template in use."""
        found: str | None = self.words.chat_format
        return found

    def n_ctx(self) -> int:
        """Positions of each sequence."""
        return self._body.positions

    def n_embd(self) -> int:
        """Numbers of a hidden vector."""
        return self._body.dim

    def n_vocab(self) -> int:
        """Tokens."""
        return int(self.words.n_vocab())

    def token_bos(self) -> int:
        """The token at the beginning of a text; -1: none."""
        return int(self.words.token_bos())

    def token_eos(self) -> int:
        """The token at the end of a text; -1: none."""
        return int(self.words.token_eos())

    def token_nl(self) -> int:
        """The token of a new line."""
        return int(self.words.token_nl())

    def set_seed(self, seed: int) -> None:
        """The seed of completions that name none."""
        self._seed = Settings(seed=seed).seed

    def share(self, reproducible: bool = False) -> None:
        """From now on texts of several threads are written at once, as many as there are sequences; others wait.

        ``reproducible``  each text is decoded from its beginning and by itself, a token of each in turn: it is to the last bit
                          what it is alone. Steps of several texts at once are faster, and llama.cpp rounds them otherwise
        """
        if not isinstance(self._decoder, Shared):
            self._decoder = Shared(self._decoder)
        self._decoder.reproducible = flag(reproducible, "reproducible")

    def reset(self) -> None:
        """Forgets what the sequences hold."""
        self._decoder.forget()

    def memory(self) -> dict[str, int]:
        """Bytes by part. What is mapped is in memory as far as it is read."""
        found = {part: path.stat().st_size for part, path in self._files.items() if path.exists()}
        layer = self.layer
        kept = not isinstance(layer.weight, np.ndarray) or "written out" not in layer.name  # mapped with the original
        return found | {"head, written out": 0 if kept else layer.weight.nbytes} | self._decoder.memory()

    def close(self) -> None:
        """Frees llama.cpp's memory, after the texts that threads share have ended."""
        if isinstance(self._decoder, Shared):
            self._decoder.close()
        self._body.close()
        self.words.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and callable(getattr(Vocabulary, name, None)):
            raise AbsentError(f"Model has no {name}; llama_cpp.Llama, which has, answers it from all logits")
        raise AttributeError(f"'Model' object has no attribute {name!r}")

    def __repr__(self) -> str:
        head = vars(self._decoder.head).get("engine", self.layer)  # as far as it is compiled
        return f"Model({Path(self.model_path).name!r}, sequences={self._sequences}, n_ctx={self.n_ctx()}, head={head!r})"

    def _check_unchanged(self) -> None:
        """Rows of the embedding and of the head are read from the file while it is used."""
        _ = self._body.context  # not closed
        if _stamp(self.model_path) != self._stamp:
            raise WrongLayerError(f"{self.model_path} was changed after it was loaded; make a new Model of it")


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:  # gone, but still mapped
        return None
    return found.st_size, found.st_mtime_ns
