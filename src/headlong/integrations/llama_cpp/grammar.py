"""llama.cpp's grammars over candidates: which of some tokens may come next."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import Ids
from headlong.errors import OptionError, named

ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""``llama_token_data``."""


class Grammar:
    """A GBNF text, or a ``llama_cpp.LlamaGrammar``, and how far the text so far has taken it."""

    def __init__(self, vocabulary: Any, grammar: str | llama_cpp.LlamaGrammar) -> None:
        self._sampler: Any = None
        known = isinstance(grammar, llama_cpp.LlamaGrammar)
        text, root = (vars(grammar)["_grammar"], vars(grammar)["_root"]) if known else (grammar, "root")
        if not isinstance(text, str):
            raise OptionError(f"grammar is {named(grammar)}; expected GBNF text or a llama_cpp.LlamaGrammar")
        self._sampler = llama_cpp.llama_sampler_init_grammar(vocabulary, text.encode(), root.encode())
        if not self._sampler:
            raise OptionError(f"llama.cpp cannot parse the grammar {text[:80]!r}; expected GBNF rules with one named {root!r}")

    def accepts(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of the tokens may come next."""
        entries = np.zeros(len(ids), ENTRY)
        entries["id"] = ids
        data = ctypes.cast(entries.ctypes.data, llama_cpp.llama_token_data_p)
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(llama_cpp.llama_token_data_array(data, len(ids), -1, False)))
        return np.asarray(np.isfinite(entries["logit"]))

    def take(self, token: int) -> None:
        """The token came."""
        llama_cpp.llama_sampler_accept(self._sampler, token)

    def __del__(self) -> None:
        if self._sampler:
            llama_cpp.llama_sampler_free(self._sampler)
