"""A model's own sampling with the library's noise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
)

from headlong.engines.reference.gumbel import gumbels


class Noise(LogitsProcessor):  # type: ignore[misc]
    """Adds the Gumbel of each (step, row, token): the argmax of what comes out is a sample."""

    def __init__(self, seed: int) -> None:
        self.seed, self.step = seed, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        classes = np.arange(scores.shape[1], dtype=np.int64)
        rows = [gumbels(self.seed, self.step * len(scores) + row, 0, classes) for row in range(len(scores))]
        self.step += 1
        return scores.double() + torch.from_numpy(np.stack(rows))


def dense_with_noise(seed: int) -> Callable[..., Any]:
    """transformers' own loop and processors over the dense layer, with noise that is known."""

    def decode(
        model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **rest: Any
    ) -> Any:
        config = copy.copy(generation_config)
        noise = [Noise(seed)] if config.do_sample else []
        config.do_sample = False
        processors = LogitsProcessorList([*logits_processor, *noise])
        return model._sample(input_ids, processors, stopping_criteria, config, **rest)

    return decode
