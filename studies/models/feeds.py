"""Batches by number: ``feed.batch(epoch, step)`` is the same batch whoever asks and whenever::

    text    columns = stream[: columns * rows].reshape(columns, rows).T;  inputs = columns[a:b], target = columns[a+1:b+1]
    pairs   order = shuffle(seed, epoch) within one source length         a batch is sentences of one source length

Nothing is remembered between calls but what can be computed again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headlong.errors import DataError
from studies.data.translation import Split as Sentences
from studies.models.backbones.base import Batch

Index = NDArray[np.int64]
PADDING = -1


class Feed(Protocol):
    """An epoch is ``steps(epoch)`` batches; ``stateful`` says that each goes on where the one before it stopped."""

    stateful: bool

    def steps(self, epoch: int) -> int: ...

    def batch(self, epoch: int, step: int) -> Batch: ...


class TextFeed:
    """Windows over a stream of ids cut into ``batch`` columns."""

    def __init__(self, ids: NDArray[np.int32], batch: int, window: int) -> None:
        rows = len(ids) // batch if batch > 0 else 0
        if rows <= window:
            raise DataError(
                f"a text of {len(ids)} tokens in {batch} columns is shorter than the window of {window}; expected "
                f"{batch * (window + 1)} tokens or more: give more text, or a smaller batch or window"
            )
        columns = torch.from_numpy(ids[: rows * batch].astype(np.int64)).view(batch, rows)
        self._columns, self._window, self.stateful = columns.T.contiguous(), window, True

    def steps(self, epoch: int) -> int:
        return -(-(len(self._columns) - 1) // self._window)

    def batch(self, epoch: int, step: int) -> Batch:
        start = step * self._window
        stop = min(start + self._window, len(self._columns) - 1)
        return Batch((self._columns[start:stop],), self._columns[start + 1 : stop + 1].flatten())


class PairFeed:
    """Sentence pairs of one source length at a time; ``target`` holds the real words only, in the order of ``real``."""

    stateful = False

    def __init__(self, sentences: Sentences, batch: int, start: int, *, seed: int | None = None) -> None:
        if not sentences.source:
            raise DataError("there are no sentence pairs to train on; expected the training files of this data set")
        self._sentences, self._batch, self._start = sentences, batch, start
        self._seed = seed

    def steps(self, epoch: int) -> int:
        return len(self.groups(epoch))

    @lru_cache(maxsize=2)  # noqa: B019
    def groups(self, epoch: int) -> list[Index]:
        """The rows of each batch; shuffled within a length and between batches where there is a seed."""
        lengths = np.array([len(ids) for ids in self._sentences.source])
        random = np.random.default_rng([self._seed, epoch]) if self._seed is not None else None
        order = np.arange(len(lengths)) if random is None else random.permutation(len(lengths))
        order = order[np.argsort(lengths[order], kind="stable")]
        edges = np.flatnonzero(np.diff(lengths[order])) + 1
        groups = [run[at : at + self._batch] for run in np.split(order, edges) for at in range(0, len(run), self._batch)]
        return groups if random is None else [groups[i] for i in random.permutation(len(groups))]

    def batch(self, epoch: int, step: int) -> Batch:
        rows = self.groups(epoch)[step]
        after = _padded([self._sentences.target[row] for row in rows])
        real = after != PADDING
        before = after.roll(1, 0).clamp(min=0)
        before[0] = self._start
        return Batch((self.source(step, epoch), before, real), after[real])

    def source(self, step: int, epoch: int = 0) -> Tensor:
        """``[time, batch]``: the sources of a batch, all of one length."""
        rows = self.groups(epoch)[step]
        return torch.from_numpy(np.stack([self._sentences.source[row] for row in rows], 1).astype(np.int64))


def _padded(sentences: list[NDArray[np.int32]]) -> Tensor:
    """``[longest, batch]``."""
    padded = np.full((max(map(len, sentences)), len(sentences)), PADDING, np.int64)
    for column, ids in enumerate(sentences):
        padded[: len(ids), column] = ids
    return torch.from_numpy(padded)
