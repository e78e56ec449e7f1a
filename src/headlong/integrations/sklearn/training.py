"""A head trained on fixed features: what :class:`headlong.integrations.sklearn.HeadClassifier` does in ``fit``."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse

from headlong.dtypes import Ids
from headlong.heads import build_head
from headlong.heads.base import Head

Numbers = NDArray[Any]


class HeadTraining:
    """A head and its Adam; ``layer()`` is what it has learned so far.

    ``kind``      float32 or float64: what is computed in
    ``settings``  those of the classifier: ``head, options, batch_size, rate, random_state``
    """

    def __init__(self, dim: int, vocab: int, kind: np.dtype[Any], settings: Mapping[str, Any]) -> None:
        state = settings["random_state"]
        self.seed = int(np.random.default_rng(state).integers(2**31)) if isinstance(state, (int, type(None))) else _drawn(state)
        self.batch_size = settings["batch_size"]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.head: Head = build_head(settings["head"], dim, vocab, **(settings["options"] or {}))
            self._random = torch.get_rng_state()
        self.kind = np.dtype(kind)
        self.head = self.head.double() if self.kind == np.float64 else self.head
        self._rate = settings["rate"]
        self.restart()

    def restart(self) -> None:
        """A fresh Adam, which keeps two numbers for every weight: the old one's are let go."""
        self._optimiser = torch.optim.Adam(self.head.parameters(), lr=self._rate)

    def passes(self, count: int, rows: Numbers, scale: Numbers, target: Ids, weight: Numbers | None = None) -> None:
        """``count`` times over shuffled batches of ``rows [n, dim]``, arrays or sparse, each times ``scale [dim]``.

        ``weight [n]``: the loss of a batch is ``sum(weight * loss) / (its rows * the mean weight)``.
        """
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            self.head.train()
            shares = None if weight is None else torch.from_numpy(weight / weight.mean())
            for _ in range(count):
                for batch in torch.split(torch.randperm(rows.shape[0]), self.batch_size):
                    self._step(batch, rows, scale, target, shares)
            self._random = torch.get_rng_state()

    def _step(self, batch: torch.Tensor, rows: Numbers, scale: Numbers, target: Ids, shares: torch.Tensor | None) -> None:
        chosen = rows[batch.numpy()]
        features = (chosen.toarray() if issparse(chosen) else chosen) * scale
        self._optimiser.zero_grad(set_to_none=True)
        found = self.head(torch.from_numpy(features.astype(self.kind)), torch.from_numpy(target[batch.numpy()]))
        loss = found.loss if shares is None else -(shares[batch] * found.output).mean()
        loss.backward()
        self._optimiser.step()

    def layer(self) -> Any:
        """Finished, in float32: what engines read."""
        head = copy.deepcopy(self.head).float() if self.kind == np.float64 else self.head
        return head.eval().to_layer()


def _drawn(state: np.random.RandomState) -> int:
    return int(state.randint(2**31 - 1))
