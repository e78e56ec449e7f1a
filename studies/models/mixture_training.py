"""A mixture of five softmaxes over WikiText-2's words, trained on harvested hidden vectors::

    python -m studies harvest RUN --out HARVEST --splits train,valid --rows 32768
    python -m studies reproduce mixture:training HARVEST HEAD studies/results/mixture-training.json

The head starts from the harvested layer's rows, which stay as they are and are stored in float16; projections and prior are
trained, every step normalising over the most frequent classes and a sample of the others. The valid vectors come in a random
order: the first calibrate engines, the last tell perplexities, those between are asked (``studies/papers/mixture_reading.py``).
"""

from __future__ import annotations

import json
import statistics
import sys
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headlong.bench.measure import environment
from headlong.heads import build_head
from headlong.heads.mixture import MixtureHead
from headlong.layers.matrix import Layer
from headlong.layers.mixture import MixtureLayer
from headlong.store import open_file, replacing

COMPONENTS = 5
CALIBRATION, ASKED, JUDGED = 8704, 5120, 1024
"""Valid vectors that calibrate, that are asked, and whose targets tell perplexities."""
OFTEN, SAMPLED = 512, 512
"""Classes that every step normalises over, and of all others so many, each standing for its share."""
EPOCHS, BATCH, RATE, STRETCH, APART = 1, 256, 1.5e-4, 4.0, 0.4
"""``APART``: how far from the softmax that it starts from a component begins, as a share of its context's length."""
Vectors = NDArray[np.float64]


class Data(NamedTuple):
    """The harvested layer, and what its model was asked about."""

    layer: Layer
    train: Vectors
    train_target: NDArray[np.int64]
    valid: Vectors
    valid_target: NDArray[np.int64]

    @property
    def asked(self) -> Vectors:
        return self.valid[CALIBRATION : CALIBRATION + ASKED]


def harvested(folder: str) -> Data:
    file = open_file(f"{folder}/hidden.safetensors")
    read = [file.read(f"{split}_{what}") for split in ("train", "valid") for what in ("hidden", "target")]
    hidden, target, valid, valid_target = read
    mixed = np.random.default_rng(7).permutation(len(valid))
    valid, valid_target = valid[mixed], valid_target[mixed]
    layer = Layer.load(f"{folder}/layer.safetensors", weight="lm_head.weight", bias="lm_head.bias")
    targets = [side.astype(np.int64) for side in (target, valid_target)]
    return Data(layer, hidden.astype(np.float64), targets[0], valid.astype(np.float64), targets[1])


def started(layer: Layer, size: float, seed: int = 1) -> MixtureHead:
    """Every component near the softmax that it starts from: ``tanh(x / c) c`` is nearly x, and c is in the rows."""
    torch.manual_seed(seed)
    stretch = STRETCH * size
    weight = torch.from_numpy(np.array(layer.weight, np.float32)) * stretch
    head = build_head("mos", layer.dim, layer.vocab, torch.nn.Parameter(weight), components=COMPONENTS)
    assert isinstance(head, MixtureHead)
    assert head.bias is not None
    with torch.no_grad():
        eye = torch.eye(layer.dim).repeat(COMPONENTS, 1)
        head.project.weight.copy_((eye + APART * torch.randn(eye.shape) / layer.dim**0.5) / stretch)
        head.project.bias.zero_()
        head.prior.weight.zero_()
        head.bias.copy_(torch.from_numpy(np.array(layer.bias, np.float32)))
    head.weight.requires_grad_(False)
    head.bias.requires_grad_(False)
    return head


class Sampler:
    """Some classes that stand for all: the most frequent ones, and others drawn anew at every step."""

    def __init__(self, target: NDArray[np.int64], vocab: int, seed: int = 1) -> None:
        order = np.argsort(-np.bincount(target, minlength=vocab), kind="stable")
        self.often, self.others = order[:OFTEN], order[OFTEN:]
        self.draw = np.random.default_rng(seed)
        share = len(self.others) / SAMPLED
        self.log_weight = torch.from_numpy(np.concatenate([np.zeros(OFTEN), np.full(SAMPLED, np.log(share))])).float()

    def classes(self) -> Tensor:
        return torch.from_numpy(np.concatenate([self.often, self.draw.choice(self.others, SAMPLED, replace=False)]))


def sampled_loss(head: MixtureHead, hidden: Tensor, target: Tensor, sampler: Sampler) -> Tensor:
    """``-lse_k(log pi_k - ce_k)`` with each component's normaliser from the sampler's classes and the target itself."""
    assert head.bias is not None
    some, contexts = sampler.classes(), head.contexts(hidden)
    z = contexts @ head.weight[some].T + (head.bias[some] + sampler.log_weight)
    z = z.masked_fill((some == target[:, None])[:, None], -torch.inf)
    own = (contexts @ head.weight[target][:, :, None])[:, :, 0] + head.bias[target][:, None]
    log_probs = own - torch.logaddexp(z.logsumexp(-1), own)
    return -(head.log_prior(hidden) + log_probs).logsumexp(-1).mean()


def fit(data: Data) -> tuple[MixtureHead, list[float]]:
    """The trained head, and the mean loss of each quarter of the way."""
    head, sampler = started(data.layer, float(np.sqrt((data.train**2).mean()))), Sampler(data.train_target, data.layer.vocab)
    hidden, target = torch.from_numpy(data.train).float(), torch.from_numpy(data.train_target)
    steps = EPOCHS * (len(hidden) // BATCH)
    optimiser = torch.optim.Adam([one for one in head.parameters() if one.requires_grad], RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    order = torch.cat([torch.randperm(len(hidden))[: steps // EPOCHS * BATCH] for _ in range(EPOCHS)]).view(steps, BATCH)
    losses = []
    for rows in order:
        loss = sampled_loss(head, hidden[rows], target[rows], sampler)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return head, [statistics.mean(losses[at : at + steps // 4]) for at in range(0, steps // 4 * 4, steps // 4)]


@torch.no_grad()
def judged(head: MixtureHead, data: Data) -> dict[str, Any]:
    """Perplexities of the mixture and of the softmax it started from, and how far apart its components are."""
    hidden, target = torch.from_numpy(data.valid[-JUDGED:]).float(), torch.from_numpy(data.valid_target[-JUDGED:])
    weight, bias = torch.from_numpy(np.array(data.layer.weight)).float(), torch.from_numpy(np.array(data.layer.bias)).float()
    loss = {"mixture": 0.0, "softmax": 0.0}
    apart, prior = [], head.log_prior(hidden).exp()
    for at in range(0, JUDGED, 64):
        some, right = hidden[at : at + 64], target[at : at + 64, None]
        loss["mixture"] -= float(head.log_prob(some).gather(1, right).sum())
        loss["softmax"] -= float((some @ weight.T + bias).log_softmax(-1).gather(1, right).sum())
        each = head.logits(head.contexts(some[:8])).log_softmax(-1)
        apart += [float(_divergence(each[:, a], each[:, b])) for a, b in combinations(range(COMPONENTS), 2)]
    entropy = -(prior * prior.log()).sum(-1)
    return {
        "valid_vectors": JUDGED,
        "perplexity": {name: float(np.exp(value / JUDGED)) for name, value in loss.items()},
        "pairwise_divergence_bits": statistics.mean(apart),
        "components_in_use": float(entropy.exp().mean()),
        "mean_prior": prior.mean(0).tolist(),
    }


def _divergence(a: Tensor, b: Tensor) -> Tensor:
    """Jensen-Shannon, in bits: 0 for the same distribution, 1 for disjoint ones."""
    middle = torch.logaddexp(a, b) - np.log(2)
    each: Tensor = a.exp() * (a - middle) + b.exp() * (b - middle)
    apart: Tensor = each.sum(-1).mean() / (2 * np.log(2))
    return apart


def train(data: Data, head_path: str) -> dict[str, Any]:
    head, losses = fit(data)
    frozen = head.to_layer()
    matrix = Layer(frozen.matrix.weight.astype(np.float16), frozen.matrix.bias)
    MixtureLayer(matrix, frozen.project, frozen.offset, frozen.prior).save(head_path)
    recipe: dict[str, Any] = {"epochs": EPOCHS, "batch": BATCH, "rate": RATE, "vectors": len(data.train)}
    recipe |= {"classes": [OFTEN, SAMPLED], "stretch": STRETCH, "apart": APART}
    return {"dim": data.layer.dim, "vocab": data.layer.vocab, "recipe": recipe, "losses": losses, **judged(head, data)}


def main(folder: str, head: str, path: str) -> None:
    command = f"python -m studies reproduce mixture:training HARVEST HEAD studies/results/{Path(path).name}"
    about = {"format": "headlong-mixture-training", "version": 1, "command": command}
    record = about | {"environment": environment(torch.get_num_threads())} | train(harvested(folder), head)
    with replacing(path) as file:
        file.write(json.dumps(record, indent=1).encode() + b"\n")
    sys.stdout.write(f"wrote {path}\n")
