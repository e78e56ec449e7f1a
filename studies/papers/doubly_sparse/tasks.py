"""One task of the doubly sparse softmax study: a frozen backbone's hidden vectors, read by every method.

::

    top-k accuracy = share of targets among the k likeliest            hit = share that have a positive probability
    FLOPs ratio    = V / (K + sum_k u_k |V_k|)        u_k: share of the test vectors that expert k gets        (experts)
                   = 1 / (D/V + r/D + N/V)                                                                     (SVD)

The experts are trained on the frozen backbone's vectors, as the paper trains its heads for translation;
they start from the trained layer (``heads.expert_pruning.seeded``), and are trained and pruned from there. The D-softmax row
is post-hoc: the second and third quarter of the classes keep D/2, the last half D/4 of the activation-weighted directions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import Layer
from headlong import compile as compile_layer
from headlong.bench.measure import Progress
from headlong.engines.structured.experts import ExpertsEngine
from headlong.store import open_file

if TYPE_CHECKING:
    from headlong.heads import ExpertsHead
    from studies.models.experts.growth import Vectors

Array = NDArray[Any]
TOPS = (1, 5, 10)
SEEDED_ON = 100_000
TRAINED = 64
"""The number of experts that are trained after they were seeded; fewer, larger ones are expensive to train."""
PIECE = 512


class Task(NamedTuple):
    """Where the vectors are, the split that is reported, and per number of experts the FLOPs ratio that is aimed at.

    ``steps`` of training for 64 experts (the others are only seeded), ``batch`` rows each, Adam's ``rate``.
    """

    folder: str
    split: str
    aims: dict[int, float]
    steps: int
    batch: int = 2048
    rate: float = 5e-4
    lasso: float = 1e-5
    translates: bool = False


TASKS = {
    "ptb": Task("harvest/ptb-lstm", "test", {8: 2.84, 16: 5.13, 32: 9.43, 64: 15.99}, 450),
    "wikitext2": Task("harvest/wikitext2-lstm", "test", {8: 3.52, 16: 6.58, 32: 11.59, 64: 23.86}, 300, rate=1e-4),
    "wikitext2-gpt": Task("heads/wikitext2-gpt512", "valid", {64: 23.86}, 0),
    "multi30k": Task("harvest/multi30k-seq2seq", "test", {8: 4.38, 16: 6.08, 32: 10.69, 64: 15.08}, 250, translates=True),
}
"""Translation: Multi30k in place of IWSLT; wikitext2-gpt: not in the paper, a transformer's layer of D = 512 whose experts are
seeded and not trained. The WikiText-2 LSTM's are trained more gently, since they start near its layer, on a million vectors
(``python -m studies harvest RUN --splits train,valid,test --rows 1000000``)."""


class Data(NamedTuple):
    """The trained layer, training vectors and targets, and those that are reported."""

    layer: Layer
    train: Vectors
    hidden: Array
    target: Array


def read(root: Path, task: Task) -> Data:
    """What ``python -m studies harvest`` wrote, or the one layer that comes with its vectors in another shape."""
    import torch

    from studies.models.experts.growth import Vectors

    folder = root / task.folder
    if folder.is_dir():
        layer, file = Layer.load(folder / "layer.safetensors"), open_file(folder / "hidden.safetensors")
    else:
        layer = Layer.load(root / f"{task.folder}.safetensors", weight="weight")
        file = open_file(root / f"{task.folder}.hidden.safetensors")
    hidden, target = (torch.from_numpy(np.array(file.read(f"train_{name}"))) for name in ("hidden", "target"))
    return Data(
        layer,
        Vectors(hidden, target.long()),
        np.asarray(file.read(f"{task.split}_hidden"), np.float32),
        np.asarray(file.read(f"{task.split}_target"), np.int64),
    )


def full(data: Data) -> tuple[dict[str, float], Any]:
    return {**accuracy(data, compile_layer(data.layer, "full", eps=np.inf)), "flops": 1.0}, data.layer


def svd(data: Data, share: float) -> tuple[dict[str, float], Any]:
    """SVD-softmax with a preview of 16 columns and a share of the classes in full."""
    width, dim, vocab = 16, data.layer.dim, data.layer.vocab
    rows = round(share * vocab)
    engine = compile_layer(data.layer, "svd", width=width, rows=rows)
    return {**accuracy(data, engine), "flops": round(1 / (dim / vocab + width / dim + rows / vocab), 2)}, data.layer


def d_softmax(data: Data) -> tuple[dict[str, float], Any]:
    """Frequent classes keep all directions, rare ones the best of a weighted basis: no training."""
    from headlong.layers.differentiated import Block
    from headlong.previews.whitening import whiten
    from headlong.structured import BlocksLayer

    layer, dim = data.layer, data.layer.dim
    counts = np.bincount(np.asarray(data.train.target), minlength=layer.vocab)
    order = np.argsort(-counts, kind="stable").astype(np.int64)
    quarter = layer.vocab // 4
    calibration = np.asarray(data.train.sample(20_000), np.float64)
    bias = np.zeros(layer.vocab, np.float32) if layer.bias is None else layer.bias
    blocks = [Block(Layer(layer.weight[order[:quarter]], bias[order[:quarter]]))]
    for part, width in ((order[quarter : 2 * quarter], dim // 2), (order[2 * quarter :], dim // 4)):
        # w h = (w T) (h - mean) R + w mean; the leading columns of R carry most of it
        basis, weight = whiten(layer.weight[part], calibration), np.asarray(layer.weight[part], np.float64)
        rotated, leading = (weight @ basis.back)[:, :width], basis.rotation[:, :width].astype(np.float64)
        constant = weight @ basis.mean - rotated @ (basis.mean @ leading) + bias[part]
        rows = Layer(rotated.astype(np.float32), constant.astype(np.float32))
        blocks.append(Block(rows, 0, np.ascontiguousarray(leading.T, np.float32)))
    banded = BlocksLayer(blocks, dim, order)
    cost = sum(block.layer.vocab * block.layer.dim for block in blocks)
    return {**accuracy(data, compile_layer(banded, eps=np.inf)), "flops": round(layer.vocab * dim / cost, 2)}, banded


def experts(data: Data, task: Task, count: int, work: Path, progress: Progress) -> tuple[dict[str, float], ExpertsHead]:
    """``count`` experts as trained, and what they are worth."""
    head = grown(data, task, count, work, progress)
    steps = task.steps if count == TRAINED else 0
    return {**measured(head, data), "steps": steps}, head


def grown(data: Data, task: Task, count: int, work: Path | None = None, progress: Progress | None = None) -> ExpertsHead:
    """Seeded from the layer with a tenth more room than the aim allows to spare, then trained and pruned."""
    import torch

    from headlong.heads.expert_pruning import seeded
    from studies.models.experts.growth import Growth, grow

    vocab = data.layer.vocab
    rows = round(count * max(vocab / (1.06 * task.aims[count]) - count, 1.1 * vocab / count))
    weight = torch.from_numpy(np.array(data.layer.weight, np.float32))
    bias = torch.zeros(vocab) if data.layer.bias is None else torch.from_numpy(np.array(data.layer.bias))
    torch.manual_seed(count)
    head = seeded(
        weight, bias, data.train.sample(SEEDED_ON), count, rows, load=0.1, lasso=task.lasso, expert_lasso=task.lasso, gamma=0.3
    )
    if task.steps and count == TRAINED:
        growth = Growth((), task.steps, 0, task.batch, task.rate, 0.1, 100, min(100, task.steps), count, unseen=True)
        grow(head, data.train, growth, folder=work, progress=progress)
    return head.eval()


def measured(head: ExpertsHead, data: Data) -> dict[str, float]:
    """Accuracies by the frozen engine, the FLOPs ratio by the load on the reported vectors, and what is kept."""
    layer = head.to_layer()
    engine = compile_layer(layer, eps=np.inf)
    assert isinstance(engine, ExpertsEngine)
    chosen = np.concatenate([engine.route(part) for part in pieces(data.hidden)])
    sizes = layer.sizes[chosen]
    has = np.zeros((layer.experts, layer.vocab), bool)
    has[np.repeat(np.arange(layer.experts), layer.sizes), layer.ids] = True
    found = accuracy(data, engine)
    return {
        **found,
        "flops": round(layer.vocab / (layer.experts + float(sizes.mean())), 2),
        "hit": round(float(has[chosen, data.target].mean()), 4),
        "rows_per_class": round(len(layer.weight) / layer.vocab, 3),
        "smallest": int(layer.sizes.min()),
        "largest": int(layer.sizes.max()),
    }


def accuracy(data: Data, engine: Any) -> dict[str, float]:
    """Top-1, top-5 and top-10 by an engine that gives ids."""
    hits = np.zeros(len(TOPS))
    for hidden, target in zip(pieces(data.hidden), pieces(data.target), strict=True):
        ids = engine.topk(hidden, k=TOPS[-1], eps=np.inf).ids
        hits += [(ids[:, :top] == target[:, None]).any(axis=1).sum() for top in TOPS]
    return {f"top{top}": round(hit / len(data.target), 4) for top, hit in zip(TOPS, hits, strict=True)}


def pieces(array: Array) -> list[Array]:
    return [array[start : start + PIECE] for start in range(0, len(array), PIECE)]


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
