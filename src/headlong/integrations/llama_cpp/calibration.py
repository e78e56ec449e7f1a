"""Hidden vectors of a model's own: they decide which directions of its output layer have codes of more bits.

What an engine promises holds for every text; how fast it answers depends on how much these vectors are like those to come. The
text is one that every Python has.
"""

from __future__ import annotations

from collections.abc import Callable
from pydoc_data.topics import topics

import numpy as np

from headlong.integrations.llama_cpp.body import Body, Singles
from headlong.integrations.llama_cpp.decoding import Embedding

PASSAGES, LENGTH, LETTERS = 16, 128, 8
"""How many, of so many tokens each, and letters of a token at most."""


def vectors(body: Body, embedding: Embedding, tokenize: Callable[..., list[int]]) -> Singles:
    """``[n, dim]``: passages spread over the text; the first sequence is empty before and after."""
    length, text = min(LENGTH, body.positions, body.largest_batch), "\n".join(topics.values())
    found = []
    for start in range(0, len(text) - LETTERS * LENGTH, len(text) // PASSAGES):
        tokens = tokenize(text[start : start + LETTERS * length].encode(), False)[:length]
        found.append(body.decode(embedding(tokens), range(len(tokens)), [0] * len(tokens)).copy())
        body.keep(0, 0)
    return np.concatenate(found)
