"""Hierarchical softmax beside the full softmax, as the study of softmax approximations by Vlasova et al. sets it up.

::

    perplexity = exp(-mean log p(target))     top-1, top-10: how far a head's best agree with those of the full softmax

The full softmax is the layer of a trained word LSTM (D = 200; Penn Treebank, WikiText-2); every other head is trained to the
end on the hidden vectors of the frozen backbone, ``PASSES`` times over. ``moved``: by how much two
more passes change the test perplexity, in percent; the full softmax after two passes of its own is the last row.
Perplexities are over all test vectors, agreement is over the same ``COMPARED`` of them for every method; ``rows`` and ``read``
are what the frozen layer's engine read for the ten likeliest of one query at a time: exact rows, and bytes of all of a full
float32 matrix. The study's own figures are not public, so no row has a published number.

    python -m studies harvest RUN --out DATA/harvest/ptb-lstm --splits train,valid,test --rows 0
    python -m studies reproduce vlasova-softmax:hierarchical          and vlasova-softmax:hierarchical-wikitext2
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import Layer
from headlong import compile as compile_layer
from headlong.previews.svd import svd_plan
from headlong.store import open_file
from studies.papers import Context, PaperTable, Row, Setting, register

if TYPE_CHECKING:
    from headlong.heads import Head

FOLDER = "harvest/ptb-lstm"
LAYER, HIDDEN = f"{FOLDER}/layer.safetensors", f"{FOLDER}/hidden.safetensors"
FOLDERS = {"hierarchical": FOLDER, "hierarchical-wikitext2": "harvest/wikitext2-lstm"}
PASSES = {"hierarchical": 14, "hierarchical-wikitext2": 3}
"""Over the training vectors; what two more would change is measured with every head. On WikiText-2, with three times the words,
heads overfit sooner: of 3 and 5 passes of the learned tree, 3 had the lower perplexity on validation text."""
LONGER = {("hierarchical-wikitext2", name): 7 for name in ("two levels, frequency", "tree, huffman", "tree, balanced")}
"""Structures of frequency alone put words on a path that have nothing in common, which takes longer to learn: after three
passes two levels of them still gained 7 % on test text."""
COMPARED, ASKED = 2000, 200
"""Test vectors whose ten likeliest classes are compared, and those that the engine is asked about one at a time."""
RATE, RATE_AT_THE_END = 3e-3, 2e-4
"""Adam's rate, and its first one where the full softmax, long trained, is trained on."""
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


def read(root: Path, most: int | None = None, folder: str = FOLDER) -> Data:
    """All training vectors, or ``most`` from all over the text; all counts and contexts."""
    from headlong.heads.frequency import class_counts
    from headlong.heads.trees import contexts

    file = open_file(root / folder / "hidden.safetensors")
    hidden, text = file.read("train_hidden"), file.read("train_target").astype(np.int64)
    every = Layer.load(root / folder / "layer.safetensors").weight
    means = contexts(hidden, text, len(every), unseen=every)
    if most is not None and most < len(text):
        hidden = hidden[spread(np.arange(len(text)), most)]
    target = text if len(hidden) == len(text) else spread(text, len(hidden))
    test = file.read("test_hidden"), file.read("test_target").astype(np.int64)
    return Data(np.array(hidden), target, *test, class_counts(text, len(every)), means, text)


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


FULL, TUNED, SVD = "full", "full, two passes more", "svd of full, D/8, V/10"
TRAINED = (
    "tree, learned", "tree, huffman", "two levels, clustered", "two levels, frequency", "tree, balanced", "tree, random",
    "two levels, random", "two levels, brown", "bands",
)  # fmt: skip
"""Those whose likelihood comes apart into small problems; the differentiated head has one softmax over all classes."""


def planned() -> list[Setting]:
    return [(("head", name),) for name in (FULL, SVD, *TRAINED, TUNED)]


def run(table: str, context: Context) -> Iterator[Row]:
    """The rows that are not there yet."""
    todo = [row for row in planned() if row not in context.done and context.wants(row)]
    if not todo:
        return
    folder = FOLDERS[table]
    layer, data = Layer.load(context.data / folder / "layer.safetensors"), read(context.data, None, folder)
    factories, truth = heads(data), best_ten(layer, data)
    progress = context.stage(f"{len(todo)} heads")
    for done, row in enumerate(todo):
        name = row[0][1]
        if name == SVD:
            got = of_svd(layer, data, truth)
        elif name in (FULL, TUNED):
            got = of_full(layer, data, truth, name == TUNED)
        else:
            passes = LONGER.get((table, name), PASSES[table])
            got = of_head(factories[name](), data, truth, passes)
        yield Row(row, {key: float(f"{value:.6g}") for key, value in got.items()})
        progress(done + 1, len(todo))


def of_head(head: Head, data: Data, truth: Vectors, passes: int) -> dict[str, float]:
    """One head, trained to the end."""
    from studies.models.separate import AdamSettings, fit

    found: list[float] = []
    got: dict[str, float] = {}
    for _ in fit(head, rows_of(data), AdamSettings(passes, RATE)):
        found.append(perplexity(head, data))
        got = got or agreement(head.to_layer(), data, truth)
    return settled(*found) | got


def of_full(layer: Layer, data: Data, truth: Vectors, longer: bool) -> dict[str, float]:
    """The backbone's own layer, or what two passes more over the frozen vectors make of it."""
    import torch

    from headlong.heads import DenseHead
    from studies.models.separate import AdamSettings, tuned

    head = DenseHead(layer.dim, layer.vocab)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(np.array(layer.weight, np.float32)))
        if layer.bias is not None and head.bias is not None:
            head.bias.copy_(torch.from_numpy(np.array(layer.bias, np.float32)))
    if longer:
        tuned(head, rows_of(data), AdamSettings(rate=RATE_AT_THE_END))
    return {"perplexity": perplexity(head, data)} | agreement(head.to_layer(), data, truth)


def of_svd(layer: Layer, data: Data, truth: Vectors) -> dict[str, float]:
    """SVD-softmax of the full softmax, W = D/8 and N = V/10: exact logits for N classes, previews for the rest."""
    width, count = layer.dim // 8, layer.vocab // 10
    loss, found = 0.0, []
    compared = set(spread(np.arange(len(data.test_target)), COMPARED).tolist())
    for first, mixed in previewed(layer, data.test_hidden, width, count):
        target = data.test_target[first : first + len(mixed)]
        most = mixed.max(axis=1)
        lse = most + np.log(np.exp(mixed - most[:, None]).sum(axis=1))
        loss += float((lse - mixed[np.arange(len(target)), target]).sum(dtype=np.float64))
        mine = [row for row in range(len(mixed)) if first + row in compared]
        found.append(np.argsort(-mixed[mine], axis=1)[:, :10])
    got = {"perplexity": math.exp(loss / len(data.test_target))} | same(np.concatenate(found), truth)
    return got | {"rows": float(count), "read": layer.dim / layer.vocab + width / layer.dim + count / layer.vocab}


def previewed(layer: Layer, hidden: Vectors, width: int, count: int) -> Iterator[tuple[int, Vectors]]:
    """Pieces of ``[rows, vocab]`` logits, float32: exact for the ``count`` best previews, previews elsewhere."""
    plan = svd_plan(layer, width, 1, None)
    assert plan.rotation is not None
    weight, bias = np.asarray(layer.weight, np.float32), 0.0 if layer.bias is None else np.asarray(layer.bias, np.float32)
    turn, columns = np.asarray(plan.rotation[:, :width], np.float32), np.ascontiguousarray(plan.levels[0].codes[:, :width])
    for first in range(0, len(hidden), PIECE):
        x = np.asarray(hidden[first : first + PIECE], np.float32)
        mixed, exact = (x @ turn) @ columns.T + bias, x @ weight.T + bias
        chosen = np.argpartition(-mixed, count, axis=1)[:, :count]
        np.put_along_axis(mixed, chosen, np.take_along_axis(exact, chosen, 1), 1)
        yield first, mixed


def best_ten(layer: Any, data: Data) -> Vectors:
    """The ten likeliest classes for each of the compared vectors."""
    found: Vectors = (
        compile_layer(layer, delta=0.0, threads=1).topk(spread(data.test_hidden, COMPARED).astype(np.float32), k=10).ids
    )
    return found


def same(ids: Vectors, truth: Vectors) -> dict[str, float]:
    overlap = [len(set(a) & set(b)) for a, b in zip(ids.tolist(), truth.tolist(), strict=True)]
    return {"top1": float(np.mean(ids[:, 0] == truth[:, 0])), "top10": float(np.mean(overlap))}


def agreement(layer: Any, data: Data, truth: Vectors) -> dict[str, float]:
    """How often the finished layer's best are the full softmax's, and what its engine reads for one query."""
    engine = compile_layer(layer, delta=0.0, threads=1)
    costs = [engine.topk(one[None].astype(np.float32), k=10).cost for one in spread(data.test_hidden, ASKED)]
    read = float(np.mean([cost.bytes[0] for cost in costs])) / (4 * engine.layer.vocab * engine.layer.dim)
    return same(best_ten(layer, data), truth) | {"rows": float(np.mean([cost.rows[0] for cost in costs])), "read": read}


def settled(perplexity: float, longer: float) -> dict[str, float]:
    return {"perplexity": perplexity, "longer": longer, "moved": 100 * (longer / perplexity - 1)}


def rows_of(data: Data) -> Any:
    import torch

    from studies.models.separate import Rows

    return Rows(torch.from_numpy(data.hidden), torch.from_numpy(data.target))


def perplexity(head: Head, data: Data) -> float:
    """Over all test vectors."""
    import torch

    total, hidden, target = 0.0, data.test_hidden, data.test_target
    with torch.no_grad():
        for start in range(0, len(target), PIECE):
            part = slice(start, start + PIECE)
            out = head(torch.from_numpy(hidden[part].astype(np.float32)), torch.from_numpy(target[part]))
            total -= float(out.output.double().sum())
    return math.exp(total / len(target))


def spread(rows: Vectors, most: int) -> Vectors:
    """At most so many of the rows, evenly spread."""
    return rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.int64)]


for _table, _folder in FOLDERS.items():
    register(
        PaperTable(
            paper="vlasova-softmax",
            table=_table,
            claim=f"Hierarchical heads trained to convergence on one frozen backbone ({_folder.removeprefix('harvest/')})",
            source="the study's own figures are not public: nothing could be checked against them",
            needs=(f"{_folder}/layer.safetensors", f"{_folder}/hidden.safetensors"),
            run=partial(run, _table),
            planned=planned,
        )
    )
