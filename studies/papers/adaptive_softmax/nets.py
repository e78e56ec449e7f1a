"""The wide classifier that AdaptiveSoftmax is measured on: 25,088 features of MNIST, 10 classes (Baharav et al., 2024)::

    conv 5x5 -> ReLU -> norm -> pool 2 -> conv 5x5 (512) -> ReLU -> norm -> pool 2 -> dropout 0.2 -> flatten -> linear

A training short enough for a CPU: what is measured is the layer, not the accuracy, which is written beside it.

    python -m studies reproduce baharav2024:nets OUT       # OUT/layer.safetensors, OUT/hidden.safetensors
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import Layer


class Net(NamedTuple):
    """Training pictures and epochs, and Adam's rate."""

    pictures: int
    epochs: int
    rate: float


MNIST = Net(6000, 2, 1e-3)
"""The paper trains with a rate of 0.01 until ten epochs bring nothing; a short training is steadier with 0.001."""
TUNING, TESTED = 1000, 2000
"""Hidden vectors kept of the validation and of the test pictures."""
BATCH = 64


def digits() -> Any:
    """The paper's features of MNIST, ``[N, 1, 28, 28] -> [N, 25088]``."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 256, 5, padding=2), nn.ReLU(), nn.BatchNorm2d(256), nn.MaxPool2d(2),
        nn.Conv2d(256, 512, 5, padding=2), nn.ReLU(), nn.BatchNorm2d(512), nn.MaxPool2d(2),
        nn.Dropout(0.2), nn.Flatten(),
    )  # fmt: skip


def pixels(images: NDArray[np.uint8]) -> Any:
    """``[n, side, side, depth]`` bytes as ``[n, depth, side, side]`` numbers around 0."""
    import torch

    planes = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float().div_(127.5).sub_(1)
    return planes.contiguous(memory_format=torch.channels_last)


def train(net: Net, body: Any, inputs: Any, labels: Any) -> Any:
    """The linear layer, after ``net.epochs`` of Adam on cross-entropy over it and ``body``; progress on stderr."""
    import torch

    from studies.models.optimisers import products

    model = torch.nn.ModuleList([body, torch.nn.Linear(512 * 49, int(labels.max()) + 1)])
    optimiser = torch.optim.Adam(model.parameters(), lr=net.rate)
    batches = len(labels) // BATCH
    for step in range(net.epochs * batches):
        epoch, at = divmod(step, batches)
        torch.manual_seed(step)
        part = np.random.default_rng(epoch).permutation(len(labels))[at * BATCH : (at + 1) * BATCH]
        with products():
            found = body(pixels(inputs[part]))
        loss = torch.nn.functional.cross_entropy(model[1](found.float()), torch.from_numpy(labels[part]))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimiser.step()
        sys.stderr.write(f"\repoch {epoch + 1}/{net.epochs}  batch {at + 1}/{batches}  loss {float(loss.detach()):.3f}")
    sys.stderr.write("\n")
    body.eval()
    return model[1]


def features(body: Any, inputs: Any) -> NDArray[np.float16]:
    """``[n, 25088]`` in float16, as they are stored."""
    import torch

    with torch.no_grad():
        parts = [body(pixels(inputs[start : start + BATCH])).float().numpy() for start in range(0, len(inputs), BATCH)]
    return np.concatenate(parts).astype(np.float16)


def main(out: str) -> None:
    """Train, and write what ``harvest`` writes: the layer and hidden vectors of validation and test pictures."""
    import torch

    from studies.data import load
    from studies.models.harvest import write

    images, folder = load("mnist").content, Path(out)
    torch.manual_seed(0)
    body = digits().to(memory_format=torch.channels_last)
    chosen = np.random.default_rng(1).permutation(len(images.train.labels))[: MNIST.pictures]
    head = train(MNIST, body, images.train.pixels[chosen], images.train.labels[chosen])
    layer = Layer(head.weight.detach().numpy(), head.bias.detach().numpy())
    tensors: dict[str, NDArray[Any]] = {}
    for split, part, most in (("valid", images.valid, TUNING), ("test", images.test, TESTED)):
        some = np.random.default_rng(2).permutation(len(part.labels))[:most]
        hidden = features(body, part.pixels[some])
        right = (hidden.astype(np.float32) @ layer.weight.T + head.bias.detach().numpy()).argmax(1) == part.labels[some]
        sys.stderr.write(f"{split}: accuracy {right.mean():.4f} of {len(some)} pictures\n")
        tensors |= {f"{split}_hidden": hidden, f"{split}_target": part.labels[some].astype(np.int32)}
    write(folder, layer, tensors, f"25,088 features on mnist, {MNIST.pictures} pictures, {MNIST.epochs} epochs")
