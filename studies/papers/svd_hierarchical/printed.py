"""What the study of Vlasova et al. shows, and the figures of Shim et al. (2017) that its SVD-softmax is held against.

The study's slides draw singular values, the loss over the preview's width and the time of a token, and name WikiText-2 and One
Billion Word; they print no number. Shim et al. print coverage, divergence and normaliser for LSTMs on WikiText-2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from studies.papers.cells import Cell, lines_of, unbuilt
from studies.papers.svd_hierarchical.softmax import PUBLISHED, setting

SHIM = {"top10": "10.00", "top100": "99.97 to 100", "top1000": "987 to 998", "kl": "3e-3 to 1e-2", "z_ratio": "at least 0.99"}
DRAWN = {
    "singular values of several models": ("vlasova-softmax.spectra.json", "six layers, SmolLM2 among them"),
    "loss over the preview's width": ("vlasova-softmax.svd-smollm2.jsonl", "SmolLM2, Gemma, Qwen, a recogniser, LSTMs"),
    "perplexity of hierarchical softmax": ("vlasova-softmax.hierarchical.jsonl", "an LSTM of D = 200 on Penn Treebank"),
    "perplexity of hierarchical softmax, WikiText-2": (
        "vlasova-softmax.hierarchical-wikitext2.jsonl",
        "takes a trained LSTM: `python -m studies reproduce vlasova-softmax:hierarchical-wikitext2`",
    ),
    "top-k match with the full softmax": (
        "vlasova-softmax.hierarchical.jsonl",
        "every method on the same test vectors of Penn Treebank; SVD-softmax on WikiText-2 as well",
    ),
    "time of a token, CPU": ("hierarchical-times.json", "SmolLM2, a recogniser, an LSTM, 793,471 classes drawn by Zipf's law"),
    "time of a token, GPU": ("../device.json", "SVD-softmax on SmolLM2's head; trees are read on the CPU"),
    "One Billion Word": ("vlasova-softmax.gbw.jsonl", "takes the corpus, and a model of 793,471 classes trained on it"),
}

TRAINED = "heads on 400,000 vectors of an LSTM of D = 200 and 1,600 steps"


def cells(results: Path) -> Iterator[Cell]:
    """Every printed figure, from the runs that ``results`` holds."""
    wanted, rows = dict(setting("plain", 8, 10)), lines_of(results / "vlasova-softmax.svd-lstm.jsonl")
    row = next((one for one in rows if one["setting"] == wanted), None)
    for metric, printed in SHIM.items():
        what = f"Shim et al., LSTM on WikiText-2, W = D/8, N = V/10: {metric}"
        if row is None:
            yield Cell(what, printed, "–", "not run", "takes a trained LSTM: `reproduce vlasova-softmax:svd-lstm`")
            continue
        got = row["got"]
        held = "within or better than" if PUBLISHED[metric].verdict(got[metric]) == "matched" else "outside"
        note = f"{held} what is printed for D = 256 to 1,024; ours: LSTM on WikiText-2, D = 200, perplexity "
        yield Cell(what, printed, f"{got[metric]:.4g}", "stand-in", f"{note}{math.exp(got['full_loss']):.0f}{unbuilt([row])}")
    for what, (file, note) in DRAWN.items():
        there = (results / file).is_file()
        note = TRAINED if there and "wikitext2" in file else note
        yield Cell(f"study: {what}", "drawn, no numbers", "drawn" if there else "–", "stand-in" if there else "not run", note)
    yield from _counted(results)


def _counted(results: Path) -> Iterator[Cell]:
    """The two complexities that the slides print, as counts."""
    what = "study: SVD-softmax multiplies V W + N D times in place of V D"
    vocab, dim = 33_278, 200
    width, rows = dim // 8, vocab // 10
    share = (vocab * width + rows * dim) / (vocab * dim)
    note = f"and D^2 for the rotation, {dim / vocab:.1%} more: W = D/8, N = V/10, V = {vocab:,}, D = {dim}"
    yield Cell(what, "O(V W + N D)", f"{share:.1%} of V D", "by arithmetic", note)
    words = 10_000
    note = f"the sum over all {words:,} words of Penn Treebank, to score one"
    yield Cell("study: a softmax must compute all N leaves", "N", f"{words:,}", "by arithmetic", note)
    what = "study: hierarchical softmax computes log N nodes"
    found = {line["setting"]["head"]: line["got"] for line in lines_of(results / "vlasova-softmax.hierarchical.jsonl")}
    depth = math.log2(words)
    note = f"of a balanced tree over {words:,} words, to score one that is given"
    if "tree, huffman" in found:
        note += f"; the ten likeliest are another question: {found['tree, huffman']['rows']:.0f} rows of Huffman's tree"
    yield Cell(what, "log(N)", f"{math.floor(depth)} or {math.ceil(depth)} nodes", "by arithmetic", note)
