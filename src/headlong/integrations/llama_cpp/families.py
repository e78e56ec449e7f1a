"""The families of models whose body llama.cpp runs for us, and what each does with a token's row on its way in.

::

    first layer's input = scale * token_embd[token]

llama.cpp scales the rows of most families in its graph, whether they come as ids or as vectors. Where it scales ids alone,
the vectors that we pass in are scaled here. What the graph does to the logits is :mod:`headlong.layers.gguf_logits`. Both are
checked when a model is loaded: see :func:`headlong.integrations.llama_cpp.body.Body.check`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from headlong.errors import UnsupportedError
from headlong.layers.gguf_file import GgufFile


def _one(dim: int) -> float:
    return 1.0


FAMILIES: dict[str, Callable[[int], float]] = {
    "falcon-h1": _one,
    "gemma": _one,
    "gemma2": _one,
    "gemma3": math.sqrt,
    "granite": _one,
    "llama": _one,
    "mistral3": _one,
    "phi3": _one,
    "qwen2": _one,
    "qwen3": _one,
    "smollm3": _one,
}
"""By ``general.architecture`` (Mistral's older models are ``llama``): the scale of a row of ``dim`` numbers."""


def input_scale(file: GgufFile, dim: int) -> float:
    """What a token's row is multiplied by; UnsupportedError for a family that was never tried."""
    family = str(file.parts[0].value("general.architecture"))
    if family not in FAMILIES:
        raise UnsupportedError(
            f"{file.name} is a {family} model; bodies are run of {', '.join(FAMILIES)}: use llama_cpp.Llama for this one"
        )
    return FAMILIES[family](dim)
