"""Batches by number: ``feed.batch(epoch, step)`` is the same batch whoever asks and whenever::

    text    columns = stream[: columns * rows].reshape(columns, rows).T;  inputs = columns[a:b], target = columns[a+1:b+1]
    images  order = shuffle(seed, epoch);                                 a batch is order[step * batch : ...], bent at random
    pairs   order = shuffle(seed, epoch) within one source length         a batch is sentences of one source length

Nothing is remembered between calls but what can be computed again, so a run that was killed goes on in the middle of an
epoch with exactly the batches it would have seen. With several processes each takes its ``Share`` of every batch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headlong.errors import DataError, OptionError
from studies.data.images import Split as Pictures
from studies.data.translation import Split as Sentences
from studies.models.backbones.base import Batch

Index = NDArray[np.int64]
PADDING = -1


class Share(NamedTuple):
    """This process's part of every batch."""

    rank: int = 0
    world: int = 1

    def of(self, batch: int) -> slice:
        """The rows or columns of a batch that are this process's; OptionError where they do not come out even."""
        if batch % self.world:
            raise OptionError(f"a batch of {batch} on {self.world} processes; expected a multiple of {self.world}")
        each = batch // self.world
        return slice(self.rank * each, (self.rank + 1) * each)


ALONE = Share()


class Feed(Protocol):
    """An epoch is ``steps(epoch)`` batches; ``stateful`` says that each goes on where the one before it stopped."""

    stateful: bool

    def steps(self, epoch: int) -> int: ...

    def batch(self, epoch: int, step: int) -> Batch: ...


class TextFeed:
    """Windows over a stream of ids cut into ``batch`` columns.

    With ``jitter`` the windows' lengths vary as in AWD-LSTM: N(window, 5), one in twenty about half as long, at least 5,
    and the learning rate is scaled with the length.
    """

    def __init__(
        self, ids: NDArray[np.int32], batch: int, window: int, share: Share = ALONE, *, seed: int = 0, jitter: bool = False
    ) -> None:
        rows = len(ids) // batch if batch > 0 else 0
        if rows <= window:
            raise DataError(
                f"a text of {len(ids)} tokens in {batch} columns is shorter than the window of {window}; expected "
                f"{batch * (window + 1)} tokens or more: give more text, or a smaller batch or window"
            )
        columns = torch.from_numpy(ids[: rows * batch].astype(np.int64)).view(batch, rows)
        self._columns = columns[share.of(batch)].T.contiguous()
        self._window, self._seed, self._jitter = window, seed, jitter
        self.stateful = True

    def steps(self, epoch: int) -> int:
        return len(self._cuts(epoch)) - 1

    def batch(self, epoch: int, step: int) -> Batch:
        start, stop = self._cuts(epoch)[step : step + 2]
        target = self._columns[start + 1 : stop + 1]
        scale = (stop - start) / self._window if self._jitter else 1.0
        return Batch((self._columns[start:stop],), target.flatten(), scale)

    @lru_cache(maxsize=2)  # noqa: B019  # a feed lives as long as its run
    def _cuts(self, epoch: int) -> list[int]:
        last = len(self._columns) - 1
        if not self._jitter:
            return [*range(0, last, self._window), last]
        random = np.random.default_rng([self._seed, epoch])
        cuts = [0]
        while cuts[-1] < last:
            middle = self._window if random.random() < 0.95 else self._window / 2
            cuts.append(min(last, cuts[-1] + max(5, int(random.normal(middle, 5)))))
        return cuts


class ImageFeed:
    """Pictures in [0, 1] less their channels' mean, over their spread; ``bend``: ``"none"``, ``"shift"`` or ``"turn"``.

    ``"shift"`` moves each picture by up to two pixels, ``"turn"`` flips and turns by right angles as well.
    """

    stateful = False

    def __init__(
        self, pictures: Pictures, batch: int, share: Share = ALONE, *, seed: int | None = None, bend: str = "none"
    ) -> None:
        if len(pictures.labels) < 1 or (seed is not None and len(pictures.labels) < batch):
            raise DataError(f"{len(pictures.labels)} pictures in batches of {batch}; expected one batch or more")
        if bend not in ("none", "shift", "turn"):
            raise OptionError(f"bend={bend!r}; expected none, shift or turn")
        self._pixels = torch.from_numpy(np.ascontiguousarray(pictures.pixels.transpose(0, 3, 1, 2)))
        self._labels = torch.from_numpy(pictures.labels)
        self._batch, self._share, self._seed, self._bend = batch, share, seed, bend

    def steps(self, epoch: int) -> int:
        """Training drops what does not fill a batch; without a seed nothing is dropped or shuffled."""
        count = len(self._labels)
        return count // self._batch if self._seed is not None else -(-count // self._batch)

    def batch(self, epoch: int, step: int) -> Batch:
        rows = torch.from_numpy(self._order(epoch)[step * self._batch : (step + 1) * self._batch].copy())
        if self._seed is None:
            return Batch((self._scaled(self._pixels[rows]),), self._labels[rows])
        random = np.random.default_rng([self._seed, epoch, step])
        pixels = self._bent(self._pixels[rows], random)
        part = self._share.of(self._batch)
        return Batch((self._scaled(pixels[part]),), self._labels[rows[part]])

    @lru_cache(maxsize=2)  # noqa: B019
    def _order(self, epoch: int) -> Index:
        count = len(self._labels)
        return np.arange(count) if self._seed is None else np.random.default_rng([self._seed, epoch]).permutation(count)

    def _scaled(self, pixels: Tensor) -> Tensor:
        return (pixels.float() / 255 - 0.3) / 0.3

    def _bent(self, pixels: Tensor, random: np.random.Generator) -> Tensor:
        if self._bend == "none":
            return pixels
        count, _, height, width = pixels.shape
        padded = torch.nn.functional.pad(pixels, (2, 2, 2, 2))
        across, down = (torch.from_numpy(random.integers(0, 5, count)) for _ in range(2))
        rows = (down[:, None] + torch.arange(height))[:, :, None]
        columns = (across[:, None] + torch.arange(width))[:, None, :]
        moved = padded.permute(0, 2, 3, 1)[torch.arange(count)[:, None, None], rows, columns].permute(0, 3, 1, 2)
        if self._bend == "shift":
            return moved
        transposed = moved.clone()
        for turns in range(8):  # the eight ways to lay a square
            chosen = torch.arange(turns, count, 8)
            laid = torch.rot90(moved[chosen], turns % 4, (2, 3))
            transposed[chosen] = laid.flip(3) if turns >= 4 else laid
        return transposed


class PairFeed:
    """Sentence pairs of one source length at a time; ``target`` holds the real words only, in the order of ``real``."""

    stateful = False

    def __init__(self, sentences: Sentences, batch: int, start: int, share: Share = ALONE, *, seed: int | None = None) -> None:
        if not sentences.source:
            raise DataError("there are no sentence pairs to train on; expected the training files of this data set")
        self._sentences, self._batch, self._start = sentences, batch, start
        self._share, self._seed = share, seed
        if share.world > 1:
            raise OptionError("sentence pairs come in batches of uneven size; train them in one process")

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
