"""Drafts and their verification from candidates, with the tokens of plain decoding whatever the draft says.

::

    pick[i]  = the target's choice after the prompt and draft[:i]          all positions of one call of the model
    accepted = the longest draft that equals the picks; then one pick more

A pick's noise belongs to its place in the text (``headlong_seed``), not to the call that needed it: the target's tokens are
those of decoding without a draft, to the token, and a draft that samples with the same noise agrees as often as it can.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessor, LogitsProcessorList

from headlong.integrations.generation.fast_head import Reading
from headlong.integrations.generation.picking import Picks
from headlong.integrations.generation.processors import recipe

LEAST = 1e-12
"""The share of all other tokens where rounding left none."""


class Verifier(LogitsProcessorList):  # type: ignore[misc]
    """The target's processors, and in their place, while the positions of a call last, its picks."""

    def __init__(self, processors: LogitsProcessorList, picks: Picks) -> None:
        super().__init__(processors)
        self.picks = picks
        self.call: Tensor | None = None
        self.place = 0

    def __len__(self) -> int:
        """Never none: the loop would leave them out."""
        return max(1, int(super().__len__()))

    def __call__(self, input_ids: Tensor, scores: Tensor, **more: Any) -> Tensor:
        call = self.picks.taken.latest
        if call is not self.call:
            self.call, self.place = call, 0
        if call is None or self.place == call.shape[1]:  # a lookup asks the processors themselves
            answer: Tensor = super().__call__(input_ids, scores, **more)
            return answer
        hidden = call[:, self.place].detach()
        self.place += 1
        return torch.zeros_like(scores).scatter_(1, self.picks.of(hidden, input_ids)[:, None], 1.0)


class Draft:
    """An accelerated model whose ``generate`` drafts from candidates; all else of it is the model's."""

    def __init__(self, model: GenerationMixin, head: Reading, seed: int | None, first: int) -> None:
        self._model, self._head, self._seed, self._first = model, head, seed, first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, **options: Any) -> Any:
        decode = functools.partial(_drafted, head=self._head, seed=self._seed, first=self._first)
        return self._model.generate(custom_generate=decode, **options)


def _drafted(
    model: GenerationMixin, input_ids: Tensor, logits_processor: LogitsProcessorList, *, head: Reading, seed: int | None,
    first: int, **asked: Any,
) -> Any:  # fmt: skip
    found = recipe(logits_processor, head.out_features)
    if isinstance(found, str):
        head.fall_back(found)
        with head.dense(found):
            return type(model)._sample(model, input_ids, logits_processor=logits_processor, **asked)  # noqa: SLF001
    with head.taking() as taken:
        marks = _Marks(Picks(head, taken, found, seed, first))
        return type(model)._sample(model, input_ids, logits_processor=marks, **asked)  # noqa: SLF001


class _Marks(LogitsProcessor):  # type: ignore[misc]
    """The draft's pick with its own probability, by which transformers decides how long a draft is worth its while."""

    def __init__(self, picks: Picks) -> None:
        self.picks = picks

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        head, hidden = self.picks.head, self.picks.taken.hidden[:, -1].detach()
        ids = self.picks.of(hidden, input_ids)
        chance = head.engine.log_prob(hidden, ids[:, None]).log_probs.exp()
        others = (1 - chance).clamp_min(LEAST) / (head.out_features - 1)
        line = others.log().to(scores.dtype).repeat(1, head.out_features)
        marks: Tensor = line.scatter_(1, ids[:, None], torch.maximum(chance, 2 * others).log().to(scores.dtype))
        return marks
