"""A classifier's training that was stopped ends where one that was never stopped does."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from studies.models import checkpoint  # noqa: E402
from studies.papers.adaptive_softmax import nets  # noqa: E402


def body() -> torch.nn.Module:
    torch.manual_seed(0)
    inner, outer = torch.nn.Linear(3, 4), torch.nn.Linear(4, 512 * 49)
    return torch.nn.Sequential(inner, torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2), outer)


def trained(inputs: torch.Tensor, labels: np.ndarray, state: Path | None, stop: int | None = None) -> list[np.ndarray]:
    """Parameters of the body and the layer after two epochs; with ``stop``, the process ends after so many batches."""
    part, calls = body(), 0

    def prepared(rows: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if stop is not None and calls > stop:
            raise KeyboardInterrupt
        return rows

    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nets, "pixels", prepared)
        head = nets.train(nets.Net(0, 2, 1e-2), part, inputs, labels, state)
    return [p.detach().numpy() for p in (*part.parameters(), *part.buffers(), *head.parameters())]


def test_a_stopped_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "Paused", partial(checkpoint.Paused, every=2))
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.standard_normal((4 * nets.BATCH, 3)).astype(np.float32))
    labels = rng.integers(0, 3, len(inputs))
    at_once = trained(inputs, labels, None)
    state = tmp_path / "out" / "training.safetensors"
    with pytest.raises(KeyboardInterrupt):
        trained(inputs, labels, state, stop=5)  # after its second batch was saved
    resumed = trained(inputs, labels, state)
    for one, other in zip(at_once, resumed, strict=True):
        np.testing.assert_array_equal(one, other)
