"""What native search answers that is no reader of a whole layer: arrays by name.

``rows``, ``bytes`` and ``dense [batch]``: rows scored and bytes read for each query, and whether all rows were read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headlong.dtypes import Doubles, Flags, Floats, Ids


class FoundByBlocks(NamedTuple):
    """``ids, logits [batch, k]``; how many blocks were ``opened``, and whether the search was ``done [batch]``."""

    ids: Ids
    logits: Doubles
    rows: Ids
    bytes: Doubles
    opened: Doubles
    done: Flags


class FoundByCoordinates(NamedTuple):
    """``values, ids [batch, k]``, ``lse [batch]``; how many entries were read, how many classes in full, how many were
    answered; ``estimates [batch or 0, vocab]``."""

    values: Doubles
    ids: Ids
    lse: Doubles
    pulls: Ids
    full: Ids
    rows: Ids
    estimates: Doubles | Floats

    @property
    def bytes(self) -> Doubles:
        """Four for each entry."""
        return np.asarray(4.0 * self.pulls, np.float64)


class FoundOfExpert(NamedTuple):
    """``logits, ids [batch, k]``; of each query's ``expert [batch]`` the normaliser, and how far logits and that may be off."""

    logits: Doubles
    ids: Ids
    lse: Doubles
    logit_error: Doubles
    lse_error: Doubles
    proved: Flags
    rows: Ids
    bytes: Doubles
    dense: Flags
    expert: Ids


class DrawsOfExpert(NamedTuple):
    """``ids, logits, score, proved [batch, n]``, ``expert [batch]``."""

    ids: Ids
    logits: Doubles
    score: Doubles
    proved: Flags
    expert: Ids
