"""The families of models whose body llama.cpp runs for us, and what each does with a token's row on its way in.

::

    first layer's input = scale * token_embd[token]

llama.cpp scales the rows of most families in its graph, whether they come as ids or as vectors. Where it scales ids alone,
the vectors that we pass in are scaled here. What the graph does to the logits is :mod:`headlong.layers.gguf_logits`. Both are
checked when a model is loaded: see :func:`headlong.integrations.llama_cpp.body.Body.check`.
"""

from __future__ import annotations

import math

from headlong.errors import UnsupportedError, an
from headlong.layers.gguf_file import GgufFile

FAMILIES = (
    "falcon-h1", "gemma", "gemma2", "gemma3", "granite", "llama", "mistral3", "phi3", "qwen2", "qwen3", "smollm3",
)  # fmt: skip
"""By ``general.architecture``; Mistral's older models are ``llama``."""
SCALED = {"gemma3": math.sqrt}
"""The scale of a row of ``dim`` numbers, where it is not 1."""


def input_scale(file: GgufFile, dim: int) -> float:
    """What a token's row is multiplied by; UnsupportedError for a family that was never tried."""
    family = str(file.parts[0].value("general.architecture"))
    if family not in FAMILIES:
        raise UnsupportedError(
            f"{file.name} is {an(family)} model; bodies are run of {', '.join(FAMILIES)}: use llama_cpp.Llama for this one"
        )
    return SCALED[family](dim) if family in SCALED else 1.0
