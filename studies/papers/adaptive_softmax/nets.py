"""The wide classifier that AdaptiveSoftmax is measured on: 25,088 features of pictures, 10 classes (Baharav et al., 2024)::

    conv 5x5 -> ReLU -> norm -> pool 2 -> conv 5x5 (512) -> ReLU -> norm -> pool 2 -> dropout 0.2 -> flatten -> linear

It is the paper's network for MNIST. Its network for EuroSAT is VGG19 with ImageNet's weights, which ends in 25,088 features as
well; in its place this one is trained on EuroSAT's pictures, scaled to MNIST's size. Trainings are short enough for a CPU: what
is measured is the layer, not the accuracy, which is written beside it.

    python -m studies reproduce baharav2024:nets mnist OUT       # OUT/layer.safetensors, OUT/hidden.safetensors
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong import Layer
from headlong.errors import OptionError

EPOCHS, RATE = {"mnist": 1, "eurosat": 6}, 1e-3
"""Over all training pictures, 55,000 and 6,875; and Adam's rate. The paper trains with a rate of 0.01 until ten epochs bring
nothing; a short training is steadier with 0.001."""
TESTED, BATCH = 2000, 64
"""Hidden vectors kept of the test pictures, at most; pictures of a step."""


def network(depth: int) -> Any:
    """The paper's features of pictures of 28 x 28, ``[N, depth, 28, 28] -> [N, 25088]``."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(depth, 256, 5, padding=2), nn.ReLU(), nn.BatchNorm2d(256), nn.MaxPool2d(2),
        nn.Conv2d(256, 512, 5, padding=2), nn.ReLU(), nn.BatchNorm2d(512), nn.MaxPool2d(2),
        nn.Dropout(0.2), nn.Flatten(),
    )  # fmt: skip


def pixels(images: NDArray[np.uint8]) -> Any:
    """``[n, side, side, depth]`` bytes as ``[n, depth, side, side]`` numbers around 0."""
    import torch

    planes = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float().div_(127.5).sub_(1)
    return planes.contiguous(memory_format=torch.channels_last)


def train(body: Any, inputs: Any, labels: Any, epochs: int) -> Any:
    """The linear layer, after ``epochs`` of Adam on cross-entropy over it and ``body``."""
    import torch

    from studies.models.optimisers import products
    from studies.papers.shown import progress

    model = torch.nn.ModuleList([body, torch.nn.Linear(512 * 49, int(labels.max()) + 1)])
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    batches, tell = len(labels) // BATCH, progress("batch")
    for step in range(epochs * batches):
        epoch, at = divmod(step, batches)
        torch.manual_seed(step)
        part = np.random.default_rng(epoch).permutation(len(labels))[at * BATCH : (at + 1) * BATCH]
        with products():
            found = body(pixels(inputs[part]))
        loss = torch.nn.functional.cross_entropy(model[1](found.float()), torch.from_numpy(labels[part]))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimiser.step()
        tell(step + 1, epochs * batches)
    body.eval()
    return model[1]


def features(body: Any, inputs: Any) -> NDArray[np.float16]:
    """``[n, 25088]`` in float16, as they are stored."""
    import torch

    with torch.no_grad():
        parts = [body(pixels(inputs[start : start + BATCH])).float().numpy() for start in range(0, len(inputs), BATCH)]
    return np.concatenate(parts).astype(np.float16)


def main(name: str, out: str) -> None:
    """Train, and write what ``harvest`` writes: the layer and hidden vectors of test pictures."""
    import torch

    from studies.data import load
    from studies.models.harvest import write

    if name not in EPOCHS:
        raise OptionError(f"{name!r} has no network here; expected one of {', '.join(EPOCHS)}")
    images = load(name).content
    torch.manual_seed(0)
    body = network(images.train.pixels.shape[-1]).to(memory_format=torch.channels_last)
    head = train(body, images.train.pixels, images.train.labels, EPOCHS[name])
    layer = Layer(head.weight.detach().numpy(), head.bias.detach().numpy())
    some = np.random.default_rng(2).permutation(len(images.test.labels))[:TESTED]
    hidden, target = features(body, images.test.pixels[some]), images.test.labels[some]
    right = (hidden.astype(np.float32) @ layer.weight.T + head.bias.detach().numpy()).argmax(1) == target
    about = f"25,088 features on {name}, {len(images.train.labels)} pictures, {EPOCHS[name]} epochs, {right.mean():.4f} right"
    sys.stderr.write(f"{about} of {len(some)}\n")
    write(Path(out), layer, {"test_hidden": hidden, "test_target": target.astype(np.int32)}, about)
