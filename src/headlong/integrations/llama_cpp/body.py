"""llama.cpp on a body: rows of the embedding in, hidden vectors after the last norm out, several sequences at once.

::

    hidden[i] = norm(blocks(rows[i] at positions[i] of sequences[i], and what that sequence holds already))
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from headlong.errors import InputError, OptionError, StoreError, UnsupportedError
from headlong.integrations.llama_cpp.body_file import ROWS
from headlong.integrations.llama_cpp.log import listening
from headlong.integrations.llama_cpp.team import Team
from headlong.layers.gguf_file import GgufFile
from headlong.links import Link

Singles = NDArray[np.float32]
OURS = {"token_embd.weight", "output.weight"}
"""Tensors that are not llama.cpp's here."""
BLOCK = 256
"""Numbers of a hidden vector that llama.cpp rounds with one scale, at most."""
DEVIATIONS = 8.0
"""How far its logits may be from ours, in standard deviations of that rounding."""


class Body:
    """A model and a context of llama.cpp. ``options`` are fields of ``llama_context_params``, as in ``n_ctx=4096``."""

    def __init__(self, path: str | os.PathLike[str], options: dict[str, Any], verbose: bool = False) -> None:
        self._context: Any = None
        with listening(verbose) as last_line:
            self._load(path, options, last_line)
        self.dim = int(llama_cpp.llama_model_n_embd(self._model))
        self.positions = int(llama_cpp.llama_n_ctx_seq(self._context))
        self.largest_batch = int(llama_cpp.llama_n_batch(self._context))
        self._arrays = _Arrays(self.largest_batch, self.dim)
        self.team = Team(options.get("n_threads", 0))
        self.lock = threading.RLock()
        """Held by whoever decodes and reads what comes of it; of one thread at a time."""

    def _load(self, path: str | os.PathLike[str], options: dict[str, Any], last_line: Callable[[], str]) -> None:
        self._model: Any = llama_cpp.llama_model_load_from_file(os.fsencode(path), llama_cpp.llama_model_default_params())
        if not self._model:
            raise StoreError(f"llama.cpp cannot load {os.fspath(path)}: {last_line()}")
        params = llama_cpp.llama_context_default_params()
        for name, value in options.items():
            setattr(params, name, value)
        params.embeddings, params.pooling_type = True, llama_cpp.LLAMA_POOLING_TYPE_NONE
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            self._free()
            raise OptionError(f"llama.cpp makes no context of {options}: {last_line()}")

    def adapt(self, path: str, scale: float) -> None:
        """Adds a LoRA adapter, which may touch neither the embedding nor the output layer: these are not llama.cpp's here."""
        names = {name.removesuffix(".lora_a").removesuffix(".lora_b") for name in GgufFile(path).names}
        if names & OURS:
            raise UnsupportedError(
                f"the adapter {path} changes {min(names & OURS)}; expected one of the layers between embedding and output "
                "layer alone: merge it into the model, or use llama_cpp.Llama"
            )
        with listening(verbose=False) as last_line:
            adapter = llama_cpp.llama_adapter_lora_init(self._model, os.fsencode(path))  # freed with the model
            if adapter is None or not adapter:
                raise StoreError(f"llama.cpp cannot load the adapter {path}: {last_line()}")
            adapters, scales = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter), (ctypes.c_float * 1)(scale)
            if llama_cpp.llama_set_adapters_lora(self._context, adapters, 1, scales):
                raise StoreError(f"llama.cpp cannot use the adapter {path}: {last_line()}")

    def close(self) -> None:
        """Frees llama.cpp's memory, after a step that another thread is in; nothing can be decoded afterwards."""
        with self.lock:
            self._free()

    @property
    def threads(self) -> int:
        """That decode a batch."""
        return int(llama_cpp.llama_n_threads_batch(self.context))

    @contextmanager
    def teams(self) -> Iterator[Callable[[int], None]]:
        """``take(n)``: from now on ``n`` threads decode; after the block as many as before."""
        before = llama_cpp.llama_n_threads(self.context), self.threads
        try:
            yield lambda count: llama_cpp.llama_set_n_threads(self.context, count, count)
        finally:
            llama_cpp.llama_set_n_threads(self.context, *before)

    @property
    def context(self) -> Any:
        """That of llama.cpp, as long as there is one."""
        if not self._context:
            raise InputError("the model was closed; make a new Model of its file")
        return self._context

    def _free(self) -> None:
        if self._context:
            llama_cpp.llama_free(self._context)
        if self._model:
            llama_cpp.llama_model_free(self._model)
        self._context = self._model = None

    def __del__(self) -> None:
        self._free()

    def decode(self, rows: Singles, positions: Sequence[int], sequences: Sequence[int]) -> Singles:
        """The hidden vectors ``[n, dim]`` of ``n`` rows, at most a batch of them; the next call writes over them."""
        arrays, count = self._arrays, len(rows)
        arrays.rows[:count] = rows
        for at in range(count):
            arrays.positions[at], arrays.sequences[at] = positions[at], sequences[at]
        arrays.batch.n_tokens = count
        self._run(arrays.batch)
        ctypes.memmove(arrays.hidden_address, llama_cpp.llama_get_embeddings(self._context), count * self.dim * 4)
        return arrays.hidden[:count]

    def _run(self, batch: Any) -> None:
        status = llama_cpp.llama_decode(self.context, batch)
        if status == 1:
            raise OptionError(f"the context of {self.positions} positions is full; pass a larger n_ctx, or shorter prompts")
        if status:
            raise UnsupportedError(f"llama_decode ended with {status}; pass verbose=True to read why")

    def keep(self, sequence: int, count: int) -> bool:
        """Forgets all but the first ``count`` positions of a sequence; False where its memory cannot, and is empty then."""
        memory = llama_cpp.llama_get_memory(self.context)
        if llama_cpp.llama_memory_seq_rm(memory, sequence, count, -1):
            return True
        llama_cpp.llama_memory_seq_rm(memory, sequence, -1, -1)
        return False

    def copy(self, source: int, target: int) -> None:
        """The sequence ``target`` holds what ``source`` does, and nothing else."""
        self.keep(target, 0)
        llama_cpp.llama_memory_seq_cp(llama_cpp.llama_get_memory(self.context), source, target, -1, -1)

    def saved(self, sequence: int) -> Any:
        """What a sequence holds, to the bit, for :meth:`load`."""
        size = llama_cpp.llama_state_seq_get_size(self.context, sequence)
        state = (ctypes.c_uint8 * size)()
        llama_cpp.llama_state_seq_get_data(self.context, state, size, sequence)
        return state

    def load(self, sequence: int, state: Any) -> bool:
        """The sequence holds what was saved; False where llama.cpp does not take it, and it is empty."""
        self.keep(sequence, 0)
        return bool(llama_cpp.llama_state_seq_set_data(self.context, state, len(state), sequence))

    def check(self, rows: Singles, head: Singles, link: Link) -> None:
        """Whether a token as an id and as its row give one hidden vector, and our logits of 32 tokens are llama.cpp's.

        ``rows``  of the first tokens as :meth:`decode` takes them; ``head`` of the same tokens, as llama.cpp has it in the body
        """
        token, arrays = len(rows) - 1, self._arrays
        with self.teams() as take:  # beside other programs two tokens of a team that waits for each of its threads take seconds
            take(1)
            vector = self.decode(rows[token:], [0], [0])[0].copy()
            self.keep(0, 0)
            self._run(arrays.of_ids(token))
        named = np.ctypeslib.as_array(llama_cpp.llama_get_embeddings(self._context), shape=(self.dim,)).copy()
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), shape=(len(rows),)).astype(np.float64)
        self.keep(0, 0)
        if not np.allclose(vector, named, rtol=1e-3, atol=1e-3 * float(np.abs(named).max())):
            raise UnsupportedError(
                "llama.cpp treats the rows of this model's embedding otherwise than this version of headlong expects: a token "
                "given as its row has another hidden vector; use llama_cpp.Llama for it"
            )
        ours = np.asarray(link(head.astype(np.float64) @ named), np.float64)
        if np.abs(ours - logits).max() > rounding(head, named) * link.steepest:
            raise UnsupportedError(
                f"llama.cpp's logits of the first {ROWS} tokens are not {link} of this model's head, as this version of "
                "headlong expects; use llama_cpp.Llama for it"
            )


def rounding(head: Singles, hidden: Singles) -> float:
    """How far products with a vector that is rounded to eight bits can reasonably be from the exact ones."""
    runs = hidden.reshape(-1, BLOCK) if len(hidden) % BLOCK == 0 else hidden[None]
    deviation = float(np.sqrt((np.abs(runs).max(axis=1).astype(np.float64) ** 2).mean())) / (254 * np.sqrt(3))
    return DEVIATIONS * float(deviation) * float(np.linalg.norm(head.astype(np.float64), axis=1).max())


class _Arrays:
    """A ``llama_batch`` over arrays of ours, filled anew for each call, and where its hidden vectors go.

    Between two steps the caches are empty, and every Python object that is touched costs: single numbers are set without NumPy.
    """

    def __init__(self, most: int, dim: int) -> None:
        self.rows, self.hidden = np.zeros((most, dim), np.float32), np.empty((most, dim), np.float32)
        self.hidden_address = self.hidden.ctypes.data
        positions, sequences = np.zeros(most, np.int32), np.zeros(most, np.int32)
        self.positions, self.sequences = positions.data, sequences.data
        self._ones, self._wanted = np.ones(most, np.int32), np.ones(most, np.int8)
        self._token = np.zeros(1, np.int32)
        number = ctypes.POINTER(ctypes.c_int32)
        start, step = sequences.ctypes.data, sequences.itemsize
        self._lists = (number * most)(*(ctypes.cast(start + step * i, number) for i in range(most)))
        self.batch = llama_cpp.llama_batch(
            0, None, _pointer(self.rows, ctypes.c_float), _pointer(positions, ctypes.c_int32),
            _pointer(self._ones, ctypes.c_int32), self._lists, _pointer(self._wanted, ctypes.c_int8),
        )  # fmt: skip

    def of_ids(self, token: int) -> Any:
        """One token, as an id, at position 0 of sequence 0."""
        self._token[0] = token
        self.positions[0] = self.sequences[0] = 0
        number = ctypes.c_int32
        return llama_cpp.llama_batch(
            1, _pointer(self._token, number), None, self.batch.pos,
            _pointer(self._ones, number), self._lists, _pointer(self._wanted, ctypes.c_int8),
        )  # fmt: skip


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))
