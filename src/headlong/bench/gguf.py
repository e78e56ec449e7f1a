"""A GGUF model decoded by llama.cpp as it is, and with its head read by headlong, in turns.

::

    seconds[who, sampler, sequences] = [wall time of one turn / its tokens, ...]

Both are called at their lowest level: a batch of tokens, then the next token of each sequence. llama.cpp picks the likeliest
by NumPy's argmax over its logits, which is faster than its own sampler for that, and draws by its chain of samplers. Texts
do not end: an end token is decoded as any other.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headlong.bench.machine_load import Neighbours, load_average
from headlong.bench.measure import Progress, environment, silent
from headlong.bench.oracle import Truth
from headlong.errors import OptionError

SAMPLERS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "top_p 0.95": {"temperature": 1.0, "top_k": 0, "top_p": 0.95, "min_p": 0.0},
    "top_p 0.95, temperature 0.8": {"temperature": 0.8, "top_k": 0, "top_p": 0.95, "min_p": 0.0},
    "top_k 40, top_p 0.95, min_p 0.05, temperature 0.8": {},
}
"""The last one has the defaults of ``llama_cpp.Llama``."""
TEXT = "The history of the city begins with a settlement by the river, where"
QUIET, ATTEMPTS = 0.05, 4
"""A share of the processors that others may take in a turn, and how often it is taken again."""
PROMPT = 16
"""Tokens of each prompt; other sequences begin elsewhere in the same text."""


class Stock:
    """llama.cpp on the whole file; ``steps`` as :meth:`headlong.integrations.llama_cpp.Model.steps`."""

    def __init__(self, path: str, sequences: int, length: int, threads: int) -> None:
        import llama_cpp

        self._api: Any = llama_cpp
        self._model = llama_cpp.llama_model_load_from_file(os.fsencode(path), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = length * sequences, 512, 512, sequences
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._model or not self._context:
            raise OptionError(f"llama.cpp cannot load {path}")
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(512, 0, 1)

    def steps(self, prompts: Sequence[Sequence[int]], count: int, **settings: Any) -> Iterator[list[int]]:
        """The next token of each sequence, ``count`` times."""
        api = self._api
        api.llama_memory_clear(api.llama_get_memory(self._context), True)
        chains = [self._chain(number, **settings) for number in range(len(prompts))]
        places = [
            (token, at, number, at == len(prompt) - 1)
            for number, prompt in enumerate(prompts) for at, token in enumerate(prompt)
        ]  # fmt: skip
        for step in range(count):
            self._decode(places)
            last = [at for at, place in enumerate(places) if place[3]]
            tokens = [self._pick(chain, at) for chain, at in zip(chains, last, strict=True)]
            yield tokens
            follow = enumerate(zip(tokens, prompts, strict=True))
            places = [(token, len(prompt) + step, number, True) for number, (token, prompt) in follow]
        for chain in chains:
            if chain is not None:
                api.llama_sampler_free(chain)

    def _decode(self, places: Sequence[tuple[int, int, int, bool]]) -> None:
        batch = self._batch
        batch.n_tokens = len(places)
        for at, (token, position, number, wanted) in enumerate(places):
            batch.token[at], batch.pos[at], batch.n_seq_id[at] = token, position, 1
            batch.seq_id[at][0], batch.logits[at] = number, wanted
        if self._api.llama_decode(self._context, batch):
            raise OptionError("llama.cpp cannot decode the batch")

    def _pick(self, chain: Any, at: int) -> int:
        if chain is not None:
            return int(self._api.llama_sampler_sample(chain, self._context, at))
        logits = self._api.llama_get_logits_ith(self._context, at)
        return int(np.argmax(np.ctypeslib.as_array(logits, shape=(self._vocab,))))

    def _chain(
        self, number: int, temperature: float = 0.8, top_k: int = 40, top_p: float = 0.95, min_p: float = 0.05, seed: int = 0
    ) -> Any:
        if temperature == 0:
            return None
        api = self._api
        chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        for sampler in (
            api.llama_sampler_init_top_k(top_k), api.llama_sampler_init_top_p(top_p, 1), api.llama_sampler_init_min_p(min_p, 1),
            api.llama_sampler_init_temp(temperature), api.llama_sampler_init_dist(seed + number),
        ):  # fmt: skip
            api.llama_sampler_chain_add(chain, sampler)
        return chain

    def close(self) -> None:
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)


class Turns(NamedTuple):
    """What is timed: ``rounds`` turns of so many ``tokens``, for each number of ``sequences`` and each sampler."""

    sequences: Sequence[int] = (1, 4)
    tokens: int = 32
    rounds: int = 5
    samplers: Sequence[str] = tuple(SAMPLERS)


def run(
    path: str | os.PathLike[str],
    asked: Turns,
    threads: int = 1,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
    **promise: Any,
) -> dict[str, Any]:
    """The record: times of every turn, bytes by part, and how many of the tokens of the first greedy turn are the same."""
    sequences, count, rounds, samplers = asked
    made, runs, engine, memory, busiest = environment(threads, load=load_average()), [], "", {}, 0.0
    done, turns = 0, len(sequences) * len(samplers) * rounds
    for number in sequences:
        both = _opened(path, number, count, threads, cache, promise)
        engine, memory = repr(both["headlong"].engine), both["headlong"].memory()
        prompts = _prompts(both["headlong"], number)
        for name in samplers:
            entry: dict[str, Any] = {"sampler": name, "sequences": number, "seconds": {who: [] for who in both}}
            for turn in range(-1, rounds):  # the first wakes the threads and fills the caches
                order = random.Random(f"{name} {number} {turn}").sample(sorted(both), 2)
                settings = {**SAMPLERS[name], "seed": turn + 1}
                pair, share = _quiet_pair(both, order, prompts, count, settings, attempts=1 if turn < 0 else ATTEMPTS)
                if turn >= 0:
                    busiest = max(busiest, share)
                    for who, (seconds, _) in pair.items():
                        entry["seconds"][who].append(seconds)
                elif name == "greedy":
                    texts = [text for _, text in pair.values()]
                    entry["same"] = sum(a == b for a, b in zip(*texts, strict=True))
                    entry["float64"], entry["steps"] = in_float64(both["headlong"], prompts, count)
                done += turn >= 0
                progress(done, turns)
            runs.append(entry)
        for one in both.values():
            one.close()
    made["others"] = busiest
    return {"environment": made, "model": Path(path).name, "tokens": count, "engine": engine, "memory": memory, "runs": runs}


def _quiet_pair(
    both: dict[str, Any], order: list[str], prompts: list[list[int]], count: int, settings: dict[str, Any], attempts: int
) -> tuple[dict[str, tuple[float, list[int]]], float]:
    """A turn of each, taken again while other programs took the processors, and what they took of them.

    llama.cpp's threads wait for each other dozens of times a token: beside one busy neighbour it takes ten times as long.
    """
    best: tuple[dict[str, tuple[float, list[int]]], float] = {}, 2.0
    for _ in range(attempts):
        neighbours = Neighbours()
        pair = {who: _turn(both[who], prompts, count, settings) for who in order}
        share = neighbours.share() or 0.0
        best = min(best, (pair, share), key=lambda one: one[1])
        if share <= QUIET:
            break
    return best


def in_float64(model: Any, prompts: list[list[int]], count: int) -> tuple[int, int]:
    """How many of a greedy text's tokens are the likeliest by a float64 product of the very hidden vectors, and of how many."""
    head, hidden, ids = model._decoder.head, [], []  # noqa: SLF001
    asked = head.likeliest

    def kept(rows: Any) -> Any:
        hidden.append(np.array(rows, np.float64))
        ids.append(asked(rows))
        return ids[-1]

    head.likeliest = kept
    try:
        for _ in model.steps(prompts, count, **SAMPLERS["greedy"]):
            pass
    finally:
        del head.likeliest
    rows, chosen = np.concatenate(hidden), np.concatenate(ids)
    return int((Truth.of(head.layer, rows, 1).ids[:, 0] == chosen).sum()), len(rows)


def _opened(path: Any, number: int, count: int, threads: int, cache: Any, promise: dict[str, Any]) -> dict[str, Any]:
    from headlong.integrations.llama_cpp import Model

    length = PROMPT + count + 16
    ours = Model(path, sequences=number, n_ctx=length, n_threads=threads, cache=cache, **promise)
    return {"headlong": ours, "llama.cpp": Stock(os.fspath(path), number, length, threads)}


def _prompts(model: Any, number: int) -> list[list[int]]:
    tokens = [token % model.n_vocab() for token in model.tokenize(TEXT.encode() * 4, add_bos=False)]
    tokens *= 1 + (PROMPT + number) // max(1, len(tokens))
    return [tokens[start : start + PROMPT] for start in range(number)]


def _turn(model: Any, prompts: list[list[int]], count: int, settings: dict[str, Any]) -> tuple[float, list[int]]:
    """Seconds of a step after the prompts', the median, and the tokens of the first sequence."""
    seconds, text, last = [], [], time.perf_counter()
    for step in model.steps(prompts, count, **settings):
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
        text.append(int(step[0]))
    return statistics.median(seconds[1:]), text
