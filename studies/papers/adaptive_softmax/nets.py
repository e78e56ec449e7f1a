"""The wide classifiers that AdaptiveSoftmax is measured on: 25,088 features, 10 classes.

::

    conv 5x5 -> ReLU -> norm -> pool 2 -> conv 5x5 (512) -> ReLU -> norm -> 7 x 7 -> dropout 0.2 -> flatten -> linear

For MNIST this is the paper's net (Baharav et al., 2024): 256 channels, two pools, 512 * 7 * 7 = 25,088 features. For
EuroSAT the paper takes VGG19 with ImageNet weights, which are not shipped here, and trains its last blocks. In its place
stand the convolutions of the recipe eurosat-cnn, frozen, averaged to 7 x 7 cells, and a last block that is trained: conv
1x1 (512) -> norm -> ReLU -> dropout 0.2 -> flatten -> linear. Both trainings are short enough for a CPU: what is measured
is the layer, not the accuracy, which is written beside it. A training that was stopped goes on from OUT/training.safetensors.

    python -m studies reproduce baharav2024:nets mnist OUT       # OUT/layer.safetensors, OUT/hidden.safetensors
    python -m studies reproduce baharav2024:nets eurosat OUT RUN  # RUN: the folder of `python -m studies train eurosat-cnn`
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.errors import OptionError
from headlong.layers.matrix import Layer


class Net(NamedTuple):
    """Training pictures and epochs, and Adam's rate."""

    pictures: int
    epochs: int
    rate: float


NETS = {"mnist": Net(6000, 2, 1e-3), "eurosat": Net(7290, 8, 1e-3)}
"""The paper trains with a rate of 0.01 until ten epochs bring nothing; a short training is steadier with 0.001."""
TUNING, TESTED = 1000, 2000
"""Hidden vectors kept of the validation and of the test pictures."""
BATCH = 64
Prepare = Callable[[NDArray[np.uint8]], Any]


def digits() -> Any:
    """The paper's features of MNIST, ``[N, 1, 28, 28] -> [N, 25088]``."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 256, 5, padding=2), nn.ReLU(), nn.BatchNorm2d(256), nn.MaxPool2d(2),
        nn.Conv2d(256, 512, 5, padding=2), nn.ReLU(), nn.BatchNorm2d(512), nn.MaxPool2d(2),
        nn.Dropout(0.2), nn.Flatten(),
    )  # fmt: skip


def land() -> Any:
    """The trained block of the stand-in for VGG19, ``[N, 128, 7, 7] -> [N, 25088]``."""
    from torch import nn

    return nn.Sequential(nn.Conv2d(128, 512, 1), nn.BatchNorm2d(512), nn.ReLU(), nn.Dropout(0.2), nn.Flatten())


def trunk(run: Path) -> Prepare:
    """The frozen convolutions of a trained ``eurosat-cnn``, 7 x 7 averages in the place of their last pool."""
    import torch

    from studies.models.harvest import trained

    stages: Any = trained(run).model.backbone.stages
    body = torch.nn.Sequential(*stages[:-1], torch.nn.AvgPool2d(2, 1))

    def prepared(images: NDArray[np.uint8]) -> Any:
        with torch.no_grad():
            parts = [body(pixels(images[start : start + BATCH])) for start in range(0, len(images), BATCH)]
        return torch.cat(parts)

    return prepared


def pixels(images: NDArray[np.uint8]) -> Any:
    """``[n, side, side, depth]`` bytes as ``[n, depth, side, side]`` numbers around 0."""
    import torch

    planes = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float().div_(127.5).sub_(1)
    return planes.contiguous(memory_format=torch.channels_last)


def train(net: Net, body: Any, inputs: Any, labels: Any, prepare: Prepare, state: Path | None = None) -> Any:
    """The linear layer, after ``net.epochs`` of Adam on cross-entropy over it and ``body``; progress on stderr.

    A batch draws by its own number, so a training that goes on from ``state`` ends where one that was never stopped does.
    """
    import torch

    from studies.models.checkpoint import Paused
    from studies.models.optimisers import products

    model = torch.nn.ModuleList([body, torch.nn.Linear(512 * 49, int(labels.max()) + 1)])
    optimiser = torch.optim.Adam(model.parameters(), lr=net.rate)
    batches, paused = len(labels) // BATCH, Paused(state, model, optimiser)
    for step in range(paused.begin(), net.epochs * batches):
        epoch, at = divmod(step, batches)
        torch.manual_seed(step)
        part = np.random.default_rng(epoch).permutation(len(labels))[at * BATCH : (at + 1) * BATCH]
        with products():
            found = body(prepare(inputs[part]))
        loss = torch.nn.functional.cross_entropy(model[1](found.float()), torch.from_numpy(labels[part]))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimiser.step()
        paused.done(step + 1)
        sys.stderr.write(f"\repoch {epoch + 1}/{net.epochs}  batch {at + 1}/{batches}  loss {float(loss.detach()):.3f}")
    sys.stderr.write("\n")
    body.eval()
    return model[1]


def features(body: Any, inputs: Any, prepare: Prepare) -> NDArray[np.float16]:
    """``[n, 25088]`` in float16, as they are stored."""
    import torch

    with torch.no_grad():
        parts = [body(prepare(inputs[start : start + BATCH])).float().numpy() for start in range(0, len(inputs), BATCH)]
    return np.concatenate(parts).astype(np.float16)


def make(name: str, out: Path, run: Path | None = None) -> None:
    """Train, and write what ``harvest`` writes: the layer and hidden vectors of validation and test pictures."""
    import torch

    from studies.data import registry
    from studies.models.harvest import write

    if name not in NETS or (name == "eurosat") != (run is not None):
        raise OptionError(f"net is {name!r}, run {run}; expected mnist, or eurosat with the folder of a trained eurosat-cnn")
    net, images = NETS[name], registry.load(name).content
    torch.manual_seed(0)
    body = (digits() if run is None else land()).to(memory_format=torch.channels_last)
    # frozen convolutions are run once, not once an epoch
    first, each = (_as_it_is, pixels) if run is None else (trunk(run), _as_it_is)
    chosen = np.random.default_rng(1).permutation(len(images.train.labels))[: net.pictures]
    head = train(net, body, first(images.train.pixels[chosen]), images.train.labels[chosen], each, out / "training.safetensors")
    layer = Layer(head.weight.detach().numpy(), head.bias.detach().numpy())
    tensors: dict[str, NDArray[Any]] = {}
    for split, part, most in (("valid", images.valid, TUNING), ("test", images.test, TESTED)):
        some = np.random.default_rng(2).permutation(len(part.labels))[:most]
        hidden = features(body, first(part.pixels[some]), each)
        right = (hidden.astype(np.float32) @ layer.weight.T + head.bias.detach().numpy()).argmax(1) == part.labels[some]
        alive = (hidden != 0).mean()
        sys.stderr.write(f"{split}: accuracy {right.mean():.4f} of {len(some)} pictures, {alive:.3f} of features are not 0\n")
        tensors |= {f"{split}_hidden": hidden, f"{split}_target": part.labels[some].astype(np.int32)}
    write(out, layer, tensors, f"25,088 features on {name}, {net.pictures} pictures, {net.epochs} epochs")


def _as_it_is(images: Any) -> Any:
    return images


def main(name: str, out: str, *run: str) -> None:
    make(name, Path(out), *map(Path, run))
