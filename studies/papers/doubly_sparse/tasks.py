"""The layers that the doubly sparse softmax study reads, and what every method is worth on them (Liao et al. 2019).

::

    top-k accuracy = share of targets among the k likeliest            hit = share that the chosen expert holds
    FLOPs ratio    = V / (K + sum_k u_k |V_k|)        u_k: share of the test vectors that expert k gets        (experts)
                   = 1 / (D/V + r/D + N/V)                                                                     (SVD)

    full          the backbone's own layer                              svd-10     16 columns, a tenth of the rows
    full-tuned    control: that layer trained on, as experts are        d-softmax  its first D, D/2, D/4 columns, trained on
    frequent      control: the V / ratio most frequent classes alone, no gate, no training
    seeded-64     gates at spherical means of hidden vectors, each expert the classes it expects most, as many as the printed
                  ratio allows; then trained and pruned: ours, not the paper's
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

import headlong as hl
from headlong import Layer
from headlong.bench.measure import Progress
from headlong.heads import DenseHead, DifferentiatedHead, ExpertsHead
from headlong.store import open_file
from studies.models.experts.growth import Growth, Vectors, grow
from studies.models.experts.lasso_ramp import TOPS, look
from studies.models.optimisers import products

if TYPE_CHECKING:
    from torch import Tensor

    from studies.models.experts.lasso_ramp_plan import TrainingPlan

Array = NDArray[Any]
SEEDED_ON, PIECE, VALID = 100_000, 1024, 12_000
"""Vectors that experts are seeded by, and of validation those that a training is watched on."""


class Task(NamedTuple):
    """Where the vectors are, and the split that is reported.

    ``steps`` of training for 64 seeded experts, ``batch`` rows each, Adam's ``rate``; ``held``: the training vectors at the end
    that are kept for validation, where there is no split of its own for it; ``tuned`` steps of the controls, at each of the
    ``rates``, of which validation chooses.
    """

    folder: str
    split: str
    steps: int
    batch: int = 2048
    rate: float = 5e-4
    lasso: float = 1e-5
    translates: bool = False
    held: int = 0
    tuned: int = 600
    rates: tuple[float, ...] = (2e-3,)


BRIEFLY: dict[str, Any] = {"batch": 1024, "tuned": 118, "rates": (5e-4, 2e-3)}
"""For 60,000 training vectors, of which 118 steps are two passes."""
TASKS = {
    "ptb": Task("harvest/ptb-lstm", "test", 450),
    "ptb, six epochs": Task("harvest/ptb-lstm-six", "test", 450),
    "ptb, short": Task("harvest/ptb-short", "test", 100, **BRIEFLY),
    "wikitext2": Task("harvest/wikitext2-lstm-early", "test", 300, rate=1e-4),
    "wikitext2, four epochs": Task("harvest/wikitext2-lstm", "test", 300, rate=1e-4),
    "wikitext2, short": Task("harvest/wikitext2-short", "test", 100, **BRIEFLY),
    "multi30k": Task("harvest/multi30k-seq2seq", "test", 250, translates=True),
    "multi30k, first run": Task("harvest/multi30k-first", "test", 250, translates=True),
    "characters": Task("heads/ppocr-characters", "valid", 100, rate=1e-4, held=3000),
}
"""Translation: Multi30k in place of IWSLT. Characters: the last layer of a text recogniser, 6,625 classes, in place of CASIA.
Of a corpus that was trained on twice, each backbone has a name of its own; experts were learned at the first of them."""


class Data(NamedTuple):
    """The trained layer, vectors to train on and to watch a training by, and those that are reported."""

    layer: Layer
    train: Vectors
    watched: Vectors
    hidden: Array
    target: Array


def files(root: Path, task: Task) -> tuple[Path, Path]:
    """The layer's file and that of its hidden vectors, which may be one."""
    one = root / f"{task.folder}.safetensors"
    return (
        (one, one) if one.is_file() else (root / task.folder / "layer.safetensors", root / task.folder / "hidden.safetensors")
    )


def read(root: Path, task: Task) -> Data:
    """What ``python -m studies harvest`` wrote, or a layer that comes with its vectors."""
    layer_file, hidden_file = files(root, task)
    layer = Layer.load(layer_file, weight="weight") if layer_file == hidden_file else Layer.load(layer_file)
    file = open_file(hidden_file)

    def part(split: str, stop: int | None, start: int = 0) -> Vectors:
        hidden, target = (torch.from_numpy(np.array(file.read(f"{split}_{name}")[start:stop])) for name in ("hidden", "target"))
        return Vectors(hidden, target.long())

    count = len(file.read("train_target")) - task.held
    asked = part(task.split, None)
    watched = part("train", None, count) if task.held else part("valid", VALID)
    return Data(layer, part("train", count), watched, asked.hidden.float().numpy(), asked.target.numpy())


def rows_of(data: Data) -> tuple[Tensor, Tensor]:
    weight = torch.from_numpy(np.array(data.layer.weight, np.float32))
    bias = torch.zeros(len(weight)) if data.layer.bias is None else torch.from_numpy(np.array(data.layer.bias, np.float32))
    return weight, bias


def accuracy(data: Data, logits: Callable[[Tensor], Tensor], place: NDArray[np.int64] | None = None) -> dict[str, float]:
    """A target is among the k likeliest where fewer than k logits are above its own; never where ``place`` has none for it."""
    target = torch.from_numpy(data.target if place is None else place[data.target])
    hits = torch.zeros(len(TOPS))
    with torch.inference_mode():
        for hidden, mine in zip(torch.split(torch.from_numpy(data.hidden), PIECE), torch.split(target, PIECE), strict=True):
            z = logits(hidden)
            above = (z > z.gather(1, mine.clamp_min(0)[:, None])).sum(1)
            hits += torch.stack([((above < top) & (mine >= 0)).sum() for top in TOPS])
    return {f"top{top}": round(float(hit) / len(target), 4) for top, hit in zip(TOPS, hits, strict=True)}


def full(data: Data) -> dict[str, float]:
    weight, bias = rows_of(data)
    return {**accuracy(data, lambda hidden: hidden @ weight.T + bias), "flops": 1.0}


def svd(data: Data) -> dict[str, float]:
    """SVD-softmax with a preview of 16 columns and a tenth of the classes in full."""
    width, dim, vocab = 16, data.layer.dim, data.layer.vocab
    rows = round(vocab / 10)
    engine = hl.compile(data.layer, "svd", width=width, rows=rows, log_probs=False)
    ids = np.concatenate(
        [engine.topk(part, k=TOPS[-1]).ids for part in np.array_split(data.hidden, len(data.hidden) // 256 + 1)]
    )
    right = ids == data.target[:, None]
    found = {f"top{top}": round(float(right[:, :top].any(1).mean()), 4) for top in TOPS}
    return {**found, "flops": round(1 / (dim / vocab + width / dim + rows / vocab), 2)}


def frequent(data: Data, ratio: float) -> dict[str, float]:
    """The layer's rows of the ``V / ratio`` classes that come most often in training."""
    weight, bias = rows_of(data)
    vocab = len(weight)
    counts = np.bincount(np.asarray(data.train.target), minlength=vocab)
    kept = np.sort(np.argsort(-counts, kind="stable")[: round(vocab / ratio)])
    place = np.full(vocab, -1, np.int64)
    place[kept] = np.arange(len(kept))
    few, offset = weight[kept], bias[kept]
    found = accuracy(data, lambda hidden: hidden @ few.T + offset, place)
    return {**found, "flops": round(vocab / len(kept), 2), "hit": round(float((place[data.target] >= 0).mean()), 4)}


def tuned(data: Data, task: Task, plan: TrainingPlan, method: str, seed: int, progress: Progress) -> dict[str, float]:
    """The layer, or its blocks of falling width, trained on as experts are, with their batches; validation chooses the rate."""
    found = {rate: _trained_on(data, task.tuned, rate, plan, method, seed, progress) for rate in task.rates}
    rate = max(found, key=lambda one: _controlled(found[one], watched(data))["top1"])
    cost = data.layer.vocab * data.layer.dim
    if isinstance(head := found[rate], DifferentiatedHead):
        cost = sum(size * width for size, width in zip(head.sizes, head.widths, strict=True))
    flops = round(data.layer.vocab * data.layer.dim / cost, 2)
    return {**_controlled(head, data), "flops": flops, "steps": task.tuned, "rate": rate}


def watched(data: Data) -> Data:
    """The same, with the vectors that a training is watched on in place of the reported ones."""
    return data._replace(hidden=data.watched.hidden.float().numpy(), target=data.watched.target.numpy())


def _controlled(head: DenseHead | DifferentiatedHead, data: Data) -> dict[str, float]:
    return accuracy(data, head.logits, None if isinstance(head, DenseHead) else head.place.numpy())


def _trained_on(
    data: Data, steps: int, rate: float, plan: TrainingPlan, method: str, seed: int, progress: Progress
) -> DenseHead | DifferentiatedHead:
    head = _from_layer(data, method)
    optimiser = torch.optim.Adam(head.parameters(), rate, betas=(0.9, 0.99), fused=True)
    for step in range(steps):
        torch.manual_seed(seed * steps + step)
        for group in optimiser.param_groups:
            group["lr"] = rate * (1 - 0.9 * step / steps)
        rows = torch.randint(len(data.train.target), (plan.batch,))
        hidden = functional.dropout(data.train.hidden[rows].float(), plan.dropout)
        with products():
            loss = head(hidden, data.train.target[rows]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        progress(step + 1, steps)
    return head.eval()


def _from_layer(data: Data, method: str) -> DenseHead | DifferentiatedHead:
    weight, bias = rows_of(data)
    vocab, dim = weight.shape
    if method == "full-tuned":
        dense = DenseHead(dim, vocab)
        dense.load_state_dict({"weight": weight, "bias": bias})
        return dense
    return blocks_of(weight, bias, np.bincount(np.asarray(data.train.target), minlength=vocab))


@torch.no_grad()
def blocks_of(weight: Tensor, bias: Tensor, counts: Array) -> DifferentiatedHead:
    """The first D, D / 2 and D / 4 columns of a quarter, a quarter and half of the rows, the most frequent classes first."""
    head: Any = DifferentiatedHead(weight.shape[1], len(weight), counts=counts)
    for part, ids in zip(head.weights, torch.split(head.order, head.sizes), strict=True):
        part.copy_(weight[ids, : part.shape[1]])
    head.bias.copy_(bias[head.order])
    return head  # type: ignore[no-any-return]


def seeded_experts(data: Data, task: Task, ratio: float, seed: int, progress: Progress) -> ExpertsHead:
    """64 of them, seeded from the layer with a tenth more room than the ratio allows to spare, then trained and pruned."""
    from headlong.heads.expert_pruning import seeded

    vocab, count = data.layer.vocab, 64
    rows = round(count * max(vocab / (1.06 * ratio) - count, 1.1 * vocab / count))
    torch.manual_seed(count + 1000 * seed)
    options: dict[str, Any] = {"load": 0.1, "lasso": task.lasso, "expert_lasso": task.lasso, "gamma": 0.3}
    head = seeded(*rows_of(data), data.train.sample(SEEDED_ON), count, rows, **options)
    growth = Growth(task.steps, batch=task.batch, rate=task.rate, settle=min(100, task.steps), seed=count + 1000 * seed)
    grow(head, data.train, growth, progress=progress)
    return head.eval()


def measured(head: ExpertsHead, data: Data) -> dict[str, float]:
    """Accuracies, load and what is kept, on the reported split."""
    vocab, sizes = data.layer.vocab, head.sizes
    seen = look(head, Vectors(torch.from_numpy(data.hidden), torch.from_numpy(data.target)))
    found = {f"top{top}": round(value, 4) for top, value in zip(TOPS, seen.top, strict=True)}
    found |= {"flops": round(seen.flops, 2), "hit": round(seen.hit, 4), "rows_per_class": round(seen.rows / vocab, 3)}
    held = len(torch.unique(head.ids))
    found |= {"smallest": int(sizes.min()), "largest": int(sizes.max()), "held_by_none": vocab - held}
    return {**found, "sparse": round(1 - seen.rows / (head.experts * vocab), 4)}


def bleu(root: Path, task: Task, predict: Callable[[Any], Any] | None) -> dict[str, float]:
    """Of the run that a translation's vectors are of, in ``root/runs``; ``predict`` stands in for its layer (None: its own)."""
    from studies.models.bleu import score_translations
    from studies.models.harvest import trained

    run = root / "runs" / Path(task.folder).name
    if not (task.translates and run.is_dir()):
        return {}
    job = trained(run)
    if predict is not None:
        setattr(job.model.head, "predict", predict)  # noqa: B010  # the backbone asks for no more than this
    return {"bleu": round(float(score_translations(job)["bleu"]), 2)}
