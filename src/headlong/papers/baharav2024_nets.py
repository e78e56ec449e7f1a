"""The wide classifiers that AdaptiveSoftmax is measured on: 25,088 features, 10 classes.

::

    conv 5x5 -> ReLU -> norm -> pool 2 -> conv 5x5 (512) -> ReLU -> norm -> 7 x 7 -> dropout 0.2 -> flatten -> linear

For MNIST this is the paper's net (Baharav et al., 2024): 256 channels, two pools, 512 * 7 * 7 = 25,088 features. For
EuroSAT the paper takes VGG19 with ImageNet weights, which are not shipped here; the same net stands in for it with a
stride of 2 at the start and an average over 7 x 7 cells at the end, as VGG19 has. The training set is cut short so that
a CPU can do it: what is measured is the layer, not the accuracy, which is recorded beside it.

    python -m headlong.papers.baharav2024_nets mnist OUT        # OUT/layer.safetensors, OUT/hidden.safetensors
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.errors import OptionError
from headlong.layers.matrix import Layer


class Net(NamedTuple):
    """``channels`` of the first convolution, its ``stride``, training pictures and epochs, Adam's rate."""

    channels: int
    stride: int
    pictures: int
    epochs: int
    rate: float


NETS = {"mnist": Net(256, 1, 6000, 2, 1e-3), "eurosat": Net(64, 2, 7290, 6, 1e-3)}
"""The paper trains with a rate of 0.01 until ten epochs bring nothing; a short training is steadier with 0.001."""
TUNING, TESTED = 1000, 2000
"""Hidden vectors kept of the validation and of the test pictures."""
BATCH = 64


def build(net: Net, depth: int, side: int) -> Any:
    """The features ``[N, depth, side, side] -> [N, 25088]``."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(depth, net.channels, 5, net.stride, padding=2), nn.ReLU(), nn.BatchNorm2d(net.channels), nn.MaxPool2d(2),
        nn.Conv2d(net.channels, 512, 5, padding=2), nn.ReLU(), nn.BatchNorm2d(512), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(7), nn.Dropout(0.2), nn.Flatten(),
    )  # fmt: skip


def pixels(images: NDArray[np.uint8]) -> Any:
    """``[n, side, side, depth]`` bytes as ``[n, depth, side, side]`` numbers around 0."""
    import torch

    planes = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float().div_(127.5).sub_(1)
    return planes.contiguous(memory_format=torch.channels_last)


def train(net: Net, pictures: Any, labels: Any, classes: int) -> tuple[Any, Any]:
    """Features and linear layer after ``net.epochs`` of Adam on cross-entropy; progress on stderr."""
    import torch

    torch.manual_seed(0)
    body = build(net, pictures.shape[3], pictures.shape[1]).to(memory_format=torch.channels_last)
    head = torch.nn.Linear(512 * 49, classes)
    optimiser = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=net.rate)
    rng = np.random.default_rng(0)
    for epoch in range(net.epochs):
        order, seen, total = rng.permutation(len(labels)), 0, 0.0
        for start in range(0, len(order) - BATCH + 1, BATCH):
            part = order[start : start + BATCH]
            with torch.autocast("cpu", torch.bfloat16):
                found = body(pixels(pictures[part]))
            loss = torch.nn.functional.cross_entropy(head(found.float()), torch.from_numpy(labels[part]))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
            optimiser.step()
            seen, total = seen + 1, total + float(loss.detach())
            sys.stderr.write(f"\repoch {epoch + 1}/{net.epochs}  {start + BATCH}/{len(order)}  loss {total / seen:.3f}")
        sys.stderr.write("\n")
    body.eval()
    return body, head


def features(body: Any, pictures: NDArray[np.uint8]) -> NDArray[np.float16]:
    """``[n, 25088]`` in float16, as they are stored."""
    import torch

    with torch.no_grad():
        parts = [body(pixels(pictures[start : start + BATCH])).float().numpy() for start in range(0, len(pictures), BATCH)]
    return np.concatenate(parts).astype(np.float16)


def make(name: str, out: Path) -> None:
    """Train, and write what ``headlong harvest`` writes: the layer and hidden vectors of validation and test pictures."""
    from headlong.data import registry
    from headlong.models.harvest import write

    if name not in NETS:
        raise OptionError(f"net is {name!r}; expected one of {', '.join(NETS)}")
    net, images = NETS[name], registry.load(name).content
    chosen = np.random.default_rng(1).permutation(len(images.train.labels))[: net.pictures]
    body, head = train(net, images.train.pixels[chosen], images.train.labels[chosen], len(images.classes))
    layer = Layer(head.weight.detach().numpy(), head.bias.detach().numpy())
    tensors: dict[str, NDArray[Any]] = {}
    for split, part, most in (("valid", images.valid, TUNING), ("test", images.test, TESTED)):
        some = np.random.default_rng(2).permutation(len(part.labels))[:most]
        hidden = features(body, part.pixels[some])
        right = (hidden.astype(np.float32) @ layer.weight.T + head.bias.detach().numpy()).argmax(1) == part.labels[some]
        sys.stderr.write(f"{split}: accuracy {right.mean():.4f} of {len(some)} pictures\n")
        tensors |= {f"{split}_hidden": hidden, f"{split}_target": part.labels[some].astype(np.int32)}
    write(out, layer, tensors, f"conv 5x5 x 2, 25,088 features, on {name}, {net.pictures} pictures, {net.epochs} epochs")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m headlong.papers.baharav2024_nets mnist|eurosat OUT")
    make(sys.argv[1], Path(sys.argv[2]))
