"""Beam search from candidates: each beam's best continuations with their log-probabilities, nothing elsewhere.

::

    log p = f(z) - lse                the ``keep`` best of each row can be among the ``keep`` best of all; no other can

The normaliser is within :data:`EPS`, as close as sums of float32 are sure to be, from codes, but for the engine's ``delta``, or
from all rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from headlong.answers import TopK
from headlong.dtypes import Ids
from headlong.engines.edited_row import exponents, joined, limits_of
from headlong.integrations.generation.picking import Picks, outweighing
from headlong.integrations.generation.processors import edited

EPS, SPARE = 1e-4, 16
"""What the normaliser may be off; best classes beside those that are kept, for some are forbidden."""
MOST_BY_ROWS = 32
"""Steps at most that ask all rows at once after one whose normalisers codes mostly left too open: each such doubles them."""


class BeamScores(LogitsProcessor):  # type: ignore[misc]
    """Stands where the processors stood: ``[beams, vocab]`` log-probabilities of candidates, -inf elsewhere."""

    def __init__(self, picks: Picks, keep: int) -> None:
        self.picks, self.keep, self.by_rows, self.wait = picks, keep, 0, 1

    def likeliest(self, hidden: Tensor, k: int) -> TopK:
        """The ``k`` best of each beam, and its normaliser."""
        head = self.picks.head
        coded = getattr(getattr(head.engine, "plan", None), "codes", None) is not None and head.engine.promise.delta < 1
        if self.by_rows or not coded:
            self.by_rows -= bool(self.by_rows)
            return head.by_rows.topk(hidden, k=k, eps=EPS)
        found = head.engine.topk(hidden, k=k, eps=EPS)
        if np.asarray(found.cost.dense).mean() > 1 / 2:
            self.by_rows, self.wait = self.wait, min(2 * self.wait, MOST_BY_ROWS)
        else:
            self.wait = 1
        return found

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        head = self.picks.head
        by_ids, vocab = head.by_ids, head.out_features
        hidden = self.picks.taken.hidden[:, -1].detach()
        top = found = self.likeliest(hidden, min(self.keep + SPARE, vocab))
        lse = np.asarray(found.lse)

        def log_probs(ids: list[Ids]) -> list[Any]:
            return [exponents(by_ids, hidden[row : row + 1], part) - lse[row] for row, part in enumerate(ids)]

        edits = edited(self.picks.recipe.edits, input_ids, vocab, log_probs, outweighing(by_ids, hidden))
        out = scores.new_full((len(hidden), vocab), -math.inf)
        gone = [joined(vocab, banned, ids) for banned, ids in zip(edits.banned, edits.ids, strict=True)]
        left = ~np.stack([np.isin(ids, none) for ids, none in zip(np.asarray(found.ids), gone, strict=True)])
        if any(left.sum(1) < min(self.keep, vocab)):
            top = by_ids.topk(hidden, k=min(self.keep, vocab), eps=math.inf, **limits_of(gone, vocab))
        else:
            top.ids[torch.from_numpy(~left)] = -1
        kept = torch.as_tensor(by_ids.exponents(np.asarray(top.logits)) - lse[:, None]).to(out.dtype)
        rows, places = torch.nonzero(top.ids >= 0, as_tuple=True)  # fewer than asked for may be left
        out[rows, top.ids[rows, places]] = kept[rows, places]
        for row, (ids, values) in enumerate(zip(edits.ids, edits.scores, strict=True)):
            out[row, torch.from_numpy(ids)] = torch.from_numpy(values).to(out.dtype)
        head.count(f"beams, {found.cost.path}", len(hidden))
        return out
