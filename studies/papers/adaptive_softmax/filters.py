"""Wide features of which few are not 0, as VGG19's on EuroSAT: 154 of 25,088. No network makes them, and none is trained.

::

    512 patches of 6 x 6 pixels of training pictures, mean 0 and length 1, are the filters
    response [512, 7, 7]   the largest product of a filter with a place of the picture, in each of 7 x 7 cells
    feature  = max(0, response - the picture's 155th largest) / its mean over what is left
    a linear layer [10, 25088], trained by Adam

    python -m studies reproduce baharav2024:filters OUT      # OUT/layer.safetensors, OUT/hidden.safetensors

A stand-in: it has the shape and the sparsity of the paper's layer, not its pretrained features; the accuracy is on stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.layers.matrix import Layer
from studies.papers.adaptive_softmax.nets import BATCH, TESTED, TUNING, pixels

FILTERS, SIDE, CELLS, ALIVE = 512, 6, 7, 154
PICTURES, EPOCHS, RATE = 6000, 10, 3e-3


def patches(images: NDArray[np.uint8], rng: np.random.Generator) -> Any:
    """``[FILTERS, depth, SIDE, SIDE]`` from places of pictures, those without any contrast left out."""
    import torch

    found: list[Any] = []
    while len(found) < FILTERS:
        picture = pixels(images[rng.integers(len(images))][None])[0]
        top, left = rng.integers(0, picture.shape[1] - SIDE + 1, 2)
        patch = picture[:, top : top + SIDE, left : left + SIDE]
        patch = patch - patch.mean()
        if float(patch.norm()) > 1e-3:
            found.append(patch / patch.norm())
    return torch.stack(found)


def sparse(images: NDArray[np.uint8], filters: Any) -> tuple[Any, Any]:
    """``(ids, values) [n, ALIVE]``: the features of each picture that are not 0."""
    import torch

    ids, values = [], []
    for start in range(0, len(images), BATCH):
        found = torch.nn.functional.conv2d(pixels(images[start : start + BATCH]), filters, stride=2)
        cells = torch.nn.functional.adaptive_max_pool2d(found, CELLS).flatten(1)
        best = cells.topk(ALIVE + 1, 1)
        above = best.values[:, :ALIVE] - best.values[:, ALIVE:]
        ids.append(best.indices[:, :ALIVE])
        values.append(above / above.mean(1, keepdim=True).clamp_min(1e-9))
    return torch.cat(ids), torch.cat(values)


def train(features: tuple[Any, Any], labels: NDArray[Any], classes: int) -> Any:
    """The linear layer ``[25088, classes]``; only the rows of a picture's own features are read."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.EmbeddingBag(FILTERS * CELLS * CELLS, classes, mode="sum")
    torch.nn.init.zeros_(layer.weight)
    bias = torch.nn.Parameter(torch.zeros(classes))
    optimiser = torch.optim.Adam([layer.weight, bias], RATE)
    target = torch.from_numpy(labels.astype(np.int64))
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(target)), BATCH):
            logits = layer(features[0][rows], per_sample_weights=features[1][rows]) + bias
            loss = torch.nn.functional.cross_entropy(logits, target[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
            optimiser.step()
    return layer.weight.detach(), bias.detach()


def dense(features: tuple[Any, Any]) -> NDArray[np.float16]:
    """``[n, 25088]`` in float16, as hidden vectors are stored."""
    found = np.zeros((len(features[0]), FILTERS * CELLS * CELLS), np.float16)
    np.put_along_axis(found, features[0].numpy(), features[1].numpy().astype(np.float16), 1)
    return found


def main(out: str) -> None:
    from studies.data import registry
    from studies.models.harvest import write

    images = registry.load("eurosat").content
    rng = np.random.default_rng(0)
    filters = patches(images.train.pixels, rng)
    chosen = rng.permutation(len(images.train.labels))[:PICTURES]
    classes = int(images.train.labels.max()) + 1
    weight, bias = train(sparse(images.train.pixels[chosen], filters), images.train.labels[chosen], classes)
    layer = Layer(np.ascontiguousarray(weight.numpy().T), bias.numpy())
    tensors: dict[str, NDArray[Any]] = {}
    for split, part, most in (("valid", images.valid, TUNING), ("test", images.test, TESTED)):
        some = np.random.default_rng(2).permutation(len(part.labels))[:most]
        hidden = dense(sparse(part.pixels[some], filters))
        right = (hidden.astype(np.float32) @ layer.weight.T + bias.numpy()).argmax(1) == part.labels[some]
        alive = (hidden != 0).sum(1).mean()
        sys.stderr.write(f"{split}: accuracy {right.mean():.4f} of {len(some)} pictures, {alive:.0f} features are not 0\n")
        tensors |= {f"{split}_hidden": hidden, f"{split}_target": part.labels[some].astype(np.int32)}
    write(Path(out), layer, tensors, f"25,088 sparse features of eurosat, {PICTURES} pictures, no network")
