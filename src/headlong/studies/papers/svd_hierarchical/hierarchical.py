"""Hierarchical softmax beside the full softmax, as the study of softmax approximations by Vlasova et al. sets it up.

::

    perplexity = exp(-mean log p(target))     top-1, top-10: how far a head's best agree with those of the full softmax

Every head, the full softmax included, is trained anew on the same hidden vectors of a frozen backbone (a word LSTM on
Penn Treebank, D = 200), in the same order, for the same number of epochs with the same optimiser: what differs is the
head. Top-k is read by the frozen layer's engine; ``rows`` is how many exact rows it read for the ten likeliest, ``read`` what
all it read is of a full float32 matrix.
The study's own figures are not public, so no row has a published number.

    headlong reproduce vlasova-softmax:hierarchical
    headlong reproduce vlasova-softmax:heads results/vlasova-softmax.hierarchical.jsonl
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.bench.measure import environment
from headlong.compile import compile as compile_layer
from headlong.layers.matrix import Layer
from headlong.previews.svd import svd_plan
from headlong.store import open_file
from headlong.studies.papers import Context, PaperTable, Row, register

FOLDER = "harvest/ptb-lstm"
LAYER, HIDDEN = f"{FOLDER}/layer.safetensors", f"{FOLDER}/hidden.safetensors"
TRAINED_ON, EPOCHS, BATCH, RATE = 100_000, 2, 512, 3e-3
"""Rows of hidden vectors, passes over them, rows of a step, Adam's first rate (it falls to nothing along a line)."""
COMPARED, PREVIEWED = 500, 8000
"""Test vectors whose ten likeliest classes are compared, and those that SVD-softmax is evaluated on."""
PIECE = 512

Vectors = NDArray[Any]
Factory = Callable[[], Any]


class Data(NamedTuple):
    """Hidden vectors in front of their targets; ``text`` is the whole training text, ``contexts`` each word's mean vector."""

    hidden: Vectors
    target: Vectors
    test_hidden: Vectors
    test_target: Vectors
    counts: Vectors
    contexts: Vectors
    text: Vectors


def read(folder: Path, most: int = TRAINED_ON) -> Data:
    """Every ``n``-th stretch of the training vectors, so that they come from all over the text; all counts and contexts."""
    from headlong.heads.frequency import class_counts
    from headlong.heads.trees import contexts

    file = open_file(folder / HIDDEN)
    hidden, text = file.read("train_hidden"), file.read("train_target").astype(np.int64)
    vocab = 1 + int(max(text.max(), file.read("test_target").max()))
    chosen = np.linspace(0, len(text) - 1, min(most, len(text))).astype(np.int64)
    every = open_file(folder / LAYER).read("lm_head.weight")
    means = contexts(hidden, text, vocab, unseen=every)
    test = file.read("test_hidden"), file.read("test_target").astype(np.int64)
    return Data(hidden[chosen], text[chosen], *test, class_counts(text, vocab), means, text)


def heads(data: Data) -> dict[str, Factory]:
    """The heads of the comparison, built when their turn comes: trees and classes take a while."""
    from headlong.heads import build_head, classes, trees

    vocab, dim = len(data.counts), data.hidden.shape[1]
    number = round(vocab**0.5)
    counts = data.counts + 0.5
    shuffled = np.random.default_rng(0).permutation(vocab)

    def of(kind: str, **options: Callable[[], Any]) -> Factory:
        return lambda: build_head(kind, dim, vocab, **{name: value() for name, value in options.items()})

    return {
        "full": of("dense"),
        "two levels, frequency": of("two-level", counts=lambda: counts),
        "two levels, random": of("two-level", classes=lambda: "random"),
        "two levels, clustered": of("two-level", classes=lambda: classes.clustered(data.contexts, number, counts)),
        "two levels, brown": of("two-level", classes=lambda: classes.brown(data.text, vocab, number)),
        "tree, random": of("tree", tree=lambda: trees.balanced(shuffled)),
        "tree, balanced": of("tree", tree=lambda: "balanced", counts=lambda: counts),
        "tree, huffman": of("tree", counts=lambda: counts),
        "tree, learned": of("tree", tree=lambda: trees.learned(data.contexts, counts)),
        "bands": of("bands", counts=lambda: counts),
        "differentiated": of("differentiated", counts=lambda: counts),
    }


def train(head: Any, data: Data, progress: Callable[[int, int], None], epochs: int = EPOCHS) -> None:
    """The same steps for every head."""
    import torch

    torch.manual_seed(0)
    steps = len(data.target) // BATCH
    optimiser = torch.optim.Adam(head.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, epochs * steps)
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(data.target))
        for step in range(steps):
            rows = order[step * BATCH : (step + 1) * BATCH]
            optimiser.zero_grad(set_to_none=True)
            loss = head(torch.from_numpy(data.hidden[rows].astype(np.float32)), torch.from_numpy(data.target[rows])).loss
            loss.backward()
            optimiser.step()
            schedule.step()
            progress(epoch * steps + step + 1, epochs * steps)


def perplexity(head: Any, hidden: Vectors, target: Vectors) -> float:
    import torch

    total = 0.0
    with torch.no_grad():
        for start in range(0, len(target), PIECE):
            part = slice(start, start + PIECE)
            out = head(torch.from_numpy(hidden[part].astype(np.float32)), torch.from_numpy(target[part]))
            total -= float(out.output.double().sum())
    return math.exp(total / len(target))


def start(head: Any) -> None:
    """Small weights everywhere, so that every head starts near its own uniform distribution."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if "bias" in name:
                parameter.zero_()
            elif "projection" not in name:
                parameter.uniform_(-0.05, 0.05)


def measured(name: str, factory: Factory, data: Data, best: Vectors | None, context: Context) -> tuple[Row, Vectors, Any]:
    """One head's row, the ten likeliest classes it gives to the compared vectors, and its finished layer."""
    head = factory()
    start(head)
    train(head, data, context.stage(f"train {name}"))
    engine = compile_layer(head.to_layer(), delta=0.0, threads=1)
    compared = spread(data.test_hidden, COMPARED).astype(np.float32)
    top = engine.topk(compared, k=10)
    truth = top.ids if best is None else best
    overlap = [len(set(a) & set(b)) for a, b in zip(top.ids.tolist(), truth.tolist(), strict=True)]
    got = {
        "perplexity": perplexity(head, data.test_hidden[: context.queries], data.test_target[: context.queries]),
        "top1": float(np.mean(top.ids[:, 0] == truth[:, 0])),
        "top10": float(np.mean(overlap)),
        "rows": float(np.mean(top.cost.rows)),
        "read": float(np.mean(top.cost.bytes)) / (4 * engine.layer.vocab * engine.layer.dim),
    }
    return Row((("head", name),), {key: float(f"{value:.6g}") for key, value in got.items()}), top.ids, engine.layer


def spread(rows: Vectors, most: int) -> Vectors:
    """At most so many of the rows, evenly spread."""
    return rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.int64)]


def svd_row(layer: Layer, data: Data) -> Row:
    """SVD-softmax on the full softmax just trained, W = D/8 and N = V/10: exact logits for N classes, previews for the rest."""
    hidden, target = spread(data.test_hidden, PREVIEWED).astype(np.float64), spread(data.test_target, PREVIEWED)
    plan, count = svd_plan(layer, layer.dim // 8, 1, None), layer.vocab // 10
    assert plan.rotation is not None
    loss, same, overlap = 0.0, 0.0, 0.0
    for first in range(0, len(target), PIECE):
        x, line = hidden[first : first + PIECE], np.arange(len(target[first : first + PIECE]))
        exact = x @ layer.weight.astype(np.float64).T + (0.0 if layer.bias is None else layer.bias)
        mixed = (x @ plan.rotation)[:, : layer.dim // 8] @ plan.levels[0].codes[:, : layer.dim // 8].T
        mixed += 0.0 if layer.bias is None else layer.bias
        chosen = np.argpartition(-mixed, count, axis=1)[:, :count]
        mixed[line[:, None], chosen] = exact[line[:, None], chosen]
        most = mixed.max(axis=1)
        lse = most + np.log(np.exp(mixed - most[:, None]).sum(axis=1))
        loss += float((lse - mixed[line, target[first : first + PIECE]]).sum())
        same += float((mixed.argmax(axis=1) == exact.argmax(axis=1)).sum())
        best, true = (np.argpartition(-values, 10, axis=1)[:, :10] for values in (mixed, exact))
        overlap += sum(len(set(a) & set(b)) for a, b in zip(best.tolist(), true.tolist(), strict=True))
    got = {"perplexity": math.exp(loss / len(target)), "top1": same / len(target), "top10": overlap / len(target)}
    got |= {"rows": float(count), "read": layer.dim / layer.vocab + 1 / 8 + count / layer.vocab}
    return Row((("head", "svd of full, D/8, V/10"),), {key: float(f"{value:.6g}") for key, value in got.items()})


def run(context: Context, skip: frozenset[str] = frozenset(), kept: Path | None = None) -> Iterator[Row]:
    """All heads but those in ``skip``; the full softmax comes first, for it is what the others are compared with."""
    data = read(context.data)
    best: Vectors | None = None
    if kept is not None and kept.is_file():
        best = np.load(kept, allow_pickle=False)
    for name, factory in heads(data).items():
        if name in skip and not (name == "full" and best is None):
            continue
        row, ids, layer = measured(name, factory, data, None if name == "full" else best, context)
        if name not in skip:
            yield row
        if name == "full":
            best = ids
            if kept is not None:
                np.save(kept, ids)
            yield svd_row(layer, data)


TABLE = register(
    PaperTable(
        paper="vlasova-softmax",
        table="hierarchical",
        claim="Hierarchical heads on one frozen backbone: which tree it is decides what it costs in perplexity",
        source="the study's own figures are not public: nothing could be checked against them",
        needs=(LAYER, HIDDEN),
        run=run,
    )
)


def main(file: str) -> None:
    """Adds the rows that ``file`` does not have yet, each as soon as it is there."""
    path = Path(file)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    done = frozenset(line["setting"]["head"] for line in lines)
    context, kept = Context(Path(os.environ["HEADLONG_DATA"]), said), path.with_suffix(".full-ids.npy")
    for row in run(context, done, kept):
        setting, none = dict(row.setting), dict.fromkeys(row.got, "no figure")
        line = {"paper": TABLE.paper, "table": TABLE.table, "setting": setting, "got": dict(row.got)}
        line |= {"expected": {}, "verdict": none, "environment": environment(1)}
        with path.open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(line, allow_nan=False) + "\n")
    kept.unlink(missing_ok=True)


def said(label: str) -> Callable[[int, int], None]:
    """A line on stderr every hundred steps."""

    def progress(done: int, total: int) -> None:
        if done % 100 == 0 or done == total:
            sys.stderr.write(f"{label}: {done}/{total}\n")

    return progress
