"""One Billion Word: what a query of hierarchical heads reads on the corpus's own counts, from a folder that a user has.

::

    python -m studies reproduce vlasova-softmax:gbw --model FOLDER

    rows      mean over the test words of the rows that the loss of one word reads: a leaf's ancestors in a binary tree, the
              groups and one group's classes of two levels, all classes of a full softmax
    entropy   of the words' counts, in bits: no binary tree has fewer rows on average over the training text
    unknown   the share of test words that the vocabulary lacks

Counting takes one pass over the shards and no training; perplexities take a model of this vocabulary, which is not made here
(``python -m studies train --data FOLDER``). ``classes`` is 793,471 for the whole corpus, words of three or more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from headlong.bench.measure import Progress
from headlong.heads import trees
from headlong.heads.classes import by_frequency
from headlong.native import Doubles
from headlong.store import open_file, write_file
from studies.papers import Context, PaperTable, Row, Setting, register
from studies.papers.verdicts import Expected

FILE = "gbw/counts.safetensors"
MODELS = ("full", "two levels, frequency", "tree, balanced", "tree, huffman")
WORDS = 793_471


def counted(corpus: Path, root: Path, stage: Callable[[str], Progress]) -> None:
    """The counts of training and test words in ``root``; nothing where they are there."""
    from studies.data.text import UNKNOWN, load_billion

    if (root / FILE).is_file():
        return
    progress = stage("count the words")
    found = load_billion(corpus, ())
    vocab = len(found.vocabulary.words)
    progress(1, 2)
    counts = {name: np.bincount(getattr(found, name), minlength=vocab) for name in ("train", "test")}
    unknown = np.array([list(found.vocabulary.words).index(UNKNOWN)])
    (root / FILE).parent.mkdir(parents=True, exist_ok=True)
    write_file(root / FILE, {**counts, "unknown": unknown}, {"source": os.path.basename(corpus)})
    progress(2, 2)


def read_rows(head: str, counts: Doubles) -> Doubles:
    """Of each class, the rows that its loss reads."""
    vocab = len(counts)
    if head == "full":
        return np.full(vocab, float(vocab))
    if head.startswith("two levels"):
        group = by_frequency(counts, vocab, round(vocab**0.5))
        sizes = np.bincount(group)
        return np.asarray(len(sizes) + sizes[group], np.float64)
    children = trees.huffman(counts) if head == "tree, huffman" else trees.balanced(np.arange(vocab))
    depth, leaves = np.zeros(len(children) + 1, np.int64), np.zeros(vocab)
    for node, pair in enumerate(np.asarray(children).reshape(-1, 2)):  # a parent comes before its children
        for child in pair:
            if child < 0:
                leaves[~child] = depth[node] + 1
            else:
                depth[child] = depth[node] + 1
    return leaves


def run(context: Context) -> Iterator[Row]:
    file = open_file(context.data / FILE)
    train, test = (np.asarray(file.read(name), np.float64) for name in ("train", "test"))
    share = train[train > 0] / train.sum()
    facts = {
        "classes": float(len(train)),
        "words": float(train.sum()),
        "unknown": round(float(test[int(file.read("unknown")[0])] / test.sum()), 6),
        "entropy": round(float(-(share * np.log2(share)).sum()), 4),
    }
    progress = context.stage("heads")
    for number, head in enumerate(MODELS):
        setting: Setting = (("head", head),)
        if setting not in context.done and context.wants(setting):
            rows = float((read_rows(head, train) * test).sum() / test.sum())
            yield Row(setting, {"rows": round(rows, 3), "of_full": round(rows / len(train), 8), **facts})
        progress(number + 1, len(MODELS))


register(
    PaperTable(
        paper="vlasova-softmax",
        table="gbw",
        claim="hierarchical softmax over the words of One Billion Word: the rows that a word's loss reads",
        source="the slides name the corpus and print no number; 793,471 words is its published vocabulary; checked",
        needs=(FILE,),
        run=run,
        expected={(("head", head),): {"classes": Expected(WORDS, WORDS)} for head in MODELS},
        planned=lambda: [(("head", head),) for head in MODELS],
        prepare=counted,
    )
)
