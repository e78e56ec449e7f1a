"""A head trained on fixed features: what :class:`headlong.integrations.sklearn.HeadClassifier` does in ``fit``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headlong.heads import build_head


def trained(rows: NDArray[np.float32], target: NDArray[np.int64], vocab: int, settings: Mapping[str, Any]) -> Any:
    """``head.to_layer()`` after Adam over shuffled batches of ``rows [n, dim]`` and ``target [n]``."""
    state = settings["random_state"]
    seed = int(np.random.default_rng(state).integers(2**31)) if isinstance(state, (int, type(None))) else _drawn(state)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = build_head(settings["head"], rows.shape[1], vocab, **(settings["options"] or {}))
        optimiser = torch.optim.Adam(head.parameters(), lr=settings["rate"])
        features, classes = torch.from_numpy(np.ascontiguousarray(rows)), torch.from_numpy(target.astype(np.int64))
        for _ in range(settings["epochs"]):
            for batch in torch.split(torch.randperm(len(rows)), settings["batch_size"]):
                optimiser.zero_grad(set_to_none=True)
                head(features[batch], classes[batch]).loss.backward()
                optimiser.step()
    return head.eval().to_layer()


def _drawn(state: np.random.RandomState) -> int:
    return int(state.randint(2**31 - 1))
