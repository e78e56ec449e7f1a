"""Hierarchical softmax beside the full softmax, as the study of softmax approximations by Vlasova et al. sets it up.

::

    perplexity = exp(-mean log p(target))     top-1, top-10: how far a head's best agree with those of the full softmax

The full softmax is the layer of a trained word LSTM (D = 200); every other head is trained on the hidden vectors of the frozen
backbone, ``PASSES`` times over. The LSTM was not trained to its end on them, so the control is "full, two passes more": its
layer trained on, on the same vectors. Perplexities are over all test vectors, agreement is over the same ``COMPARED`` of them
for every method; ``rows`` and ``read`` are what the frozen layer's engine read for the ten likeliest of one query at a time:
exact rows, and bytes of all of a full float32 matrix. The study's own figures are not public.

    python -m studies harvest RUN --out DATA/harvest/ptb-lstm --splits train,valid,test --rows 0        400,000 of WikiText-2
    python -m studies reproduce vlasova-softmax:hierarchical          and vlasova-softmax:hierarchical-wikitext2
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import headlong as hl
from headlong import Layer
from headlong.bench.measure import Progress
from headlong.store import open_file
from studies.papers import Context, Model, PaperTable, Row, Setting, register
from studies.papers.svd_hierarchical import softmax, steps
from studies.papers.svd_hierarchical.rotation import Preview

if TYPE_CHECKING:
    from headlong.heads import Head

FOLDERS = {
    "hierarchical": ("harvest/ptb-lstm", "LSTM 2 x 200"),
    "hierarchical-wikitext2": ("harvest/wikitext2-lstm-1600", softmax.SHORT),
    "hierarchical-ptb-short": ("harvest/ptb-short", softmax.MINUTES),
    "hierarchical-wikitext2-short": ("harvest/wikitext2-short", softmax.MINUTES),
}  # fmt: skip
"""The vectors of a trained LSTM, and what it is."""
PASSES, MORE, RATES = 3, 2, (2e-4, 1e-3)
"""Over the training vectors; of the control, and Adam's first rates for it, of which validation chooses."""
COMPARED, ASKED = 2000, 200
"""Test vectors whose ten likeliest classes are compared, and those that the engine is asked about one at a time."""
PIECE = 512

Vectors = NDArray[Any]


class Data(NamedTuple):
    """A trained layer, hidden vectors in front of their targets, and the mean vector of each word."""

    layer: Layer
    hidden: Vectors
    target: Vectors
    test_hidden: Vectors
    test_target: Vectors
    valid: tuple[Vectors, Vectors]
    contexts: Vectors


def read(root: Path, folder: str) -> Data:
    from headlong.heads import trees

    file, layer = open_file(root / folder / "hidden.safetensors"), Layer.load(root / folder / "layer.safetensors")
    hidden, target = file.read("train_hidden"), file.read("train_target").astype(np.int64)
    test, valid = ((file.read(f"{split}_hidden"), file.read(f"{split}_target").astype(np.int64)) for split in ("test", "valid"))
    return Data(layer, hidden, target, *test, valid, trees.contexts(hidden, target, layer.vocab, unseen=layer.weight))


HEADS = ("tree, learned", "tree, huffman", "two levels, clustered", "two levels, frequency")
FULL, TUNED, SVD = "full", "full, two passes more", "svd of full, D/8, V/10"


def build(name: str, data: Data) -> Head:
    """A head of the comparison: trees and classes take a while."""
    from headlong.heads import build_head, classes, trees

    vocab, dim = data.layer.vocab, data.layer.dim
    counts = np.bincount(data.target, minlength=vocab) + 0.5
    if name == "tree, learned":
        return build_head("tree", dim, vocab, tree=trees.learned(data.contexts, counts))
    if name == "two levels, clustered":
        return build_head("two-level", dim, vocab, classes=classes.clustered(data.contexts, round(vocab**0.5), counts))
    return build_head("tree" if name == "tree, huffman" else "two-level", dim, vocab, counts=counts)


def planned() -> list[Setting]:
    return [(("head", name),) for name in (FULL, TUNED, SVD, *HEADS)]


def run(table: str, context: Context) -> Iterator[Row]:
    """The rows that are not there yet."""
    todo = context.left(planned())
    if not todo:
        return
    folder, about = FOLDERS[table]
    data = read(context.data, folder)
    truth = best_ten(data.layer, data)
    for row in todo:
        name = row[0][1]
        if name == SVD:
            got = of_svd(data)
        else:
            got = trained(name, data, truth, context.stage(name))
        model = Model(about, data.layer.vocab, data.layer.dim)
        yield Row(row, {key: float(f"{value:.6g}") for key, value in got.items()}, model)


def trained(name: str, data: Data, truth: Vectors, progress: Progress) -> dict[str, float]:
    """What the head is worth after its passes; the full layer has none, its control two from where it is."""
    head = full_head(data.layer) if name in (FULL, TUNED) else build(name, data)
    if name == TUNED:
        found = {rate: full_head(data.layer) for rate in RATES}
        for rate, one in found.items():
            steps.train(one, data.hidden, data.target, progress, MORE, rate)
        rate = min(RATES, key=lambda rate: perplexity(found[rate], *data.valid))
        return {"rate": rate} | worth(found[rate], data, truth)
    if name != FULL:
        steps.start(head)
        steps.train(head, data.hidden, data.target, progress, PASSES)
    return worth(head, data, truth)


def worth(head: Head, data: Data, truth: Vectors) -> dict[str, float]:
    found = perplexity(head, data.test_hidden, data.test_target)
    return {"perplexity": found} | agreement(head.to_layer(), data, truth)


def full_head(layer: Layer) -> Head:
    import torch

    from headlong.heads import DenseHead

    head = DenseHead(layer.dim, layer.vocab)
    bias = np.zeros(layer.vocab, np.float32) if layer.bias is None else np.array(layer.bias, np.float32)
    head.load_state_dict({"weight": torch.from_numpy(np.array(layer.weight, np.float32)), "bias": torch.from_numpy(bias)})
    return head


def of_svd(data: Data) -> dict[str, float]:
    """SVD-softmax of the full softmax, W = D/8 and N = V/10, and how many of its ten best are among the N."""
    layer, width, rows = data.layer, data.layer.dim // 8, 10
    about, weight = Preview.of(layer, width), np.asarray(layer.weight, np.float32)
    bias, total = 0.0 if layer.bias is None else np.asarray(layer.bias, np.float32), np.zeros(len(softmax.NAMES))
    for first in range(0, len(data.test_target), PIECE):
        x, target = data.test_hidden[first : first + PIECE].astype(np.float32), data.test_target[first : first + PIECE]
        exact, preview = softmax.Exact((x @ weight.T + bias).astype(np.float64)), (x @ about.turn) @ about.columns.T + bias
        total += dict(softmax.compare(exact, preview, target, (rows,)))[rows]
    mean = dict(zip(softmax.NAMES, total / len(data.test_target), strict=True))
    read = layer.dim / layer.vocab + width / layer.dim + 1 / rows
    return {"perplexity": math.exp(mean["loss"]), "top10": mean["top10"], "rows": -(-layer.vocab // rows), "read": read}


def best_ten(layer: Any, data: Data) -> Vectors:
    """The ten likeliest classes for each of the compared vectors."""
    found: Vectors = (
        hl.compile(layer, delta=0.0, threads=1).topk(spread(data.test_hidden, COMPARED).astype(np.float32), k=10).ids
    )
    return found


def same(ids: Vectors, truth: Vectors) -> dict[str, float]:
    overlap = [len(set(a) & set(b)) for a, b in zip(ids.tolist(), truth.tolist(), strict=True)]
    return {"top1": float(np.mean(ids[:, 0] == truth[:, 0])), "top10": float(np.mean(overlap))}


def agreement(layer: Any, data: Data, truth: Vectors) -> dict[str, float]:
    """How often the finished layer's best are the full softmax's, and what its engine reads for one query."""
    engine = hl.compile(layer, delta=0.0, threads=1)
    costs = [engine.topk(one[None].astype(np.float32), k=10).cost for one in spread(data.test_hidden, ASKED)]
    read = float(np.mean([cost.bytes[0] for cost in costs])) / (4 * engine.layer.vocab * engine.layer.dim)
    return same(best_ten(layer, data), truth) | {"rows": float(np.mean([cost.rows[0] for cost in costs])), "read": read}


def perplexity(head: Head, hidden: Vectors, target: Vectors) -> float:
    """Over all of the vectors."""
    import torch

    total = 0.0
    with torch.no_grad():
        for start in range(0, len(target), PIECE):
            part = slice(start, start + PIECE)
            out = head(torch.from_numpy(hidden[part].astype(np.float32)), torch.from_numpy(target[part]))
            total -= float(out.output.double().sum())
    return math.exp(total / len(target))


def spread(rows: Vectors, most: int) -> Vectors:
    """At most so many of the rows, evenly spread."""
    return rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.int64)]


for _table, (_folder, _) in FOLDERS.items():
    register(
        PaperTable(
            paper="vlasova-softmax",
            table=_table,
            claim=f"hierarchical heads on one frozen backbone ({_folder.removeprefix('harvest/')}), the full layer trained on",
            source="the study's own figures are not public: nothing could be checked against them",
            needs=(f"{_folder}/layer.safetensors", f"{_folder}/hidden.safetensors"),
            run=partial(run, _table),
            planned=planned,
        )
    )
