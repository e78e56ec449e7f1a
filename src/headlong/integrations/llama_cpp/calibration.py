"""Hidden vectors of a model's own: they decide which directions of its output layer have codes of more bits.

What an engine promises holds for every text; how fast it answers depends on how much these vectors are like those to come. The
text is one that every Python has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pydoc_data.topics import topics

import numpy as np

from headlong.integrations.llama_cpp.body import Body, Singles
from headlong.integrations.llama_cpp.decoding import Embedding
from headlong.progress import stage

PASSAGES, LENGTH, LETTERS = 16, 128, 8
"""How many, of so many tokens each, and letters of a token at most."""


def vectors(body: Body, embedding: Embedding, tokenize: Callable[..., list[int]]) -> Singles:
    """``[n, dim]``: passages spread over the text; the first sequence is empty before and after.

    The first is read by one thread and the second by all, the others by who was sooner: llama.cpp's threads wait for each other
    hundreds of times a passage, and beside other programs, which take their turns, that lasts for seconds.
    """
    length, text = min(LENGTH, body.positions, body.largest_batch), "\n".join(topics.values())
    starts = range(0, len(text) - LETTERS * LENGTH, len(text) // PASSAGES)
    found, took, move = [], dict[int, float](), stage("hidden vectors of the model's own")
    teams = 1, body.threads
    with body.teams() as take:
        for place, start in enumerate(starts):
            threads = teams[place] if place < 2 else min(took, key=took.__getitem__)
            take(threads)
            tokens = tokenize(text[start : start + LETTERS * length].encode(), False)[:length]
            began = time.perf_counter()
            found.append(body.decode(embedding(tokens), range(len(tokens)), [0] * len(tokens)).copy())
            took[threads] = (time.perf_counter() - began) / len(tokens)
            body.keep(0, 0)
            move(place + 1, len(starts))
    return np.concatenate(found)
